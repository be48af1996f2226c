"""How figures, configurations and outcomes read: the one wording that table, page and live view share.

Pure functions from records to plain text. Text that comes from logs, names or values passes through `plain`, so
that nothing in it can move a terminal's cursor or break a line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import Bound, Direction
from autotune.records.summary import Gain
from autotune.records.trial import Candidate, Diagnosis, Estimate, Outcome, Ruling, SloRuling, TrialRecord
from autotune.trial.differences import differences

OUTCOME_WORDS: Mapping[Outcome, str] = {
    Outcome.OK: "meets SLO",
    Outcome.SLO_MISS: "misses SLO",
    Outcome.UNSURE: "unsure",
    Outcome.RULED_OUT: "ruled out",
    Outcome.OOM_STARTUP: "no memory",
    Outcome.OOM_LOAD: "OOM in load",
    Outcome.BAD_CONFIG: "refused",
    Outcome.LAUNCH_FAILED: "no launch",
    Outcome.READY_TIMEOUT: "never ready",
    Outcome.CRASHED_UNDER_LOAD: "crashed",
    Outcome.WRONG_OUTPUT: "wrong text",
    Outcome.CLIENT_LIMITED: "client slow",
    Outcome.ENVIRONMENT: "environment",
    Outcome.INTERRUPTED: "interrupted",
    Outcome.UNKNOWN: "unknown",
}
"""At most eleven characters each: the column fits a terminal of 80."""

OUTCOME_MEANING: Mapping[Outcome, str] = {
    Outcome.OK: "ran and met every SLO",
    Outcome.SLO_MISS: "ran, but missed an SLO",
    Outcome.UNSURE: "ran, but the samples don't settle an SLO",
    Outcome.RULED_OUT: "refused before launch by a rule, the memory model or the engine's own check",
    Outcome.OOM_STARTUP: "ran out of memory while starting",
    Outcome.OOM_LOAD: "ran out of memory under load",
    Outcome.BAD_CONFIG: "the engine refused the configuration",
    Outcome.LAUNCH_FAILED: "the engine ended before it was ready",
    Outcome.READY_TIMEOUT: "the engine was not ready in time",
    Outcome.CRASHED_UNDER_LOAD: "the engine crashed under load",
    Outcome.WRONG_OUTPUT: "the engine's output was wrong",
    Outcome.CLIENT_LIMITED: "the load client couldn't keep up, so nothing was learned",
    Outcome.ENVIRONMENT: "the machine or the environment failed, not the configuration",
    Outcome.INTERRUPTED: "stopped before it was measured",
    Outcome.UNKNOWN: "failed for a reason that could not be told",
}

ABSENT = "-"
TIMES = "\u00d7"

SIMULATED = "SIMULATED: no real engine ran; not evidence"

_LABELS = {
    "output_tok_per_s": "output tok/s",
    "output_tok_per_s_per_gpu": "output tok/s/GPU",
    "total_tok_per_s": "total tok/s",
    "total_tok_per_s_per_gpu": "total tok/s/GPU",
    "request_rps": "requests/s",
    "goodput_rps": "goodput req/s",
    "goodput_rps_per_gpu": "goodput req/s/GPU",
    "usd_per_million_output_tok": "$/M output tok",
    "usd_per_useful_response": "$/useful response",
    "energy_wh_per_million_output_tok": "Wh/M output tok",
    "startup_s": "start-up s",
    "error_ratio": "error ratio",
    "gpu_memory_bytes": "GPU memory bytes",
}


def plain(text: str) -> str:
    """Return `text` with every character that doesn't print (controls, line breaks, bidi marks) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def one_line(text: str) -> str:
    """Return the telling line of a cause: the last of a traceback, else the first; `…` where more was left out."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    telling = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return plain(telling) + (" …" if len(lines) > 1 else "")


def metric_label(name: str) -> str:
    """Return a metric's heading: `ttft_ms.p99` → `p99 TTFT ms`, `output_tok_per_s` → `output tok/s`."""
    metric = parse_metric(name)
    if metric is None or metric.kind not in (MetricKind.QUANTILE, MetricKind.MEAN):
        return _LABELS.get(name, plain(name))
    base, _, unit = metric.base.partition("_")
    return f"{name.rpartition(metric.base + '.')[2]} {base.upper()} {unit}"


def figure(value: float | None, digits: int = 3) -> str:
    """Return a number to so many significant digits without an exponent; `-` for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def plus_minus(estimate: Estimate | None) -> str:
    """Return `312 ±19`: the value and half its interval; the bare value when a side of the interval is open."""
    if estimate is None:
        return ABSENT
    if estimate.low is None or estimate.high is None:
        return figure(estimate.value)
    return f"{figure(estimate.value)} ±{figure((estimate.high - estimate.low) / 2, digits=2)}"


def interval(low: float | None, high: float | None) -> str:
    """Return `295…330`; an open side reads `?`, and no interval at all is the empty text."""
    if low is None and high is None:
        return ""
    return f"{'?' if low is None else figure(low)}…{'?' if high is None else figure(high)}"


def with_interval(estimate: Estimate | Gain | None, unit: str = "") -> str:
    """Return `312 tok/s (295…330)`."""
    if estimate is None:
        return ABSENT
    span = interval(estimate.low, estimate.high)
    return f"{figure(estimate.value)}{unit}" + (f" ({span})" if span else "")


def slo_text(ruling: SloRuling) -> str:
    """Return `ttft_ms.p90 212 ≤ 1000 (180…260)`, with the sign that is true of the value, not the one wished for."""
    limit = figure(ruling.limit)
    if ruling.estimate is None:
        sign = "≤" if ruling.bound is Bound.MAX else "≥"
        return f"{plain(ruling.metric)} unmeasured (limit {sign} {limit})"
    value = ruling.estimate.value
    inside, outside = ("≤", ">") if ruling.bound is Bound.MAX else ("≥", "<")
    holds = value <= ruling.limit if ruling.bound is Bound.MAX else value >= ruling.limit
    span = interval(ruling.estimate.low, ruling.estimate.high)
    text = f"{plain(ruling.metric)} {figure(value)} {inside if holds else outside} {limit}"
    return f"{text} ({span})" if span else text


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Return `decode: tpot_ms.p99: a decode step takes 12 ms; usually moved by max_num_seqs, …`."""
    levers = f"; usually moved by {', '.join(diagnosis.parameters)}" if diagnosis.parameters else ""
    return plain(f"{diagnosis.limit}: {diagnosis.evidence}{levers}")


def by_ruling(trial: TrialRecord, ruling: Ruling) -> list[SloRuling]:
    """Return the SLOs of a trial that were ruled so."""
    return [slo for slo in trial.verdict.slos if slo.ruling is ruling] if trial.verdict else []


def value_text(value: object) -> str:
    """Return an engine argument's value as the engine's YAML spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return plain(str(value))


def differing(trial: Candidate | TrialRecord, reference: TrialRecord | None) -> list[str]:
    """Return what a trial has other than the reference ran with as `name=value`; what it lacks is `name=default`.
    Of several engines its own is named first."""
    whose = [] if trial.engine is None else [f"engine={plain(trial.engine)}"]
    return whose + [
        f"{plain(name)}={'default' if value is None else value_text(value)}"
        for name, value in differences(trial, reference).items()
    ]


def better(a: float, b: float, direction: Direction) -> bool:
    """Whether `a` is the better value of the objective."""
    return a > b if direction is Direction.MAXIMIZE else a < b


def leader(trials: Iterable[TrialRecord], direction: Direction) -> TrialRecord | None:
    """Return the trial that met every SLO with the best value so far, None when none did."""
    best: TrialRecord | None = None
    for trial in trials:
        if trial.outcome is not Outcome.OK or trial.objective is None or trial.final is not None:
            continue
        if best is None or best.objective is None or better(trial.objective.value, best.objective.value, direction):
            best = trial
    return best


def duration(seconds: float) -> str:
    """Return `42 s`, `3 min 05 s` or `2 h 07 min`."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def startup_text(seconds: float | None, kind: str | None) -> str:
    """Return `42 s`, or `310 s cold` for a start-up that found nothing in caches; "" for one that did not end."""
    return "" if seconds is None else f"{seconds:.0f} s{' cold' if kind == 'cold' else ''}"


def number_list(numbers: Sequence[int], shown: int = 6) -> str:
    """Return `3, 7, 9 and 12 more`."""
    text = ", ".join(str(number) for number in numbers[:shown])
    return f"{text} and {len(numbers) - shown} more" if len(numbers) > shown else text
