"""Reads runs and compares them: what they were asked, what each found, and what separates them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from autotune.compare.deciding import ASSUMED_LAUNCH_SD, difference
from autotune.compare.reading import Entrant, by_workload, entrants_of, workload_shapes
from autotune.compare.record import Comparison, Configuration, Contender, Difference
from autotune.compare.unlike import ACROSS_WORKLOADS, ALLOWABLE, Read, gpus_of, machine_of, unlike
from autotune.compare.words import leaders, verdict_lines
from autotune.errors import InputError
from autotune.records.spec import Choice, Domain, IntRange
from autotune.records.trial import TrialRecord
from autotune.space.space import PARALLELISM
from autotune.trial.launches import figure_over, launches_of

SHOWN = (
    "output_tok_per_s_per_gpu",
    "goodput_rps_per_gpu",
    "ttft_ms.p50",
    "ttft_ms.p99",
    "tpot_ms.p50",
    "tpot_ms.p99",
    "e2e_ms.p50",
    "e2e_ms.p99",
    "capacity_rps",
    "capacity_concurrency",
    "error_ratio",
    "startup_s",
    "gpu_memory_bytes",
    "usd_per_million_output_tok",
)
DECIDED = ("output_tok_per_s_per_gpu", "ttft_ms.p50", "tpot_ms.p50", "e2e_ms.p50", "usd_per_million_output_tok")
"""Told apart from noise beside the objective; far quantiles of one launch rarely can be."""

MANY_TRIALS_RATIO = 1.5


def compare_runs(paths: Sequence[Path], allow: Sequence[str] = ()) -> Comparison:
    """Return how runs compare, or the engines of one run. Runs of several workloads are compared workload by workload.

    Raises InputError where there is nothing to compare, for folders that are no runs, and for what can't be compared,
    with every reason; `allow` lets some of ALLOWABLE differ.
    """
    _check(paths, allow)
    entrants = entrants_of(paths)
    if len(entrants) < 2:
        raise InputError("1 run of one engine is nothing to compare", "give two or more folders: runs/<study>")
    groups = by_workload(entrants)
    if any(len(group) < 2 for group in groups):
        groups = [entrants]  # which says in what the odd one out differs
    _refuse_unlike(groups, allow)
    parts = [_compared(group, shape) for group, shape in zip(groups, workload_shapes(groups), strict=True)]
    contenders = tuple(contender for part in parts for contender in part.contenders)
    differences = tuple(difference for part in parts for difference in part.differences)
    objective = entrants[0].read.spec.objective
    return Comparison(
        objective=objective.metric,
        confidence=objective.confidence,
        contenders=contenders,
        differences=differences,
        allowed=tuple(allow),
        warnings=tuple(_warnings(contenders, differences)),
        verdict=parts[0].verdict if len(parts) == 1 else tuple(_verdict_by_shape(parts)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What was measured with one workload, and how it compares."""

    shape: str
    objective: str
    contenders: tuple[Contender, ...]
    differences: tuple[Difference, ...]

    @property
    def verdict(self) -> tuple[str, ...]:
        """Its lines."""
        return tuple(verdict_lines(self.contenders, self.differences, self.objective))


def _compared(group: Sequence[Entrant], shape: str) -> _Part:
    objective = group[0].read.spec.objective
    metrics = tuple(dict.fromkeys((objective.metric, *(slo.metric for slo in objective.slos), *SHOWN)))
    return _Part(
        shape=shape,
        objective=objective.metric,
        contenders=tuple(_contender(entrant, metrics, shape) for entrant in group),
        differences=tuple(_differences(group, objective.metric, shape)),
    )


def _verdict_by_shape(parts: Sequence[_Part]) -> Iterator[str]:
    """Each workload's lines, then one line for each to decide by."""
    yield from (f"{part.shape}: {line}" for part in parts for line in part.verdict)
    for part in parts:
        decided = [found for found in part.differences if found.metric == part.objective]
        yield f"by shape, {part.shape}: {leaders(part.contenders, decided)}"


def _check(paths: Sequence[Path], allow: Sequence[str]) -> None:
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("the same run twice is nothing to compare", "give different folders: runs/<study>")
    if strange := [word for word in allow if word not in ALLOWABLE]:
        raise InputError(f"{strange[0]!r} can't be allowed to differ", f"one of {', '.join(ALLOWABLE)}")


def _refuse_unlike(groups: Sequence[Sequence[Entrant]], allow: Sequence[str]) -> None:
    """Within a workload everything must be alike, between workloads what makes two engines the same contenders."""
    firsts = [group[0].read for group in groups]
    pairs: list[tuple[Read, Read, tuple[str, ...]]] = [(firsts[0], other, ACROSS_WORKLOADS) for other in firsts[1:]]
    pairs += [(group[0].read, other.read, ()) for group in groups for other in group[1:]]
    found = [
        (aspect, text)
        for one, other, aspects in pairs
        for aspect, text in unlike(one, other, aspects)
        if aspect not in allow
    ]
    if found:
        may = sorted({aspect for aspect, _ in found} & set(ALLOWABLE))
        every = len({aspect for aspect, _ in found}) == len(may)
        hint = f"if that is the question: {' '.join(f'--allow {word}' for word in may)}" if every else ""
        reasons = "".join(f"\n  {text}" for text in dict.fromkeys(text for _, text in found))
        raise InputError(
            f"these runs are not alike, so their figures can't be compared:{reasons}",
            hint or "measure both with the same objective, on the same kind of machine",
        )


def _contender(entrant: Entrant, metrics: Sequence[str], shape: str) -> Contender:
    run, view = entrant.read, entrant.view
    spec, summary = view.spec, view.summary
    versions = view.trials[-1].versions if view.trials else {}
    cold = next((trial for trial in view.trials if trial.startup_kind == "cold"), None)
    return Contender(
        run=run.name,
        study=spec.name,
        engine=spec.engine.kind.value,
        version=versions.get(spec.engine.kind.value) or versions.get("simulated_engine"),
        machine=machine_of(run),
        gpus=gpus_of(run),
        simulated=view.simulated,
        finished=summary is not None and summary.finished,
        launched=entrant.launched,
        parallelism=_parallelism(next((p.domain for p in spec.search_space.parameters if p.name == PARALLELISM), None)),
        quality=summary.quality if summary else "unknown",
        best=None if view.best is None else _configuration(run, view.best, metrics),
        reference=None if view.reference is None else _configuration(run, view.reference, metrics),
        shape=shape,
        cold_start_s=None if cold is None else cold.startup_s,
        prepare_s=sum(trial.waited_s for trial in view.trials),
        given_up=None if entrant.result is None else entrant.result.given_up,
    )


def _configuration(run: Read, trial: TrialRecord, metrics: Sequence[str]) -> Configuration:
    launches = launches_of(run.trials, trial)
    objective, price = run.spec.objective, run.spec.price
    found = {
        metric: figure_over(launches or [trial], metric, price=price, confidence=objective.confidence)
        for metric in metrics
    }
    kinds = {launch.startup_kind for launch in launches or [trial]}
    return Configuration(
        trial=trial.number,
        args=trial.args,
        outcome=trial.outcome.value,
        figures={metric: figure for metric, figure in found.items() if figure is not None},
        startup_kind=kinds.pop() if len(kinds) == 1 else None,
        launches=len(launches),
    )


def _parallelism(domain: Domain | None) -> tuple[int, ...]:
    match domain:
        case Choice(values=values):
            return tuple(value for value in values if isinstance(value, int))
        case IntRange(low=low, high=high):
            return (low, high)
    return ()


def _differences(group: Sequence[Entrant], objective: str, shape: str) -> Iterator[Difference]:
    bests = [(entrant.read, entrant.view.best) for entrant in group if entrant.view.best is not None]
    for (run, best), (other, its_best) in combinations(bests, 2):
        for metric in dict.fromkeys((objective, *DECIDED)):
            found = difference(metric, (run, best), (other, its_best))
            if found is not None:
                yield replace(found, shape=shape)


def _warnings(contenders: Sequence[Contender], differences: Sequence[Difference]) -> Iterator[str]:
    if any(contender.simulated for contender in contenders):
        yield "SIMULATED: no real engine ran; not evidence"
    yield from (f"{c.run} has not finished: its best is that so far" for c in contenders if not c.finished)
    yield from (f"{c.run} was {c.given_up}" for c in contenders if c.given_up is not None)
    tuned = [c for c in contenders if c.engine != "endpoint"]
    counts = [c.launched for c in tuned]
    if counts and max(counts) > MANY_TRIALS_RATIO * max(1, min(counts)):
        each = ", ".join(f"{c.run} {c.launched}" for c in tuned)
        yield f"unequal effort, which favours the one tried more often: launches {each}"
    if len({c.parallelism for c in tuned}) > 1:
        each = ", ".join(f"{c.run} {list(c.parallelism) or 'not searched'}" for c in tuned)
        yield f"unequal parallelism allowed: {each}"
    if len({c.quality for c in contenders}) > 1:
        yield "quality was not checked alike: " + ", ".join(f"{c.run} {c.quality}" for c in contenders)
    if any(not found.freedom for found in differences):
        yield (
            "no configuration was launched twice: launches are assumed to differ by "
            f"{ASSUMED_LAUNCH_SD:.0%} (one standard deviation)"
        )
