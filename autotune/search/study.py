"""The Optuna study behind a run: asked for candidates, told records, rebuilt from them when they differ.

Optuna's numbers are the trial numbers everywhere: a proposal that was refused or was launched before keeps its number,
so that the dashboard, the run directory and the table agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.errors import EnvironmentFault, InputError
from autotune.records.spec import Args, ParamValue, StudySpec
from autotune.records.trial import Candidate, Outcome, TrialRecord
from autotune.search.samplers import Sampler, make_sampler
from autotune.search.told import Told, told
from autotune.space import RuledOut, Space

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage

DUPLICATE_OF = "duplicate_of"
STORAGE_ADVICE = "every trial.json is kept apart from it: mend it or move it away, and go on with --resume"
REFUSALS_PER_TRIAL = 20  # refused proposals cost nothing, but a space of which nearly nothing is allowed must end
DUPLICATES_IN_A_ROW = 100  # so many repeats in a row mean that the space has been tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The next candidate, or why the rules refuse it (`refusal`), with the parameters proposed."""

    number: int
    candidate: Candidate | None
    params: dict[str, ParamValue] = field(default_factory=dict)
    refusal: str | None = None


class Search:
    """Proposes candidates and learns from records; the one owner of the Optuna study."""

    def __init__(self, spec: StudySpec, space: Space, storage_url: str, records: Sequence[TrialRecord] = ()) -> None:
        import optuna  # noqa: PLC0415 - heavy

        self._spec = spec
        self._space = space
        self._sampler = self._make_sampler(len(records))
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # its INFO lines would break the live view
        self._storage_url = storage_url
        with self._storage_faults():
            self._storage = _open_storage(storage_url)
        self._asked: dict[int, optuna.Trial] = {}
        self._launched: dict[str, int] = {}
        self._seen: list[float] = []
        self.refused = 0
        with self._storage_faults():
            self.study = self._open(records)

    @property
    def next_number(self) -> int:
        """The number that the next proposal will have."""
        return len(self.study.get_trials(deepcopy=False))

    @property
    def exhausted(self) -> bool:
        """Whether so many proposals were refused that looking on is in vain."""
        return self.refused >= REFUSALS_PER_TRIAL * self._spec.budget.trials

    def suggest(self, args: Args) -> None:
        """Have `args` proposed next, as near as the space comes to them; what they leave open is the sampler's."""
        with self._storage_faults():
            self.study.enqueue_trial(dict(self._space.nearest(args)), skip_if_exists=True)

    def ask(self) -> Proposal | None:
        """Return the next proposal, or None when the sampler finds nothing that has not been launched yet."""
        with self._storage_faults():
            return self._ask()

    def _ask(self) -> Proposal | None:
        for _ in range(DUPLICATES_IN_A_ROW):
            if self._sampler.exhausted(self.study):
                return None
            trial = self.study.ask()
            suggestion = self._space.suggest(trial)
            if isinstance(suggestion, RuledOut):
                self._asked[trial.number] = trial
                return Proposal(
                    number=trial.number, candidate=None, params=dict(suggestion.params), refusal=suggestion.reason
                )
            earlier = self._launched.get(suggestion.fingerprint)
            if earlier is None:
                self._asked[trial.number] = trial
                return Proposal(number=trial.number, candidate=suggestion, params=dict(suggestion.params))
            trial.set_user_attr(DUPLICATE_OF, earlier)
            self._fail(trial)
        return None

    def tell(self, record: TrialRecord) -> None:
        """Let the sampler learn from `record`; the reference, which was not asked for, is added as it is."""
        with self._storage_faults():
            self._tell(record)

    def _tell(self, record: TrialRecord) -> None:
        lesson = self._lesson(record)
        self._remember(record, lesson)
        trial = self._asked.pop(record.number, None)
        if trial is None:
            self.study.add_trial(self._frozen(record, lesson))
            return
        for key, value in lesson.constraints.items():
            trial.set_constraint(key, value)
        for key, attribute in user_attributes(record).items():
            trial.set_user_attr(key, attribute)
        self.study.tell(trial, lesson.value, state=lesson.trial_state)

    def forget(self, number: int) -> None:
        """Give up a proposal that was interrupted: samplers do not see it."""
        if trial := self._asked.pop(number, None):
            with self._storage_faults():
                self._fail(trial)

    def _fail(self, trial: optuna.Trial) -> None:
        from optuna.trial import TrialState  # noqa: PLC0415 - heavy

        self.study.tell(trial, state=TrialState.FAIL)

    @contextmanager
    def _storage_faults(self) -> Iterator[None]:
        """Turn what a database refuses (full disk, lasting lock, damaged file) into an EnvironmentFault of one line."""
        from optuna.exceptions import StorageInternalError  # noqa: PLC0415 - heavy
        from sqlalchemy import make_url  # noqa: PLC0415 - heavy
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - heavy

        try:
            yield
        except (SQLAlchemyError, StorageInternalError) as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # the driver's own words, without the SQL around them
                cause = cause.__cause__
            where = make_url(self._storage_url).render_as_string(hide_password=True)
            raise EnvironmentFault(f"Optuna's storage {where} failed: {cause}", STORAGE_ADVICE) from error

    def _lesson(self, record: TrialRecord) -> Told:
        return told(record, self._spec.objective, complete_only=self._sampler.complete_only, seen=tuple(self._seen))

    def _remember(self, record: TrialRecord, lesson: Told) -> None:
        if record.outcome.measured or record.outcome.teaches_infeasible:
            self._launched.setdefault(record.fingerprint, record.number)
        if record.outcome is Outcome.RULED_OUT:
            self.refused += 1
        if lesson.value is not None:
            self._seen.append(lesson.value)

    def _make_sampler(self, resumed_after: int) -> Sampler:
        # A resumed study goes on with another stream of random numbers, else it would propose its first trials again.
        return make_sampler(
            self._spec.sampler,
            seed=self._spec.seed + resumed_after,
            trials=self._spec.budget.trials,
            distributions=self._space.distributions(),
        )

    def _open(self, records: Sequence[TrialRecord]) -> optuna.Study:
        """Open the study; when what it holds is not what the records say, build it anew from them."""
        import optuna  # noqa: PLC0415 - heavy

        wanted = self._replay(records)
        study = self._create()
        held = study.get_trials(deepcopy=False)
        if held and not records and self._spec.storage:
            raise InputError(
                f"the storage holds another study called {self._spec.name!r}, of {len(held)} trials",
                "give this study another name or storage: going on would delete them",
            )
        if [_essence(trial) for trial in held] != [_essence(trial) for trial in wanted]:
            optuna.delete_study(study_name=self._spec.name, storage=self._storage)
            study = self._create()
            study.add_trials(wanted)
        return study

    def _create(self) -> optuna.Study:
        import optuna  # noqa: PLC0415 - heavy

        study = optuna.create_study(
            storage=self._storage,
            study_name=self._spec.name,
            sampler=self._sampler.sampler,
            direction=self._spec.objective.direction.value,
            load_if_exists=True,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([self._spec.objective.metric])
        return study

    def _replay(self, records: Sequence[TrialRecord]) -> list[optuna.trial.FrozenTrial]:
        """Every trial as Optuna should hold it; numbers without a record (duplicates, killed) are failed trials."""
        from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - heavy

        wanted: list[optuna.trial.FrozenTrial] = []
        for record in records:
            while len(wanted) < record.number:
                wanted.append(create_trial(state=TrialState.FAIL))
            lesson = self._lesson(record)
            self._remember(record, lesson)
            wanted.append(self._frozen(record, lesson))
        return wanted

    def _frozen(self, record: TrialRecord, lesson: Told) -> optuna.trial.FrozenTrial:
        from optuna.trial import create_trial  # noqa: PLC0415 - heavy

        known = self._space.in_domain({**record.defaults, **record.resolved, **record.args, **record.params})
        return create_trial(
            state=lesson.trial_state,
            value=lesson.value,
            params=dict(known),
            distributions={name: self._space.distributions()[name] for name in known},
            user_attrs=user_attributes(record),
            constraints=dict(lesson.constraints),
        )


def _essence(trial: optuna.trial.FrozenTrial) -> tuple[Any, ...]:
    """What must be the same in the storage and by the records; a stepped float is 0.8600000000000001 in one of them."""
    params = {name: round(value, 9) if isinstance(value, float) else value for name, value in trial.params.items()}
    return (trial.state, trial.values, params, dict(sorted(trial.constraints.items())))


def _open_storage(url: str) -> BaseStorage:
    from optuna.storages import get_storage  # noqa: PLC0415 - heavy
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415 - heavy

    try:
        return get_storage(url)
    except (ArgumentError, RuntimeError, ImportError, ValueError) as error:
        raise InputError(f"Optuna's storage can't be opened: {error}", STORAGE_ADVICE) from error


SHOWN_METRICS = ("ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "tpot_ms.p99", "output_tok_per_s", "error_ratio")


def user_attributes(record: TrialRecord) -> dict[str, Any]:
    """Return what Optuna Dashboard shows of a trial: outcome, verdict, cause, metrics, and the arguments launched."""
    attributes: dict[str, Any] = {
        "outcome": record.outcome.value,
        "role": record.role.value,
        "fingerprint": record.fingerprint,
        "args": dict(record.args),
    }
    if record.simulated:
        attributes["simulated"] = True
    if record.failure:
        attributes |= {"cause": record.failure.cause, "remedy": record.failure.remedy}
    if record.startup_s is not None:
        attributes["startup_s"] = round(record.startup_s, 2)
    if record.verdict:
        attributes["verdict"] = record.verdict.ruling.value
        for slo in record.verdict.slos:
            attributes[f"slo {slo.metric}"] = f"{slo.ruling.value} (limit {slo.limit:g})"
            if slo.estimate:
                attributes[slo.metric] = round(slo.estimate.value, 3)
    if record.measurements:
        values = record.measurements[-1].values
        attributes |= {name: round(values[name].value, 3) for name in SHOWN_METRICS if name in values}
    return attributes
