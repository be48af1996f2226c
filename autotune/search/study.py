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
from autotune.records.spec import ENGINE, Args, ParamValue, StudySpec
from autotune.records.trial import Candidate, TrialRecord
from autotune.search.samplers import Sampler, make_auto, make_sampler
from autotune.search.told import Told, told
from autotune.search.turns import Turns
from autotune.space import EngineSpaces, RuledOut, Space

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage

DUPLICATE_OF = "duplicate_of"
STORAGE_ADVICE = "every trial.json is kept apart from it: mend it or move it away, and go on with --resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The next candidate, or why the rules refuse it (`refusal`), with the parameters proposed; `engine` is whose."""

    number: int
    candidate: Candidate | None
    engine: str | None = None
    params: dict[str, ParamValue] = field(default_factory=dict)
    refusal: str | None = None


class Search:
    """Proposes candidates and learns from records; the one owner of the Optuna study."""

    def __init__(
        self, spec: StudySpec, space: Space | EngineSpaces, storage_url: str, records: Sequence[TrialRecord] = ()
    ) -> None:
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
        self._turns = Turns(engines=spec.engine_names, trials=spec.budget.trials)
        with self._storage_faults():
            self.study = self._open(records)

    @property
    def next_number(self) -> int:
        """The number that the next proposal will have."""
        return len(self.study.get_trials(deepcopy=False))

    @property
    def why_over(self) -> str | None:
        """Why looking on is in vain: nothing is left to launch, of any engine; None while there is."""
        return self._turns.why_over

    @property
    def given_up(self) -> dict[str, str]:
        """Why some of several engines are proposed no more, by name; {} where there is only one."""
        whys = {engine: self._turns.why_out(engine) for engine in self._spec.engine_names if engine is not None}
        return {engine: why for engine, why in whys.items() if why is not None}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the sampler."""
        return self._sampler.notes

    @property
    def why_settled(self) -> str | None:
        """Why further launches are not expected to be worth what they take; None while they are, or none can tell."""
        with self._storage_faults():
            return self._sampler.why_settled(self.study)

    def suggest(self, args: Args, *, engine: str | None = None) -> None:
        """Have `args` of an engine proposed next, as near as the space comes to them; what they leave open is the
        sampler's."""
        named = args if engine is None else {**args, ENGINE: engine}
        with self._storage_faults():
            self.study.enqueue_trial(dict(self._space.nearest(named)), skip_if_exists=True)

    def ask(self) -> Proposal | None:
        """Return the next proposal, or None when the sampler finds nothing that has not been launched yet."""
        with self._storage_faults():
            return self._ask()

    def _ask(self) -> Proposal | None:
        while self._turns.running and not self._sampler.exhausted(self.study):
            trial = self._next_trial()
            proposal = _proposal(trial.number, self._space.suggest(trial))
            earlier = self._launched.get(proposal.candidate.fingerprint) if proposal.candidate else None
            if earlier is None:
                self._turns.proposed(proposal.engine)
                self._asked[trial.number] = trial
                return proposal
            self._turns.repeated(proposal.engine)
            trial.set_user_attr(DUPLICATE_OF, earlier)
            self._fail(trial)
        return None

    def _next_trial(self) -> optuna.Trial:
        """The sampler's next trial; of the engine whose turn it is, unless something waits to be proposed."""
        from optuna.trial import TrialState  # noqa: PLC0415 - heavy

        due = self._turns.due
        if due is not None and not self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self.study.enqueue_trial({ENGINE: due})
        return self.study.ask()

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
        if record.final is not None:
            return
        if record.outcome.measured or record.outcome.teaches_infeasible:
            self._launched.setdefault(record.fingerprint, record.number)
        self._turns.note(record)
        if lesson.value is not None:
            self._seen.append(lesson.value)
        self._sampler.observe(record)

    def _make_sampler(self, resumed_after: int) -> Sampler:
        if self._spec.sampler.kind == "auto":
            return make_auto(self._spec, self._space)
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


def _proposal(number: int, found: Candidate | RuledOut) -> Proposal:
    params = dict(found.params)
    if isinstance(found, RuledOut):
        return Proposal(number=number, candidate=None, engine=found.engine, params=params, refusal=found.reason)
    return Proposal(number=number, candidate=found, engine=found.engine, params=params)


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
    if record.final is not None:
        attributes |= {"final_of": record.final.of, "final": record.final.stage.value}
        attributes |= {"final_round": record.final.round} if record.final.round else {}
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
