"""A level by another tool: what it is given, what is read back, and what happens when it can't be had."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.bench.aiperf import Aiperf
from autotune.bench.asked import Asked
from autotune.bench.crosscheck import checker, cross_check
from autotune.bench.replay import Replay, replay_of, with_other_tokens
from autotune.bench.vllm_bench import VllmBench, chunk_tokens, trace
from autotune.engines.endpoint import Card, EndpointServer
from autotune.errors import EnvironmentFault, InputError
from autotune.load import build_level
from autotune.records.spec import (
    CapacitySpec,
    FixedLength,
    LoadSpec,
    ObjectiveSpec,
    PrefixSpec,
    SessionSpec,
    UniformLength,
    WorkloadSpec,
)
from autotune.records.trial import ClientHealth, Endpoint, LevelRecord, RequestPlan, RequestRecord
from tests import builders

STUB = Path(__file__).parent / "stub_tool.py"
WORKLOAD = WorkloadSpec(input_tokens=UniformLength(low=20, high=40), output_tokens=UniformLength(low=5, high=9))


def stub(monkeypatch: pytest.MonkeyPatch, behaviour: str = "") -> str:
    monkeypatch.setenv("STUB_TOOL", behaviour)
    return f"{sys.executable} {STUB}"


def server(api_key: str | None = None) -> EndpointServer:
    return EndpointServer(
        endpoint=Endpoint(host="127.0.0.1", port=8000, model_name="m", api_key=api_key),
        card=Card(name="m", root="org/m"),
    )


def objective(load: LoadSpec, workload: WorkloadSpec = WORKLOAD) -> ObjectiveSpec:
    return builders.objective(load=load, workload=workload, slos=())


def level_by_us(asked: ObjectiveSpec, count: int) -> LevelRecord:
    """A level as if run: `count` requests, 100 ms to the first token, 1 ms a token after that."""
    plan = build_level(asked.workload, asked.load, seed=7)
    clients = asked.load.concurrency
    records = [record(plan.requests[index], clients) for index in range(count)]
    return LevelRecord(
        plan_seed=7,
        offered_rps=plan.offered_rps,
        concurrency=clients,
        window_s=(plan.warmup_s, plan.warmup_s + plan.duration_s),
        requests=tuple(records),
        client=ClientHealth(send_lag_p99_ms=0.1, cpu_ratio=0.1),
    )


def record(plan: RequestPlan, clients: int | None) -> RequestRecord:
    sent_s = plan.at_s if plan.at_s is not None else plan.index // (clients or 1) * 0.2
    chunks = tuple(sent_s + 0.1 + 0.001 * token for token in range(plan.output_tokens))
    return RequestRecord(
        index=plan.index,
        scheduled_s=plan.at_s,
        sent_s=sent_s,
        chunk_s=chunks,
        done_s=chunks[-1],
        status=200,
        prompt_tokens=plan.prompt_tokens,
        output_tokens=plan.output_tokens,
        asked_prompt_tokens=plan.prompt_tokens,
        asked_output_tokens=plan.output_tokens,
    )


LOADS = {
    "closed": LoadSpec(concurrency=4, duration_s=4.0, warmup_s=0.4),
    "open": LoadSpec(poisson_rps=20.0, duration_s=4.0, warmup_s=0.4),
}


# --- what it is given -------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**31),
    prefix=st.none() | st.builds(PrefixSpec, tokens=st.integers(1, 20), groups=st.integers(1, 4)),
)
def test_the_trace_keeps_lengths_and_shares_what_the_workload_shares_and_nothing_else(
    seed: int, prefix: PrefixSpec | None
) -> None:
    workload = WorkloadSpec(input_tokens=WORKLOAD.input_tokens, output_tokens=FixedLength(tokens=3), prefix=prefix)
    requests = build_level(workload, LOADS["closed"], seed=seed).requests[:30]
    chunk = chunk_tokens(requests)
    rows = list(trace(requests, chunk))
    for request, row in zip(requests, rows, strict=True):
        assert (row["input_length"], row["output_length"]) == (request.prompt_tokens, request.output_tokens)
        assert chunk * len(row["hash_ids"]) >= row["input_length"] > chunk * (len(row["hash_ids"]) - 1)
    heads = {request.prefix_group for request in requests if request.prefix_tokens}
    uses = Counter(hash_id for row in rows for hash_id in row["hash_ids"])
    assert {hash_id for hash_id, count in uses.items() if count > 1} <= heads
    assert all(row["hash_ids"][0] == r.prefix_group for r, row in zip(requests, rows, strict=True) if r.prefix_tokens)


def test_other_tokens_are_other_than_ours_but_shared_alike() -> None:
    workload = WorkloadSpec(
        input_tokens=FixedLength(tokens=40), output_tokens=FixedLength(tokens=3), prefix=PrefixSpec(tokens=16, groups=2)
    )
    ours = build_level(workload, LOADS["closed"], seed=1).requests[:20]
    theirs = with_other_tokens(ours, seed=2)
    assert [len(request.prompt_ids or ()) for request in theirs] == [40] * 20
    assert len({(request.prompt_ids or ())[:16] for request in theirs}) == 2
    assert len({(request.prompt_ids or ())[16:] for request in theirs}) == 20
    assert all(a.prompt_ids != b.prompt_ids for a, b in zip(ours, theirs, strict=True))


def test_aiperf_is_given_our_bodies_in_order(tmp_path: Path) -> None:
    asked = objective(LOADS["open"])
    replay = replay_of(level_by_us(asked, 5), asked, seed=3)
    arguments = Aiperf().arguments(replay, server(), tmp_path, ["aiperf", "profile", "--tokenizer", "t"])
    assert arguments.count("--tokenizer") == 0
    assert "--fixed-schedule" in arguments
    rows = [json.loads(line) for line in Path(arguments[arguments.index("--input-file") + 1]).read_text().splitlines()]
    assert [tuple(row["payload"]["prompt"]) for row in rows] == [request.prompt_ids for request in replay.requests]
    assert [row["timestamp"] for row in rows] == [round((r.at_s or 0) * 1e3) for r in replay.requests]


@pytest.mark.parametrize(
    "refused",
    [
        objective(LOADS["closed"], WorkloadSpec(dataset="/some.jsonl", output_tokens=FixedLength(tokens=1))),
        objective(
            LOADS["closed"],
            WorkloadSpec(
                input_tokens=FixedLength(tokens=1),
                output_tokens=FixedLength(tokens=1),
                sessions=SessionSpec(turns=FixedLength(tokens=2)),
            ),
        ),
        objective(LoadSpec(capacity=CapacitySpec())),
    ],
)
def test_what_another_tool_cannot_be_given_exactly_is_refused(refused: ObjectiveSpec) -> None:
    level = level_by_us(objective(LOADS["closed"]), 3)
    with pytest.raises(InputError, match=r"exactly|one level"):
        replay_of(level, refused, seed=1)


# --- side by side -----------------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("kind", LOADS)
def test_equal_requests_give_ratios_of_one_by_our_definition(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    asked = Asked(objective=objective(LOADS[kind]))
    level = level_by_us(asked.objective, 60)
    found = cross_check(checker("vllm-bench", stub(monkeypatch)), asked, server(), level, lambda _: None)
    rows = {row.metric: row for row in found.compared}
    assert (found.requests, found.failed) == (60, 0)
    for metric in ("ttft_ms.mean", "tpot_ms.p99", "e2e_ms.p50"):
        assert rows[metric].measured == pytest.approx(rows[metric].ours, rel=1e-6)
    assert rows["output_tok_per_s"].said == 1000.0
    if kind == "open":
        assert rows["output_tok_per_s"].measured == pytest.approx(rows["output_tok_per_s"].ours)
    else:  # 60 requests of 4 clients, 0.2 s each: its loop is full until 2.8 s
        assert found.window_s == pytest.approx((0.4, 2.8))


@pytest.mark.integration
def test_a_tool_that_fails_is_told_with_its_last_lines_and_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(objective=objective(LOADS["closed"]))
    checking = checker("vllm-bench", stub(monkeypatch, "fails"))
    with pytest.raises(EnvironmentFault, match=r"exit code 3[\s\S]*no tokenizer for this model") as fault:
        cross_check(checking, asked, server("sk-very-secret"), level_by_us(asked.objective, 8), lambda _: None)
    assert "sk-very-secret" not in str(fault.value)
    assert "<redacted>" in str(fault.value)


@pytest.mark.integration
def test_a_tool_that_leaves_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(objective=objective(LOADS["closed"]))
    with pytest.raises(EnvironmentFault, match="can't be read"):
        cross_check(checker("vllm-bench", "true"), asked, server(), level_by_us(asked.objective, 8), lambda _: None)


def test_a_tool_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"no program 'vllm'[\s\S]*pip install vllm"):
        checker("vllm-bench", None)
    with pytest.raises(InputError, match="vllm-bench, aiperf"):
        checker("genai-perf", None)
    with pytest.raises(InputError, match="quotes"):
        checker("aiperf", "aiperf 'profile")


# --- reading aiperf ---------------------------------------------------------------------------------------------------


def aiperf_row(sent_s: float, session: int, **more: Any) -> dict[str, Any]:
    """A line of profile_export.jsonl as aiperf 0.13 writes it, cut to what is read."""
    metrics = {
        "time_to_first_token": {"value": 100.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [1.0, 3.0], "unit": "ms"},
        "usage_prompt_tokens": {"value": 20, "unit": "tokens"},
        "usage_completion_tokens": {"value": 3, "unit": "tokens"},
    }
    metadata = {"session_num": session, "request_start_ns": round((5e8 + sent_s) * 1e9), "was_cancelled": False}
    return {"metadata": {**metadata, "benchmark_phase": "profiling"}, "metrics": metrics, **more}


def test_aiperfs_files_are_read(tmp_path: Path) -> None:
    asked = objective(LOADS["closed"])
    replay: Replay = replay_of(level_by_us(asked, 3), asked, seed=1)
    spread = {"avg": 2.0, "p50": 1.0, "p90": 3.0, "p95": 4.0, "p99": 5.0}
    summary = dict.fromkeys(("time_to_first_token", "inter_token_latency", "request_latency"), spread)
    rates = {"output_token_throughput": {"avg": 30.0}, "request_throughput": {"avg": 10.0}}
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps({**summary, **rates, "aiperf_version": "0.13.0"}))
    rows = [aiperf_row(0.5, 2), aiperf_row(0.25, 1), aiperf_row(1.0, 3, error={"code": 500})]
    (tmp_path / "profile_export.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answered = Aiperf().read(replay, tmp_path)
    assert answered.version == "0.13.0"
    assert answered.said["tpot_ms.p99"] == 5.0
    assert [request.sent_s for request in answered.requests] == pytest.approx([0.0, 0.25, 0.75])
    assert [request.error for request in answered.requests] == [None, None, "failed"]
    assert answered.requests[0].ttft_ms == pytest.approx(100.0)
    assert answered.requests[0].tpot_ms == pytest.approx(2.0)


@pytest.mark.parametrize("tool", [VllmBench(), Aiperf()])
def test_results_of_another_shape_are_told_as_such(tmp_path: Path, tool: VllmBench | Aiperf) -> None:
    asked = objective(LOADS["closed"])
    replay = replay_of(level_by_us(asked, 3), asked, seed=1)
    for name in ("result.json", "profile_export_aiperf.json", "profile_export.jsonl"):
        (tmp_path / name).write_text('{"new": "format"}\n')
    with pytest.raises(EnvironmentFault, match="format may have changed"):
        tool.read(replay, tmp_path)
