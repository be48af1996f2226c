"""Every fault does what its line in the table says, seen from outside the process."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.engines.simulated.faults import KINDS
from tests.simulated.running import Events, Server, launched, serving

pytestmark = pytest.mark.integration

FAST = ("--sim-time-scale", "30", "--max-model-len", "4096")
REAL_TIME = ("--max-model-len", "4096")  # where a test must meet requests while they run
_shown: set[str] = set()


def shows(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark which faults a test uses; the last test checks that none is left out."""
    _shown.update(names)
    return lambda test: test


def _fault(text: str) -> tuple[str, ...]:
    return (*FAST, "--sim-fault", text)


# --- start-up ---------------------------------------------------------------------------------------------------------


@shows("slow_start")
def test_a_slow_start_delays_readiness_by_its_seconds() -> None:
    began_s = time.monotonic()
    with serving(*_fault("slow_start:0.7")) as server:
        assert server.status("/health") == 200
        assert time.monotonic() - began_s >= 0.7


@shows("fails_like")
def test_a_start_can_fail_like_any_rule_of_tensorrt_llm() -> None:
    fault = ("--sim-fault", "fails_like:no room for the KV cache")
    with launched(*fault, module="autotune.engines.simulated.trtllm") as server:
        server.wait_for_line("The following component could not be created: KV cache")
        assert server.wait_exit() == 1


@shows("hang_at_start")
def test_a_hanging_start_never_listens_and_ends_on_sigterm_with_1() -> None:
    with launched(*_fault("hang_at_start")) as server:
        server.wait_for_line("Initializing a V1 LLM engine")
        assert server.status("/health") is None
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 1
        server.wait_for_line("KeyboardInterrupt: terminated")


OOM_LINES = {
    "free_memory": r"ValueError: Free memory on device cuda:0 \([\d.]+/[\d.]+ GiB\) on startup is less than desired",
    "weights": r"Failed to load model - not enough GPU memory.*CUDA out of memory",
    "profile": r"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    "kv_allocation": r"ValueError: No available memory for the cache blocks",
    "kv_too_small": r"\(4096\).*KV cache is needed.*estimated maximum model length is 3072",
    "graph_capture": r"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    "sampler_warmup": r"CUDA out of memory occurred when warming up sampler with 1024 dummy requests",
}
OOM_FRAMES = {"profile": "profile_run", "graph_capture": "capture_model", "weights": "load_model"}


@shows("oom")
@pytest.mark.parametrize("phase", OOM_LINES)
def test_out_of_memory_at_each_phase_leaves_the_engines_lines_and_exit_1(phase: str) -> None:
    with launched(*_fault(f"oom:{phase}")) as server:
        assert server.wait_exit() == 1
        server.wait_for_line(OOM_LINES[phase])
        server.wait_for_line(OOM_FRAMES.get(phase, "Traceback"))
        server.wait_for_line("Engine core initialization failed. See root cause above")
        sized = [line for line in server.lines if "GPU KV cache size" in line]
        assert bool(sized) == (phase in ("graph_capture", "sampler_warmup"))


@shows("binds_without_listening")
def test_a_bound_port_is_taken_but_refuses_connections() -> None:
    with launched(*_fault("binds_without_listening")) as server:
        server.wait_for_line("Initializing a V1 LLM engine")
        with socket.socket() as sock, pytest.raises(OSError, match="Address already in use"):
            sock.bind(("127.0.0.1", server.port))
        assert server.status("/health") is None


@shows("always_503")
def test_always_503_answers_health_and_requests_alike() -> None:
    with serving(*_fault("always_503")) as server:
        assert server.status("/health") == 503
        assert server.complete([1], 1).status == 503


@shows("drops_flag")
def test_a_dropped_flag_is_accepted_and_ignored() -> None:
    with serving(*_fault("drops_flag:enable_prefix_caching"), "--no-enable-prefix-caching") as server:
        server.wait_for_line("non-default args: .*'enable_prefix_caching': False")
        server.wait_for_line("Initializing a V1 LLM engine .*enable_prefix_caching=True")
        assert server.metric("vllm:cache_config_info", enable_prefix_caching="True") == 1


# --- stopping ---------------------------------------------------------------------------------------------------------


@shows("ignores_sigterm_starting")
def test_sigterm_during_start_up_can_be_lost() -> None:
    with launched(*_fault("ignores_sigterm_starting"), "--sim-fault", "slow_start:1") as server:
        server.wait_for_line("Initializing a V1 LLM engine")
        server.signal(signal.SIGTERM)
        server.wait_healthy()
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0


@shows("ignores_sigterm")
def test_sigterm_can_be_ignored_always() -> None:
    with serving(*REAL_TIME, "--sim-fault", "ignores_sigterm") as server:
        server.signal(signal.SIGTERM)
        assert [server.complete([1], 40).status for _ in range(2)] == [200, 200]  # a stopping one takes no second
        assert not any("shutdown" in line for line in server.lines)


@shows("leaves_children")
def test_a_child_in_its_own_session_outlives_the_server() -> None:
    with serving(*_fault("leaves_children:60")) as server:
        child = int(server.wait_for_line(r"Started engine core process (\d+)")[1])
        try:
            server.signal(signal.SIGTERM)
            assert server.wait_exit() == 0
            assert os.getsid(child) == child
            assert _ignored_signals(child) & 1 << (signal.SIGTERM - 1)
        finally:
            os.kill(child, signal.SIGKILL)


def _ignored_signals(pid: int) -> int:
    """The mask of signals that a process ignores, as Linux tells it."""
    mask = re.search(r"^SigIgn:\s+([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert mask
    return int(mask[1], 16)


@shows("leaves_shm")
def test_a_shared_memory_file_stays_behind() -> None:
    with serving(*_fault("leaves_shm")) as server:
        path = Path(server.wait_for_line(r"Created shared memory (\S+)")[1])
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
    assert path.parent == Path("/dev/shm")
    assert path.stat().st_size > 0
    path.unlink()


# --- dying and hanging ------------------------------------------------------------------------------------------------


@shows("dies_at_first_request")
def test_death_at_the_first_request_ends_with_1() -> None:
    with serving(*_fault("dies_at_first_request")) as server:
        events = server.stream([1, 2], 5)
        assert (events.status, events.texts, events.done) == (200, [], True)
        assert "EngineCore encountered an issue" in events.errors[0]["message"]
        assert server.wait_exit() == 1
        server.wait_for_line("illegal memory access")


@shows("dies_after")
def test_death_after_requests_cuts_the_next_one_off() -> None:
    with serving(*_fault("dies_after:2")) as server:
        assert [server.complete([n], 2).status for n in (1, 2)] == [200, 200]
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            server.complete([3], 2)
        assert server.wait_exit() == -signal.SIGKILL


@shows("dies_mid_stream")
def test_death_mid_stream_is_an_error_event_after_200_and_exit_0() -> None:
    with serving(*REAL_TIME, "--sim-time-scale", "2", "--sim-fault", "dies_mid_stream:5") as server:
        events = server.stream([1, 2], 50)
        assert (events.status, events.done, len(events.texts)) == (200, True, 5)
        assert events.errors[0]["code"] == 500
        assert server.status("/health") == 503
        assert server.complete([1], 1).status == 500
        assert server.wait_exit() == 0
        server.wait_for_line("Worker proc VllmWorker-0 died unexpectedly")
        server.wait_for_line("EngineDeadError")


def _streams(count: int, stream: Callable[[int], Events]) -> list[Events]:
    """Run several streams at the same time."""
    results: list[Events] = []
    threads = [threading.Thread(target=lambda n=n: results.append(stream(n))) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@shows("oom_under_load")
def test_out_of_memory_under_load_needs_the_load() -> None:
    with serving(*REAL_TIME, "--sim-fault", "oom_under_load:3") as server:
        assert server.stream([1], 5).errors == []
        results = _streams(3, lambda n: server.stream([n], 2000))
        assert all(events.errors and events.done for events in results)
        assert server.wait_exit() == 0
        server.wait_for_line("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")


@shows("hang_under_load")
def test_a_hang_under_load_gives_no_token_but_stays_healthy() -> None:
    with serving(*REAL_TIME, "--sim-fault", "hang_under_load:2") as server:
        assert len(server.stream([1], 5).texts) == 5
        body = {"prompt": [1], "max_tokens": 4000, "ignore_eos": True}
        with server.streaming("/v1/completions", body) as first:
            assert first.readline().startswith(b"data: ")
            with server.streaming("/v1/completions", body, timeout_s=0.5) as second, pytest.raises(TimeoutError):
                second.read()
            assert server.status("/health") == 200
            assert server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") >= 1


# --- answering wrongly ------------------------------------------------------------------------------------------------


@shows("error_event")
def test_a_share_of_requests_gets_an_error_event_with_200() -> None:
    with serving(*_fault("error_event:0.5")) as server:
        events = [server.stream([1], 2) for _ in range(4)]
        assert [bool(stream.errors) for stream in events] == [False, True, False, True]
        assert {stream.status for stream in events} == {200}
        assert [len(stream.texts) for stream in events] == [2, 0, 2, 0]


@shows("half_chunk")
def test_a_stream_is_cut_inside_a_chunk() -> None:
    with serving(*_fault("half_chunk")) as server:
        body = {"prompt": [1], "max_tokens": 5, "ignore_eos": True}
        with server.streaming("/v1/completions", body) as response:
            assert response.status == 200
            with pytest.raises(http.client.IncompleteRead) as cut:
                response.read()
        assert cut.value.partial.count(b"data: ") == 1, "one whole event arrived"


@shows("wrong_usage", "missing_usage", "empty_tokens")
def test_usage_and_text_can_be_wrong_missing_and_empty() -> None:
    options = {"stream_options": {"include_usage": True}}
    with serving(*_fault("wrong_usage"), "--sim-fault", "empty_tokens") as server:
        events = server.stream([1, 2, 3], 4, **options)
        assert set(events.texts) == {""}
        usage = events.bodies[-1]["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2, 8)
    with serving(*_fault("missing_usage")) as server:
        events = server.stream([1, 2, 3], 4, **options)
        assert len(events.texts) == 4
        assert all("usage" not in body for body in events.bodies)
        assert "usage" not in server.complete([1], 1).json


@shows("tokens_per_chunk")
def test_chunks_can_carry_several_tokens() -> None:
    with serving(*_fault("tokens_per_chunk:3")) as server:
        assert [len(text.split()) for text in server.stream([1], 8).texts] == [3, 3, 2]


# --- timing and counters ----------------------------------------------------------------------------------------------


@shows("drifting_speed")
def test_speed_can_drift() -> None:
    with serving(*REAL_TIME, "--sim-time-scale", "3", "--sim-fault", "drifting_speed:600") as server:
        gaps_s = server.stream([1], 41).gaps_s
    assert statistics.median(gaps_s[-10:]) > 2 * statistics.median(gaps_s[:10])


@shows("slow_token")
def test_single_tokens_can_stall() -> None:
    with serving(*REAL_TIME, "--sim-fault", "slow_token:0.5") as server:
        gaps_s = server.stream([1], 30).gaps_s
    assert max(gaps_s) > 0.5 > 5 * statistics.median(gaps_s)


@shows("prefix_hits")
def test_prefix_hits_can_be_planted() -> None:
    fresh = [list(range(start, start + 400)) for start in (1, 1001, 2001)]
    with serving(*FAST) as honest, serving(*_fault("prefix_hits:0.5")) as planted:
        for prompt in fresh:
            honest.complete(prompt, 1)
            planted.complete(prompt, 1)
        assert honest.metric("vllm:prefix_cache_hits_total") == 0
        assert planted.metric("vllm:prefix_cache_hits_total") == 2 * 192  # half of 400, in whole blocks of 16


@shows("lies_in_metrics")
def test_metrics_can_lie() -> None:
    with serving(*_fault("lies_in_metrics")) as server:
        server.complete(list(range(100)), 10)
        server.complete(list(range(100)), 10)
        assert server.metric("vllm:generation_tokens_total") == 10
        assert server.metric("vllm:prompt_tokens_total") == 100
        assert server.metric("vllm:prefix_cache_hits_total") == 0


def _spoken(server: Server) -> tuple[list[list[int]], list[float]]:
    """Answers to some prompts, and what their prompts' log-probabilities sum to."""
    fields = {"logprobs": 1, "prompt_logprobs": 0, "return_token_ids": True}
    choices = [server.complete([n, n + 1, n + 2], 40, **fields).json["choices"][0] for n in range(1, 65, 2)]
    likely = [sum(next(iter(entry.values()))["logprob"] for entry in c["prompt_logprobs"][1:]) for c in choices]
    return [c["token_ids"] for c in choices], likely


@shows("wrong_output")
def test_wrong_output_is_another_text_of_lower_probability_where_its_flag_is_set() -> None:
    fault = _fault("wrong_output:kv_cache_dtype=fp8")
    with serving(*FAST) as sound, serving(*fault) as unflagged, serving(*fault, "--kv-cache-dtype", "fp8") as wrong:
        (right, likely), (other, less_likely) = _spoken(sound), _spoken(wrong)
        assert _spoken(unflagged) == (right, likely)
    assert all(a[0] != b[0] for a, b in zip(right, other, strict=True))
    assert [a - b for a, b in zip(likely, less_likely, strict=True)] == pytest.approx([4.0] * len(likely))


@shows("perturbed_output")
def test_perturbed_output_is_nearly_the_same() -> None:
    with serving(*FAST) as sound, serving(*_fault("perturbed_output")) as perturbed:
        (right, likely), (other, changed) = _spoken(sound), _spoken(perturbed)
    assert right != other
    assert sum(a == b for a, b in zip(right, other, strict=True)) > len(right) / 2
    assert all(0 < abs(a - b) < 0.05 for a, b in zip(likely, changed, strict=True))


def test_every_fault_in_the_table_is_shown_by_a_test() -> None:
    assert _shown == {kind.name for kind in KINDS}


def test_faults_come_from_the_environment_too() -> None:
    with serving(*FAST, env={"AUTOTUNE_SIM_FAULTS": "empty_tokens,tokens_per_chunk:2"}) as server:
        assert server.stream([1], 4).texts == ["", ""]


def test_an_unknown_fault_is_refused_with_the_nearest_name() -> None:
    with launched("--sim-fault", "slowstart:3") as server:
        assert server.wait_exit() == 2
        assert re.search("slow_start", server.wait_for_line("unknown fault 'slowstart'").string)
