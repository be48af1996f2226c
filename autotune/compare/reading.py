"""Runs as contenders: a run of one engine is one, a run of several is one for each engine; by workload in groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.compare.unlike import Read
from autotune.records.spec import WorkloadSpec
from autotune.records.summary import EngineResult
from autotune.records.trial import TrialRecord
from autotune.report.view import RunView, find_reference, read_view
from autotune.report.words import leader
from autotune.search.turns import launched
from autotune.trial.figures import figure_of
from autotune.trial.store import RunDirectory

PREFILL_HEAVY, DECODE_HEAVY = 4.0, 0.25
"""Tokens of prompt per token of answer, at and beyond which a workload is called so. NVIDIA publishes TensorRT-LLM by
such shapes: 2048/128 and 5000/500 on one side, 500/2000 and 128/2048 on the other, 1000/1000 in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A contender as it was read, its view of one engine alone, and what its study says of that engine."""

    read: Read
    view: RunView
    result: EngineResult | None = None

    @property
    def launched(self) -> int:
        """Launches of the search."""
        if self.result is not None:
            return self.result.launched
        return 0 if self.view.summary is None else len(launched(self.view.trials))


def entrants_of(paths: Sequence[Path]) -> list[Entrant]:
    """Return the contenders of these runs. Raises InputError for folders that are no runs."""
    return [entrant for path in paths for entrant in _entrants(path, alone=len(paths) == 1)]


def _entrants(path: Path, *, alone: bool) -> list[Entrant]:
    view = read_view(RunDirectory(path))
    if not view.spec.engines:
        return [_entrant(str(path), view)]
    names = [str(name) for name in view.spec.engine_names]
    return [_entrant(name if alone else f"{path}:{name}", *_of_engine(view, name)) for name in names]


def _entrant(name: str, view: RunView, result: EngineResult | None = None) -> Entrant:
    return Entrant(read=Read(name=name, spec=view.spec, trials=view.trials), view=view, result=result)


def _of_engine(view: RunView, name: str) -> tuple[RunView, EngineResult | None]:
    """The view of one engine, with the best and the reference that the summary names for it."""
    trials = {trial.number: trial for trial in view.trials if trial.engine == name}
    results = view.summary.engines if view.summary else ()
    result = next((each for each in results if each.name == name), None)
    best = leader(trials.values(), view.spec.objective.direction)
    if result is not None:
        best = None if result.best is None else trials.get(result.best)
    reference = trials.get(result.reference) if result and result.reference is not None else None
    alone = replace(
        view,
        spec=view.spec.of_engine(name),
        trials=tuple(trials.values()),
        best=best,
        nearest=None,
        reference=reference or find_reference(list(trials.values())),
    )
    return alone, result


def by_workload(entrants: Sequence[Entrant]) -> list[list[Entrant]]:
    """Return contenders that were measured with the same workload together, in the order in which they came."""
    groups: list[tuple[WorkloadSpec, list[Entrant]]] = []
    for entrant in entrants:
        workload = entrant.read.spec.objective.workload
        found = next((group for known, group in groups if known == workload), None)
        if found is None:
            groups.append((workload, [entrant]))
        else:
            found.append(entrant)
    return [group for _, group in groups]


def workload_shapes(groups: Sequence[Sequence[Entrant]]) -> list[str]:
    """Return what each group's workload is like; a number tells apart those that are alike."""
    words = [_workload_shape(group) for group in groups]
    alike = Counter(words)
    return [f"{word}, {words[:i].count(word) + 1}" if alike[word] > 1 else word for i, word in enumerate(words)]


def _workload_shape(group: Sequence[Entrant]) -> str:
    """Return what a group's workload is like, by the tokens that it was measured with: prefill-heavy, decode-heavy or
    mixed, with its own name; that alone where nothing was measured."""
    own = group[0].read.spec.objective.workload.shape
    for entrant in group:
        for trial in entrant.read.trials:
            if (ratio := _tokens_ratio(trial)) is not None:
                return f"{_shape_word(ratio)} ({own}, {ratio:.3g} prompt tokens an answer token)"
    return own


def _shape_word(ratio: float) -> str:
    if ratio >= PREFILL_HEAVY:
        return "prefill-heavy"
    return "decode-heavy" if ratio <= DECODE_HEAVY else "mixed"


def _tokens_ratio(trial: TrialRecord) -> float | None:
    """Tokens of prompts per token of answers; None of a trial without both figures."""
    total, output = (figure_of(trial, name) for name in ("total_tok_per_s", "output_tok_per_s"))
    if total is None or output is None or output.value <= 0:
        return None
    return (total.value - output.value) / output.value
