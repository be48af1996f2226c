"""What each of several engines came to, in lines."""

from __future__ import annotations

from autotune.records.summary import EngineResult
from autotune.report.view import RunView
from autotune.report.words import TIMES, figure, interval, metric_label, plain, with_interval


def engines_lines(view: RunView) -> list[str]:
    """Return a line for each engine; none where there is only one, or no summary yet."""
    if view.summary is None:
        return []
    return [f"Engine {plain(result.name)}: {_text(view, result)}" for result in view.summary.engines]


def _text(view: RunView, result: EngineResult) -> str:
    parts = [_best(view, result), f"{result.launched} launched"]
    if result.ruled_out:
        parts.append(f"{result.ruled_out} ruled out")
    if result.given_up is not None:
        parts.append(plain(result.given_up))
    return "; ".join(parts)


def _best(view: RunView, result: EngineResult) -> str:
    if result.best is None:
        return "nothing met the objective"
    value = with_interval(result.objective, " " + metric_label(view.spec.objective.metric))
    if result.best == result.reference:
        return f"best is trial {result.best}, its reference, {value}"
    return f"best is trial {result.best}, {value}{_gain(result)}"


def _gain(result: EngineResult) -> str:
    if result.gain is None:
        return ""
    span = interval(result.gain.low, result.gain.high)
    return f", {figure(result.gain.value)}{TIMES} its own reference" + (f" ({span})" if span else "")
