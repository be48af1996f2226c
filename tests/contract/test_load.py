"""autotune's own load client against both engines: clean records, and counters that moved by what was sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psutil
import pytest

from autotune.load import build_level, probe, run_level
from autotune.records.spec import FixedLength, LoadSpec, UniformLength, WorkloadSpec
from autotune.records.trial import LevelPlan, Phase, RequestPlan, RequestRecord
from tests.contract.engines import MAX_MODEL_LEN, VOCAB_SIZE, Live
from tests.engines.children import wait_until
from tests.simulated.running import Client

WORKLOAD = WorkloadSpec(input_tokens=UniformLength(low=24, high=64), output_tokens=UniformLength(low=4, high=12))


def sent(records: Iterable[RequestRecord]) -> tuple[int, int, int]:
    """Requests, prompt tokens, output tokens, as the server's usage counted them."""
    found = list(records)
    return len(found), sum(r.prompt_tokens or 0 for r in found), sum(r.output_tokens or 0 for r in found)


def moved(engine: Live, before: Mapping[str, float]) -> tuple[float, ...]:
    now = engine.server.metrics()
    return tuple(now.get(name, 0.0) - before.get(name, 0.0) for name in engine.speaks.counts)


def assert_clean(engine: Live, records: Iterable[RequestRecord]) -> None:
    for record in records:
        assert (record.error, record.status, record.finish_reason) == (None, 200, engine.speaks.finish)
        assert record.prompt_tokens == record.asked_prompt_tokens
        assert record.output_tokens == record.asked_output_tokens or not engine.speaks.exact
        assert record.done_s is not None
        times = (record.sent_s, *record.chunk_s, record.done_s)
        assert list(times) == sorted(times)
        assert 1 <= len(record.chunk_s) <= record.asked_output_tokens


def level(engine: Live, load: LoadSpec, seed: int) -> LevelPlan:
    return build_level(
        WORKLOAD, load, seed=seed, vocab_size=engine.server.vocab_size, max_total_tokens=engine.server.max_model_len
    )


def test_a_probe_gives_the_record_of_its_one_request(engine: Live) -> None:
    request = RequestPlan(index=0, at_s=None, output_tokens=7, prompt_tokens=31, prompt_ids=tuple(range(300, 331)))
    record = probe(engine.server.endpoint, request, timeout_s=60, dialect=engine.speaks.dialect)
    assert_clean(engine, [record])
    assert len(record.chunk_s) == 7
    assert record.ttft_ms is not None
    assert record.ttft_ms > 0


def test_a_refused_probe_says_why(engine: Live) -> None:
    ids = tuple(range(300, 300 + MAX_MODEL_LEN + 1))
    record = probe(
        engine.server.endpoint,
        RequestPlan(index=0, at_s=None, output_tokens=1, prompt_ids=ids),
        timeout_s=60,
        dialect=engine.speaks.dialect,
    )
    assert record.status == 400
    assert "400" in (record.error or "")
    assert str(MAX_MODEL_LEN) in (record.error or "")


@pytest.mark.parametrize(
    ("load", "seed"),
    [
        (LoadSpec(concurrency=4, duration_s=2.0, warmup_s=0.5), 11),
        (LoadSpec(poisson_rps=8, duration_s=2.0, warmup_s=0.5), 12),
    ],
    ids=["closed", "poisson"],
)
def test_a_level_is_clean_and_the_counters_move_by_what_was_sent(engine: Live, load: LoadSpec, seed: int) -> None:
    before = engine.server.metrics()
    plan = level(engine, load, seed)

    def ask(_: object) -> None:
        """TensorRT-LLM keeps only its last 1,000 iterations for whoever asks."""
        engine.server.metrics()

    record = run_level(engine.server.endpoint, plan, on_progress=ask, dialect=engine.speaks.dialect)
    assert record.stopped is None
    assert len(record.requests) >= 8
    assert {request.warmup for request in record.requests} == {True, False}
    assert_clean(engine, record.requests)
    expected = sent(record.requests)[: len(engine.speaks.counts)]
    wait_until(lambda: moved(engine, before) == expected, f"counters that moved by {expected}")


def test_twice_as_many_requests_at_once_as_run_at_once_all_finish(engine: Live) -> None:
    """Nowhere does vLLM say which max_num_seqs it took: it shows only in what runs at once."""
    limit, running = 8, list[float]()
    workload = WorkloadSpec(input_tokens=FixedLength(tokens=40), output_tokens=FixedLength(tokens=96))
    load = LoadSpec(concurrency=2 * limit, max_requests=2 * limit, duration_s=60, warmup_s=0)
    plan = build_level(workload, load, seed=13, vocab_size=VOCAB_SIZE)
    record = run_level(
        engine.server.endpoint,
        plan,
        on_progress=lambda _: running.append(engine.server.metrics().get(engine.speaks.running or "", 0.0)),
        dialect=engine.speaks.dialect,
    )
    assert len(record.requests) == 2 * limit
    assert_clean(engine, record.requests)
    if engine.speaks.running is not None:
        assert 1 < max(running) <= limit


def test_the_metrics_that_autotune_relies_on_are_there_once_it_has_answered(engine: Live) -> None:
    """TensorRT-LLM's page is empty until then."""
    request = RequestPlan(index=0, at_s=None, output_tokens=2, prompt_tokens=16, prompt_ids=tuple(range(300, 316)))
    assert_clean(engine, [probe(engine.server.endpoint, request, timeout_s=60, dialect=engine.speaks.dialect)])
    wait_until(lambda: engine.server.metrics().keys() >= engine.speaks.metrics, "metrics")


def test_a_repeated_prompt_hits_nothing_since_prefix_caching_is_off(engine: Live) -> None:
    request = RequestPlan(index=0, at_s=None, output_tokens=1, prompt_tokens=384, prompt_ids=tuple(range(400, 784)))
    records = [probe(engine.server.endpoint, request, timeout_s=60, dialect=engine.speaks.dialect) for _ in range(2)]
    assert_clean(engine, records)
    if (hits := engine.speaks.prefix_hits) is not None:
        wait_until(lambda: hits in engine.server.metrics(), "metrics")
        assert engine.server.metrics()[hits] == 0
    assert all(not record.cached_tokens for record in records)


# --- what the server says about itself --------------------------------------------------------------------------------


def test_it_resolved_what_was_asked(engine: Live) -> None:
    resolved = engine.server.resolved()
    assert {name: resolved[name] for name in engine.speaks.resolved} == engine.speaks.resolved
    assert resolved["kv_cache_tokens"] >= MAX_MODEL_LEN


def test_it_warns_of_what_it_was_made_to_do_without(engine: Live) -> None:
    assert any(engine.speaks.warning in warning for warning in engine.server.warnings())


def test_it_is_alive_on_loopback_with_the_models_sizes(engine: Live) -> None:
    server = engine.server
    assert server.endpoint.host == "127.0.0.1"
    assert listening_hosts(engine.client) == {"127.0.0.1"}
    assert (server.max_model_len, server.vocab_size) == (MAX_MODEL_LEN, VOCAB_SIZE)
    assert server.startup_s > 0
    assert (server.exit_code(), server.failure(Phase.LOAD), server.cleanup) == (None, None, None)
    assert len(server.log_tail(5)) == 5


def test_start_up_was_told_in_phases(engine: Live) -> None:
    assert (engine.phases[0], engine.phases[-1]) == ("starting", "ready")
    assert len(set(engine.phases)) == len(engine.phases)


def test_the_command_line_carries_what_was_asked(engine: Live) -> None:
    argv = engine.server.argv
    assert argv[: len(engine.contender.command)] == engine.contender.command
    assert set(engine.speaks.words) <= set(argv)


def listening_hosts(client: Client) -> set[str]:
    """Addresses that the server's port is bound to."""
    listening = (c.laddr for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    return {address.ip for address in listening if address and address.port == client.port}
