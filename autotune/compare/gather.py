"""Reads runs and compares them: what they were asked, what each found, and what separates them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from autotune.compare.deciding import ASSUMED_LAUNCH_SD, difference, launches_of
from autotune.compare.record import Comparison, Configuration, Contender, Difference
from autotune.compare.unlike import ALLOWABLE, Read, gpus_of, machine_of, unlike
from autotune.compare.words import verdict_lines
from autotune.errors import InputError
from autotune.records.spec import Choice, Domain, IntRange
from autotune.records.trial import TrialRecord
from autotune.report.view import RunView, read_view
from autotune.space.space import PARALLELISM
from autotune.trial.figures import figure_of
from autotune.trial.store import RunDirectory

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
    """Return how runs compare. Raises InputError for fewer than two, for folders that are no runs, and for runs that
    can't be compared, with every reason; `allow` lets some of ALLOWABLE differ."""
    _check(paths, allow)
    views = [read_view(RunDirectory(path)) for path in paths]
    runs = [Read(name=str(path), spec=view.spec, trials=view.trials) for path, view in zip(paths, views, strict=True)]
    _refuse_unlike(runs, allow)
    objective = runs[0].spec.objective
    metrics = tuple(dict.fromkeys((objective.metric, *(slo.metric for slo in objective.slos), *SHOWN)))
    contenders = tuple(_contender(run, view, metrics) for run, view in zip(runs, views, strict=True))
    differences = tuple(_differences(runs, views, objective.metric))
    return Comparison(
        objective=objective.metric,
        confidence=objective.confidence,
        contenders=contenders,
        differences=differences,
        allowed=tuple(allow),
        warnings=tuple(_warnings(contenders, differences)),
        verdict=tuple(verdict_lines(contenders, differences, objective.metric)),
    )


def _check(paths: Sequence[Path], allow: Sequence[str]) -> None:
    if len({path.resolve() for path in paths}) < len(paths) or len(paths) < 2:
        raise InputError(
            f"{len(paths)} runs are nothing to compare", "give two or more different folders: runs/<study>"
        )
    if strange := [word for word in allow if word not in ALLOWABLE]:
        raise InputError(f"{strange[0]!r} can't be allowed to differ", f"one of {', '.join(ALLOWABLE)}")


def _refuse_unlike(runs: Sequence[Read], allow: Sequence[str]) -> None:
    found = [(aspect, text) for run in runs[1:] for aspect, text in unlike(runs[0], run) if aspect not in allow]
    if found:
        may = sorted({aspect for aspect, _ in found} & set(ALLOWABLE))
        hint = (
            f"if that is the question: {' '.join(f'--allow {word}' for word in may)}" if len(may) == len(found) else ""
        )
        reasons = "".join(f"\n  {text}" for _, text in found)
        raise InputError(
            f"these runs are not alike, so their figures can't be compared:{reasons}",
            hint or "measure both with the same objective, on the same kind of machine",
        )


def _contender(run: Read, view: RunView, metrics: Sequence[str]) -> Contender:
    spec, summary = view.spec, view.summary
    versions = view.trials[-1].versions if view.trials else {}
    return Contender(
        run=run.name,
        study=spec.name,
        engine=spec.engine.kind.value,
        version=versions.get(spec.engine.kind.value) or versions.get("simulated_engine"),
        machine=machine_of(run),
        gpus=gpus_of(run),
        simulated=view.simulated,
        finished=summary is not None and summary.finished,
        launched=0 if summary is None else summary.launched,
        parallelism=_parallelism(next((p.domain for p in spec.search_space.parameters if p.name == PARALLELISM), None)),
        quality=summary.quality if summary else "unknown",
        best=None if view.best is None else _configuration(run, view.best, metrics),
        reference=None if view.reference is None else _configuration(run, view.reference, metrics),
    )


def _configuration(run: Read, trial: TrialRecord, metrics: Sequence[str]) -> Configuration:
    found = {metric: figure_of(trial, metric, run.spec.price) for metric in metrics}
    return Configuration(
        trial=trial.number,
        args=trial.args,
        outcome=trial.outcome.value,
        figures={metric: figure for metric, figure in found.items() if figure is not None},
        startup_kind=trial.startup_kind,
        launches=len(launches_of(run, trial)),
    )


def _parallelism(domain: Domain | None) -> tuple[int, ...]:
    match domain:
        case Choice(values=values):
            return tuple(value for value in values if isinstance(value, int))
        case IntRange(low=low, high=high):
            return (low, high)
    return ()


def _differences(runs: Sequence[Read], views: Sequence[RunView], objective: str) -> Iterator[Difference]:
    bests = [(run, view.best) for run, view in zip(runs, views, strict=True) if view.best is not None]
    for (run, best), (other, its_best) in combinations(bests, 2):
        for metric in dict.fromkeys((objective, *DECIDED)):
            found = difference(metric, (run, best), (other, its_best))
            if found is not None:
                yield found


def _warnings(contenders: Sequence[Contender], differences: Sequence[Difference]) -> Iterator[str]:
    if any(contender.simulated for contender in contenders):
        yield "SIMULATED: no real engine ran; not evidence"
    yield from (f"{c.run} has not finished: its best is that so far" for c in contenders if not c.finished)
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
