"""What a run comes to, in words: the lines that `autotune show` and the page put first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.engines.vllm.downgrades import downgrades
from autotune.records.spec import EngineKind
from autotune.records.trial import Outcome, Ruling, TrialRecord
from autotune.report.checkpoints import checkpoint_lines
from autotune.report.cost import cost_lines
from autotune.report.engines import engines_lines
from autotune.report.finals import finals_lines, neighbour_lines
from autotune.report.quality import quality_lines
from autotune.report.view import RunView, failed
from autotune.report.words import (
    OUTCOME_MEANING,
    SIMULATED,
    TIMES,
    by_ruling,
    diagnosis_text,
    duration,
    figure,
    interval,
    metric_label,
    one_line,
    plain,
    slo_text,
    with_interval,
)
from autotune.trial.applied import applied


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Trials that failed alike: their numbers, why, and what to do about it (empty: nothing known)."""

    outcome: Outcome
    trials: tuple[int, ...]
    cause: str
    remedy: str


def banners(view: RunView) -> list[str]:
    """Return what must be read before any number: simulated, quality unchecked."""
    lines = [SIMULATED] if view.simulated else []
    quality = view.summary.quality if view.summary else (view.spec.quality or "")
    if quality == "unchecked":
        lines.append("Quality UNCHECKED: parameters that may change the output were searched without checking it")
    return lines


def next_steps(view: RunView) -> list[str]:
    """Return what to do with a run, each a line; nothing while no trial has finished."""
    if not view.trials:
        return []
    steps = [f"look closer: autotune report {view.path}, or autotune dashboard {view.path}"]
    if view.spec.engines:
        steps.insert(0, f"which engine, and how sure: autotune compare {view.path}")
    if view.simulated and view.spec.engines:
        steps.append("on a machine with the GPU: the engines' own kinds without `simulate`, and another `name`")
    elif view.simulated and view.spec.engine.kind is not EngineKind.ENDPOINT:
        kind = "vllm" if view.spec.engine.kind is EngineKind.SIMULATED else view.spec.engine.kind.value
        steps.append(
            f"on a machine with the GPU: set `engine: {{kind: {kind}}}` and another `name`, then autotune study FILE"
        )
    elif view.best is not None and (view.path / "best" / "vllm.yaml").exists():
        steps.insert(0, f"deploy: vllm serve --config {view.path / 'best' / 'vllm.yaml'}, or best/serve.sh beside it")
    elif view.best is not None and (view.path / "best" / "options.yaml").exists():
        steps.insert(0, f"deploy: trtllm-serve serve MODEL --config {view.path / 'best' / 'options.yaml'}, or serve.sh")
    return steps


def headline(view: RunView) -> str:
    """Return the verdict in one line."""
    if view.best is not None:
        whose = "" if view.best.engine is None else f"engine {plain(view.best.engine)}, "
        return f"{'Best' if _finished(view) else 'Best so far'}: {whose}{_result(view, view.best)}{gain_text(view)}"
    if view.nearest is not None:
        return f"Nothing met the objective. Nearest: {_result(view, view.nearest)}"
    if not view.trials:
        return "No trial has finished yet"
    if any(trial.outcome.measured for trial in view.trials):
        return "Nothing met the objective" if _finished(view) else "Nothing has met the objective so far"
    return "No trial could be measured"


def gain_text(view: RunView) -> str:
    """Return the text of the gain over the reference, or nothing where there is no gain to tell."""
    if view.best is not None and view.reference is not None and view.best.number == view.reference.number:
        return ", which is the reference"
    if view.summary is None or view.summary.gain is None:
        return ""
    gain = view.summary.gain
    span = interval(gain.low, gain.high)
    return f", {figure(gain.value)}{TIMES} the reference" + (f" ({span})" if span else "")


def details(view: RunView) -> list[str]:
    """Return the lines under the headline: SLOs, why it is not confirmed, reference, and how the study ended."""
    chosen = view.best or view.nearest
    lines = [*capacity_lines(chosen), *slo_lines(chosen)] if chosen else []
    if view.best is not None and not view.confirmed:
        lines.append("Not confirmed: " + "; ".join(doubts(view)))
    if chosen is not None:
        lines += [f"Limited by {diagnosis_text(chosen.diagnosis)}"] if chosen.diagnosis else []
        lines += engine_lines(chosen)
    lines += engines_lines(view)
    lines += checkpoint_lines(view)
    lines += quality_lines(view)
    lines += [*finals_lines(view), *neighbour_lines(view)]
    if view.reference is not None and view.reference is not chosen:
        lines.append(f"Reference: {_result(view, view.reference)}")
    return [*lines, *cost_lines(view), *state(view)]


def capacity_lines(trial: TrialRecord) -> list[str]:
    """The capacity with its interval, how it was found and what the guard had against the twin."""
    found = trial.capacity
    if found is None:
        return []
    low, high = (f"{bound:.4g}" if bound is not None else "?" for bound in (found.value.low, found.value.high))
    unit, doubts = "req/s" if found.of == "rps" else "clients", "".join(f"; {doubt}" for doubt in found.doubts)
    took = f"{found.levels} levels, {found.load_s:.0f} s under load"
    return [f"Capacity {found.value.value:.4g} {unit} [{low}, {high}], by {found.method}, {took}{doubts}"]


def slo_lines(trial: TrialRecord) -> list[str]:
    """Return one line each for the SLOs that hold, that are missed and that are unsettled."""
    kinds = (("Holds", Ruling.PASS), ("Misses", Ruling.FAIL), ("Unsettled", Ruling.UNSURE))
    grouped = [(word, by_ruling(trial, ruling)) for word, ruling in kinds]
    return [f"{word}: {'; '.join(slo_text(slo) for slo in slos)}" for word, slos in grouped if slos]


def engine_lines(trial: TrialRecord) -> list[str]:
    """Return what the engine changed of its own accord, and which arguments it is silent on."""
    lines = [f"Downgraded by the engine: {what} ({one_line(text)})" for what, text in downgrades(trial.warnings)]
    untold = applied(trial.args, trial.resolved).untold if trial.resolved else ()
    if untold:
        lines.append(f"Asked for, and neither confirmed nor denied by the engine: {plain(', '.join(untold))}")
    return lines


def untrusted(trials: Sequence[TrialRecord]) -> list[str]:
    """Return a line for each measured trial whose figures can't be trusted, with the reasons."""
    return [
        f"trial {trial.number}: {plain('; '.join(trial.verdict.untrusted))}"
        for trial in trials
        if trial.verdict is not None and trial.verdict.untrusted
    ]


def doubts(view: RunView) -> list[str]:
    """Return why the best is not confirmed; never empty."""
    reasons = ["no real engine ran"] if view.simulated else []
    if view.best is not None:
        reasons += [f"{plain(slo.metric)} is unsettled" for slo in by_ruling(view.best, Ruling.UNSURE)]
        reasons += [plain(text) for text in (view.best.verdict.untrusted if view.best.verdict else ())]
    if not _finished(view):
        reasons.append("the study has not finished")
    return reasons or ["its figures did not settle (see the warnings)"]


def state(view: RunView) -> list[str]:
    """Return how far the study got, what it counted, and its warnings."""
    summary = view.summary
    if summary is None:
        return [f"Unfinished, go on with --resume: {len(view.trials)} trials finished so far"]
    how = "Finished" if summary.finished else "Unfinished, go on with --resume"
    reason = f" ({plain(summary.stop_reason)})" if summary.stop_reason else ""
    by = ", ".join(f"{count} by {plain(source)}" for source, count in summary.ruled_out_by.items())
    ruled_out = f"{summary.ruled_out} ruled out" + (f" ({by})" if by else "")
    counts = f"{summary.launched} launched, {ruled_out}, in {duration(summary.wall_s)}"
    return [f"{how}{reason}: {counts}", *(f"Warning: {plain(text)}" for text in summary.warnings)]


def failure_groups(trials: Sequence[TrialRecord]) -> list[FailureGroup]:
    """Return the failed trials grouped by outcome, cause and remedy, in order of their first trial."""
    groups: dict[tuple[Outcome, str, str], list[int]] = {}
    for trial in failed(trials):
        cause = trial.failure.cause if trial.failure else ""
        remedy = trial.failure.remedy if trial.failure else ""
        groups.setdefault((trial.outcome, cause or OUTCOME_MEANING[trial.outcome], remedy), []).append(trial.number)
    return [
        FailureGroup(outcome=outcome, trials=tuple(numbers), cause=cause, remedy=remedy)
        for (outcome, cause, remedy), numbers in groups.items()
    ]


def files(view: RunView) -> Mapping[str, str]:
    """Return the run's files that exist, by what they are."""
    names = {
        "resolved study": "study.yaml",
        "summary": "summary.json",
        "trials": "trials",
        "vLLM configuration": "best/vllm.yaml",
        "TensorRT-LLM options": "best/options.yaml",
        "start script": "best/serve.sh",
        "evidence": "best/best.json",
        "report": "report.html",
    }
    return {what: str(view.path / name) for what, name in names.items() if (view.path / name).exists()}


def _result(view: RunView, trial: TrialRecord) -> str:
    objective = view.summary.decided_by(trial) if view.summary else trial.objective
    if objective is None:
        return f"trial {trial.number}, {OUTCOME_MEANING[trial.outcome]}"
    unit = " " + metric_label(view.spec.objective.metric)
    return f"trial {trial.number}, {with_interval(objective, unit)}"


def _finished(view: RunView) -> bool:
    return view.summary is not None and view.summary.finished
