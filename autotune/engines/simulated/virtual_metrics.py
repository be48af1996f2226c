"""What the /metrics page would have shown while a level ran in virtual time: vLLM's names, simulated figures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from autotune.models.config import SchedulerConfig
from autotune.models.memory import plan_memory
from autotune.models.simulation import SimResult
from autotune.records import counters
from autotune.records.trial import ServerSample, Telemetry

Floats = NDArray[np.float64]

SAMPLES = 60  # as many as of a real level of a minute
BEFORE_S = 0.1


def telemetry(result: SimResult, config: SchedulerConfig, window_end_s: float) -> Telemetry:
    """Samples at even distances from before the level to its end, when what is still running is aborted.

    The share of the KV cache is that of the tokens of running requests, an even pace from first to last token assumed.
    """
    at_s = np.append(-BEFORE_S, np.linspace(0.0, max(result.end_s, window_end_s), SAMPLES))
    series = {**_gauges(result, config, at_s), **_counts(result, at_s), **_histograms(result, at_s)}
    columns = {names[0] + suffix: values for (names, suffix), values in series.items()}
    return Telemetry(
        server=tuple(
            ServerSample(at_s=float(at), values={name: float(values[i]) for name, values in columns.items()})
            for i, at in enumerate(at_s)
        )
    )


Series = Mapping[tuple[counters.Names, str], Floats]


def _gauges(result: SimResult, config: SchedulerConfig, at_s: Floats) -> Series:
    sent, admitted, finished = (_reached(times, at_s) for times in _times(result))
    running, waiting = admitted - finished, sent - admitted
    running[-1] = waiting[-1] = 0
    kv_tokens = plan_memory(config).blocks * config.block_size
    return {
        (counters.RUNNING, ""): running,
        (counters.WAITING, ""): waiting,
        (counters.KV_USE_RATIO, ""): np.minimum(_kv_tokens(result, at_s) / kv_tokens, result.kv_peak_ratio),
    }


def _times(result: SimResult) -> tuple[Floats, Floats, Floats]:
    issued = slice(result.issued)
    return result.sent_s[issued], result.admitted_s[issued], result.finish_s[issued]


def _kv_tokens(result: SimResult, at_s: Floats) -> Floats:
    """Tokens of running requests; each counts its prompt, and its output as far as it is at that time."""
    _, admitted, finish = _times(result)
    first = result.first_s[: result.issued]
    end = np.where(np.isnan(finish), result.end_s, finish)
    pace = result.output_tokens[: result.issued] / np.maximum(end - first, 1e-9)
    now = at_s[:, None]
    produced = np.nan_to_num(np.clip(now - first, 0.0, end - first) * pace)
    running = (admitted <= now) & (now < end)
    tokens: Floats = np.where(running, result.prompt_tokens[: result.issued] + produced, 0.0).sum(axis=1)
    tokens[-1] = 0.0
    return tokens


def _counts(result: SimResult, at_s: Floats) -> Series:
    """Counters that the simulation gives for the whole run grow as its requests are admitted."""
    _, admitted, finish = _times(result)
    share = _reached(admitted, at_s) / max(1, int(np.sum(~np.isnan(admitted))))
    tokens = result.token_times()[: result.issued]
    finished = _reached(finish, at_s)
    finished[-1] = result.issued  # those that the end cuts are aborted
    return {
        (counters.FINISHED, ""): finished,
        (counters.PROMPT_TOKENS, ""): _sum_at(
            result.first_s[: result.issued], result.prompt_tokens[: result.issued], at_s
        ),
        (counters.OUTPUT_TOKENS, ""): _reached(np.concatenate(tokens) if tokens else np.empty(0), at_s),
        (counters.PREEMPTIONS, ""): share * result.preemptions,
        (counters.PREFIX_QUERIES, ""): share * result.queried_tokens,
        (counters.PREFIX_HITS, ""): share * result.hit_tokens,
        (counters.STEP_TOKENS, "_count"): share * result.steps,
        (counters.STEP_TOKENS, "_sum"): share
        * (result.produced_tokens + max(0, result.queried_tokens - result.hit_tokens)),
    }


def _histograms(result: SimResult, at_s: Floats) -> Series:
    """Sums and counts of latencies: the first token's when it came, the others at the request's end."""
    sent, admitted, finish = _times(result)
    issued = slice(result.issued)
    first, ready, prefilled = result.first_s[issued], result.ready_s[issued], result.prefilled_s[issued]
    gaps = np.maximum(result.output_tokens[: result.issued] - 1, 1)
    observed = {
        counters.TTFT_S: (first - sent, first),
        counters.QUEUE_S: (admitted - ready, finish),
        counters.PREFILL_S: (prefilled - admitted, finish),
        counters.DECODE_S: (finish - first, finish),
        counters.TPOT_S: ((finish - first) / gaps, finish),
    }
    return {
        (names, suffix): values
        for names, (amounts, when) in observed.items()
        for suffix, values in (("_sum", _sum_at(when, amounts, at_s)), ("_count", _reached(when, at_s)))
    }


def _reached(times: Floats, at_s: Floats) -> Floats:
    """How many of `times` had come; NaN never comes."""
    found: Floats = np.searchsorted(np.sort(times[~np.isnan(times)]), at_s, side="right").astype(np.float64)
    return found


def _sum_at(times: Floats, amounts: NDArray[np.generic], at_s: Floats) -> Floats:
    """The sum of the amounts whose time had come."""
    there = ~np.isnan(times)
    order = np.argsort(times[there])
    totals = np.concatenate(([0.0], np.cumsum(np.asarray(amounts, dtype=np.float64)[there][order])))
    found: Floats = totals[np.searchsorted(times[there][order], at_s, side="right")]
    return found
