"""The canary, and figures over levels of different lengths."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.endpoint import connect
from autotune.records.spec import FixedLength, LoadSpec, TraceArrivals, UniformLength, WorkloadSpec
from autotune.records.trial import Estimate, Fault, Measurement, Phase
from autotune.trial.canary import canary
from autotune.trial.judging import pooled
from autotune.trial.plans import canary_request, longest_request, plan_of
from tests.builders import objective, study_spec
from tests.engines.openai_stand_in import serving_api
from tests.fakes import ScriptedServer


def test_the_canary_of_a_synthetic_workload_is_its_longest_request() -> None:
    workload = WorkloadSpec(input_tokens=UniformLength(low=5, high=40), output_tokens=FixedLength(tokens=7))
    request = longest_request(objective(workload=workload))
    assert (request.prompt_tokens, len(request.prompt_ids or ()), request.output_tokens) == (40, 40, 7)
    spec = study_spec(objective=objective(workload=workload))
    assert canary_request(spec, ScriptedServer(result=1.0)) == request


def test_the_canary_of_a_dataset_is_its_longest_row(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "word " * n}], "max_tokens": 5} for n in (3, 900, 40)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    spec = study_spec(objective=objective(workload=WorkloadSpec(dataset=str(file))))
    request = canary_request(spec, ScriptedServer(result=1.0))
    assert request.messages is not None
    assert request.messages[0]["content"] == rows[1]["messages"][0]["content"]  # type: ignore[index]


def test_the_canary_of_a_trace_is_its_longest_request_with_tokens_that_no_level_sends(tmp_path: Path) -> None:
    rows = [{"timestamp": 10 * n, "input_length": 600 + n, "output_length": 5, "hash_ids": [1, n]} for n in range(9)]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    load = LoadSpec(trace=TraceArrivals(file=str(file)), warmup_s=0)
    spec = study_spec(objective=objective(workload=WorkloadSpec(), load=load))
    server = ScriptedServer(result=1.0)
    request, level = canary_request(spec, server), plan_of(spec, server, load, 0)
    assert (request.prompt_tokens, len(request.prompt_ids or ())) == (608, 608)
    assert not {(request.prompt_ids or ())[:16]} & {(sent.prompt_ids or ())[:16] for sent in level.requests}


@pytest.mark.integration
def test_an_engine_of_ours_that_wants_a_key_is_the_set_ups_fault_not_the_candidates() -> None:
    with serving_api(key="sk-of-the-right-kind", open_list=True) as api:
        launched = replace(connect(api.url), argv=("vllm", "serve"))
        failure = canary(study_spec(), launched, lambda _: None)
    assert failure is not None
    assert (failure.fault, failure.phase) == (Fault.SETUP, Phase.CANARY)
    assert "VLLM_API_KEY" in failure.remedy


def lasting(duration_s: float, **values: Estimate) -> Measurement:
    return Measurement(offered_rps=None, concurrency=8, duration_s=duration_s, requests=10, errors=0, values=values)


def test_a_rate_is_weighted_by_time_and_a_latency_by_its_samples() -> None:
    """10 a second for 10 s and 40 a second for 30 s are 1,300 in 40 s."""
    short = lasting(10, request_rps=Estimate(value=10, low=8, high=12, n=100))
    long = lasting(30, request_rps=Estimate(value=40, low=38, high=44, n=1200))
    assert pooled("request_rps", [short, long]) == Estimate(value=32.5, low=30.5, high=36, n=1300)
    few, many = (Estimate(value=v, low=v, high=v, n=n) for v, n in ((100.0, 100), (200.0, 300)))
    latencies = [replace(short, values={"ttft_ms.mean": few}), replace(long, values={"ttft_ms.mean": many})]
    found = pooled("ttft_ms.mean", latencies)
    assert found is not None
    assert found.value == pytest.approx(175)


def test_a_bound_that_one_level_lacks_stays_open_and_nothing_measured_is_none() -> None:
    bounded = lasting(10, request_rps=Estimate(value=10, low=8, high=None, n=1))
    both = pooled("request_rps", [bounded, bounded])
    assert both is not None
    assert both.low == pytest.approx(8)
    assert both.high is None
    assert pooled("request_rps", [lasting(10)]) is None
