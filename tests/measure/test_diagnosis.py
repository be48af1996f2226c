"""Why an SLO was missed, on simulated levels built so that the cause is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune import slo
from autotune.engines.simulated.virtual import Launch, run_level
from autotune.load import build_level
from autotune.measure import measure
from autotune.measure.diagnosis import diagnose
from autotune.measure.levers import PARAMETERS, Limit
from autotune.models.config import SchedulerConfig, from_vllm_args
from autotune.models.shapes import gpu_of, shape_of
from autotune.models.steptime import communication_ratio
from autotune.records.spec import (
    Bound,
    Direction,
    EngineKind,
    FixedLength,
    LoadSpec,
    ObjectiveSpec,
    PrefixSpec,
    Slo,
    WorkloadSpec,
)
from autotune.records.trial import ClientHealth, Diagnosis, Estimate, Measurement, Ruling, SloRuling, Verdict
from tests.measure.making import level as plain_level
from tests.measure.making import steady


def config(gpu: str = "h100", **args: Any) -> SchedulerConfig:
    shape, spec = shape_of("meta-llama/Llama-3.1-8B"), gpu_of(gpu)
    assert shape is not None
    assert spec is not None
    return from_vllm_args({"max_model_len": 8192, **args}, shape, spec)


def simulated(
    scheduler: SchedulerConfig, missed: Slo, tokens: tuple[int, int], load: LoadSpec, prefix: PrefixSpec | None = None
) -> tuple[Verdict, Measurement]:
    """A level of prompts and answers of `tokens` in virtual time, measured and judged."""
    prompt, output = (FixedLength(tokens=count) for count in tokens)
    objective = ObjectiveSpec(
        name="test",
        metric="output_tok_per_s",
        direction=Direction.MAXIMIZE,
        slos=(missed,),
        workload=WorkloadSpec(input_tokens=prompt, output_tokens=output, prefix=prefix),
        load=load,
    )
    plan = build_level(objective.workload, load, seed=1, vocab_size=128_000)
    level, _ = run_level(Launch(config=scheduler, seed=5), plan, 0)
    measurement = measure(level, metrics=(), slos=objective.slos, gpus=1, confidence=0.95)
    return slo.judge(objective, [(level, measurement)]), measurement


def diagnosed(
    metric: str,
    limit: float,
    tokens: tuple[int, int],
    *,
    rps: float | None = None,
    concurrency: int | None = None,
    duration_s: float = 30.0,
    **args: Any,
) -> Diagnosis:
    scheduler = config(**args)
    load = LoadSpec(poisson_rps=rps, concurrency=concurrency, duration_s=duration_s, warmup_s=5)
    verdict, measurement = simulated(scheduler, Slo(metric=metric, limit=limit), tokens, load)
    assert verdict.ruling is Ruling.FAIL
    found = diagnose(
        verdict,
        [measurement],
        engine=EngineKind.SIMULATED,
        resolved={
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        },
        communication_ratio=communication_ratio(scheduler, round(measurement.counters["server_running_mean"])),
    )
    assert found is not None
    assert found.evidence.startswith(f"{metric}: ")
    assert "\n" not in found.evidence
    return found


# --- each cause -------------------------------------------------------------------------------------------------------


def test_too_few_slots_are_queueing() -> None:
    found = diagnosed("ttft_ms.p90", 200, (128, 128), rps=20, max_num_seqs=8)
    assert (found.limit, found.parameters[0]) == ("queueing", "max_num_seqs")
    assert "all 8 slots were taken" in found.evidence


def test_long_prompts_one_at_a_time_are_prefill() -> None:
    found = diagnosed("ttft_ms.p90", 50, (7000, 16), rps=2, duration_s=120)
    assert (found.limit, found.parameters[0]) == ("prefill", "max_num_batched_tokens")
    assert "ms went into prefill" in found.evidence


def test_a_queue_behind_full_steps_is_prefill_too() -> None:
    found = diagnosed("ttft_ms.p90", 100, (7000, 16), rps=12)
    assert found.limit == "prefill"
    assert "behind prefills" in found.evidence


def test_a_queue_for_memory_is_kv_memory() -> None:
    found = diagnosed("ttft_ms.p90", 300, (3000, 20), rps=20, gpu_memory_utilization=0.26)
    assert (found.limit, found.parameters[0]) == ("KV memory", "gpu_memory_utilization")
    assert "KV cache was 98% full" in found.evidence


def test_preemptions_are_kv_memory() -> None:
    found = diagnosed("tpot_ms.p90", 8, (1000, 800), rps=6, duration_s=120, gpu_memory_utilization=0.26)
    assert found.limit == "KV memory"
    assert "preemptions among" in found.evidence


def test_many_decodes_at_once_are_decode() -> None:
    found = diagnosed("tpot_ms.p90", 6, (16, 400), concurrency=256)
    assert found.limit == "decode"
    assert "with 25" in found.evidence


def test_decodes_that_wait_for_prefills_are_prefill() -> None:
    found = diagnosed("itl_ms.p99", 20, (6000, 200), rps=4, max_num_batched_tokens=8192)
    assert found.limit == "prefill"
    assert "hold decodes up" in found.evidence


def test_gpus_without_a_fast_link_are_communication() -> None:
    found = diagnosed("tpot_ms.p90", 1, (16, 200), concurrency=64, gpu="l40s", tensor_parallel_size=4)
    assert (found.limit, found.parameters[0]) == ("communication", "tensor_parallel_size")
    assert "68%" in found.evidence


def test_an_api_server_at_its_end_is_host() -> None:
    found = diagnosed("ttft_ms.p90", 50, (16, 2), rps=2500, duration_s=4)
    assert (found.limit, found.parameters[0]) == ("host", "api_server_count")


@pytest.mark.parametrize(
    ("tokens", "args", "limit"),
    [((16, 400), {}, "decode"), ((7000, 4), {"max_num_seqs": 2}, "queueing")],
)
def test_a_whole_answer_is_limited_by_what_takes_most_of_it(
    tokens: tuple[int, int], args: dict[str, Any], limit: str
) -> None:
    assert diagnosed("e2e_ms.p90", 100, tokens, concurrency=32, duration_s=60, **args).limit == limit


# --- what is known by less --------------------------------------------------------------------------------------------


def measured(*, values: dict[str, float], **fields: Any) -> Measurement:
    whole = measure(plain_level(steady()), metrics=(), slos=(), gpus=1, confidence=0.95)
    known = {name: Estimate(value=value, low=None, high=None, n=9) for name, value in values.items()}
    return replace(whole, values=known, **fields)


def missed(metric: str, excess: float | None = 1.0, ruling: Ruling = Ruling.FAIL) -> SloRuling:
    return SloRuling(metric=metric, bound=Bound.MAX, limit=1.0, estimate=None, excess=excess, ruling=ruling)


def told(*rulings: SloRuling, levels: list[Measurement], **fields: Any) -> Diagnosis | None:
    verdict = Verdict(slos=rulings, ruling=Ruling.FAIL)
    return diagnose(verdict, levels, **({"engine": EngineKind.VLLM, "resolved": {}} | fields))


def test_a_client_that_can_not_keep_up_comes_before_all_else() -> None:
    level = replace(plain_level(steady()), client=ClientHealth(send_lag_p99_ms=900.0, cpu_ratio=0.1))
    slow = measure(level, metrics=(), slos=(), gpus=1, confidence=0.95)
    found = told(missed("ttft_ms.p99"), levels=[slow])
    assert found is not None
    assert found.limit == "load client"
    assert "900.0 ms" in found.evidence


def test_errors_are_errors() -> None:
    found = told(missed("error_ratio"), levels=[measured(values={}, errors=7)])
    assert found == Diagnosis(limit="errors", evidence="error_ratio: 7 of 240 requests failed")


def test_without_the_engines_word_a_late_first_token_stays_unexplained() -> None:
    found = told(missed("ttft_ms.p99"), levels=[measured(values={"ttft_ms.mean": 900.0})])
    assert found == Diagnosis(limit="unknown", evidence="ttft_ms.p99: the engine tells too little to say why")


def test_a_level_stopped_for_overload_was_queueing() -> None:
    level = measured(values={}, stopped="overload: 95 of 100 are late")
    found = told(missed("ttft_ms.p99"), levels=[level])
    assert found is not None
    assert (found.limit, found.evidence) == ("queueing", "ttft_ms.p99: overload: 95 of 100 are late")


def test_the_worst_slo_in_its_worst_level_is_explained() -> None:
    levels = [measured(values={"itl_ms.mean": itl_ms, "itl_ms.p99": itl_ms}) for itl_ms in (20.0, 80.0, 40.0)]
    rulings = [missed("ttft_ms.p99", 0.5), missed("itl_ms.p99", 3.0), missed("e2e_ms.p99", None)]
    found = told(*rulings, levels=levels)
    assert found is not None
    assert found.evidence == "itl_ms.p99: a decode step takes 80 ms"


def test_nothing_missed_is_nothing_to_explain() -> None:
    level = measured(values={})
    assert told(missed("ttft_ms.p99", ruling=Ruling.UNSURE), levels=[level]) is None
    assert told(missed("ttft_ms.p99"), levels=[]) is None


def test_every_engine_has_parameters_for_every_limit_that_it_can_move() -> None:
    movable = set(Limit) - {Limit.CLIENT, Limit.ERRORS, Limit.UNKNOWN}
    assert all(table.keys() == movable for table in PARAMETERS.values())


def test_parameters_are_those_of_the_engine() -> None:
    slots = {"server_queue_mean_ms": 800.0, "server_prefill_mean_ms": 10.0, "server_running_max": 64.0}
    level = measured(values={"ttft_ms.mean": 900.0}, counters=slots)
    found = told(missed("ttft_ms.p99"), levels=[level], engine=EngineKind.TENSORRT_LLM, resolved={"max_batch_size": 64})
    assert found is not None
    assert (found.limit, found.parameters[0]) == ("queueing", "max_batch_size")


# --- simulated levels are audited as real ones ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "load", [LoadSpec(concurrency=16, duration_s=20), LoadSpec(poisson_rps=5, duration_s=20)], ids=["closed", "open"]
)
@pytest.mark.parametrize("prefix", [None, PrefixSpec(tokens=64, groups=4)], ids=["alone", "shared"])
@pytest.mark.parametrize("utilisation", [0.24, 0.9], ids=["preempting", "roomy"])
def test_a_simulated_level_agrees_with_itself(load: LoadSpec, prefix: PrefixSpec | None, utilisation: float) -> None:
    generous = Slo(metric="ttft_ms.p90", limit=1e6)
    scheduler = config(gpu_memory_utilization=utilisation)
    _, measurement = simulated(scheduler, generous, (512, 512), load, prefix)
    assert measurement.untrusted == ()
    assert measurement.counters["server_requests"] >= 20
    shared = measurement.counters["server_prefix_hit_tokens"]
    assert (shared > 0) == (prefix is not None)


def test_tokens_and_requests_of_a_simulated_level_are_those_of_its_records() -> None:
    load = LoadSpec(poisson_rps=40, duration_s=10)
    plan = build_level(
        WorkloadSpec(input_tokens=FixedLength(tokens=64), output_tokens=FixedLength(tokens=32)), load, seed=3
    )
    level, _ = run_level(Launch(config=config(), seed=5), plan, 0)
    found = measure(level, metrics=(), slos=(), gpus=1, confidence=0.95).counters
    assert found["server_requests"] == len(level.requests)
    cut, _ = run_level(Launch(config=config(max_num_seqs=4), seed=5), replace(plan, drain_s=0.1), 0)
    assert any(r.error for r in cut.requests)
    counted = measure(cut, metrics=(), slos=(), gpus=1, confidence=0.95).counters
    assert counted["server_requests"] == len(cut.requests)
    assert found["server_output_tokens"] == sum(r.output_tokens or 0 for r in level.requests)
    assert found["server_prompt_tokens"] == sum(r.prompt_tokens or 0 for r in level.requests)
    ttft_ms = [r.ttft_ms or 0.0 for r in level.requests]
    assert found["server_ttft_mean_ms"] == pytest.approx(sum(ttft_ms) / len(ttft_ms))


def test_a_level_that_ended_early_since_its_verdict_was_settled_tells_nothing_of_a_queue() -> None:
    found = told(missed("ttft_ms.p99"), levels=[measured(values={}, stopped="settled: ttft_ms.p99 fails")])
    assert found is not None
    assert found.limit == "unknown"
