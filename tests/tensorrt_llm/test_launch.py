"""A launch of `trtllm-serve`, its stand-in in its place: ready, served, stopped; and each way in which it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.base import LaunchError, Server
from autotune.engines.tensorrt_llm.engine import TensorRtLlmEngine
from autotune.load import probe
from autotune.records.spec import EngineKind, EngineSpec, SimulateSpec
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Phase, RequestPlan, Role
from tests.builders import study_spec
from tests.engines.children import wait_until

pytestmark = pytest.mark.integration


def engine(*faults: str, timeout_s: float = 40.0) -> TensorRtLlmEngine:
    simulate = SimulateSpec(gpu="h100", face="server", time_scale=20, faults=faults)
    spec = EngineSpec(kind=EngineKind.TENSORRT_LLM, simulate=simulate, startup_timeout_s=timeout_s)
    return TensorRtLlmEngine(study_spec(engine=spec))


@contextmanager
def launched(engine: TensorRtLlmEngine, folder: Path, **args: Any) -> Iterator[Server]:
    candidate = Candidate(params={}, args={"max_seq_len": 512, **args}, role=Role.SEARCH, fingerprint="f")
    with engine.launch(candidate, trial_dir=folder, gpus=("0",), on_phase=lambda _: None) as server:
        yield server


def refused(engine: TensorRtLlmEngine, folder: Path, **args: Any) -> Failure:
    with pytest.raises(LaunchError) as caught, launched(engine, folder, **args):
        pass
    assert caught.value.cleanup is not None
    assert (caught.value.cleanup.left_processes, caught.value.cleanup.port_free) == (0, True)
    return caught.value.failure


def asked(server: Server, prompt: int = 16, output: int = 4) -> str | None:
    request = RequestPlan(index=0, at_s=None, output_tokens=output, prompt_ids=tuple(range(300, 300 + prompt)))
    return probe(server.endpoint, request, timeout_s=30).error


def test_every_tunable_is_in_the_file_and_none_on_the_command_line(tmp_path: Path) -> None:
    args = {"max_batch_size": 8, "kv_cache_config": {"dtype": "fp8"}, "stream_interval": 2}
    with launched(engine(), tmp_path, **args) as server:
        assert server.argv[:4] == (sys.executable, "-m", "autotune.engines.simulated.trtllm", "serve")
        assert [word for word in server.argv if word.startswith("--")] == ["--host", "--port", "--config"]
        told = yaml.safe_load(Path(server.argv[-1]).read_text())
        assert told == {"enable_iter_perf_stats": True, "max_seq_len": 512, **args}
        assert server.max_model_len == 512
        assert server.resolved()["max_batch_size"] == 8
        assert asked(server) is None
    assert server.cleanup is not None
    assert (server.cleanup.left_processes, server.cleanup.port_free) == (0, True)


def test_the_port_may_be_bound_long_before_it_listens(tmp_path: Path) -> None:
    with launched(engine("binds_without_listening:1"), tmp_path) as server:
        assert server.startup_s >= 1
        assert asked(server) is None


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ("weights", "CUDA out of memory"),
        ("profile", "Model resources created during usage"),
        ("kv_allocation", "could not be created: KV cache"),
        ("graph_capture", "CUDA out of memory"),
        ("sampler_warmup", "could not be created: Sampler"),
    ],
)
def test_memory_that_runs_out_in_any_phase_is_learned(tmp_path: Path, phase: str, said: str) -> None:
    failure = refused(engine(f"oom:{phase}"), tmp_path)
    assert (failure.outcome, failure.fault) == (Outcome.OOM_STARTUP, Fault.CANDIDATE)
    assert said in failure.cause


def test_a_shortened_sequence_is_infeasible_though_the_server_is_ready(tmp_path: Path) -> None:
    failure = refused(engine("oom:kv_too_small"), tmp_path, max_seq_len=160)  # the workload takes 160
    assert (failure.outcome, failure.fault) == (Outcome.OOM_STARTUP, Fault.CANDIDATE)
    assert failure.cause.startswith("Adjusted max_seq_len to 96")
    assert failure.edges["max_model_len_that_fits"] == 96


@pytest.mark.parametrize(
    ("rule", "outcome", "fault"),
    [
        ("no GPU", Outcome.ENVIRONMENT, Fault.SETUP),
        ("features together", Outcome.BAD_CONFIG, Fault.CANDIDATE),
        ("NCCL", Outcome.UNKNOWN, Fault.CANDIDATE),
        ("no MPI slots", Outcome.ENVIRONMENT, Fault.SETUP),
    ],
)
def test_a_start_that_fails_is_classified(tmp_path: Path, rule: str, outcome: Outcome, fault: Fault) -> None:
    failure = refused(engine(f"fails_like:{rule}"), tmp_path)
    assert (failure.outcome, failure.fault) == (outcome, fault)


def test_a_field_that_this_release_lacks_stops_the_study(tmp_path: Path) -> None:
    failure = refused(engine(), tmp_path, no_such_field=3)
    assert failure.fault is Fault.SETUP
    assert "Extra inputs are not permitted" in failure.cause


def test_a_start_that_hangs_is_ended_by_its_time(tmp_path: Path) -> None:
    failure = refused(engine("hang_at_start", timeout_s=3), tmp_path)
    assert failure.outcome is Outcome.UNKNOWN
    assert "ranks did not come up" in failure.cause


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [("dies_at_first_request", Outcome.CRASHED_UNDER_LOAD), ("oom_under_load:1", Outcome.OOM_LOAD)],
)
def test_a_rank_that_dies_under_load_is_seen_though_the_server_lives_on(
    tmp_path: Path, fault: str, outcome: Outcome
) -> None:
    with launched(engine(fault), tmp_path) as server:
        assert server.failure(Phase.LOAD) is None
        assert asked(server) is not None
        wait_until(lambda: server.failure(Phase.LOAD), "a failure that is seen")
        failure = server.failure(Phase.LOAD)
        assert failure is not None
        assert failure.outcome is outcome
        assert server.exit_code() is None
    assert server.cleanup is not None
    assert server.cleanup.left_processes == 0


def test_a_prompt_beyond_the_budget_is_refused_unless_it_may_be_cut(tmp_path: Path) -> None:
    for chunked in (False, True):
        folder = tmp_path / str(chunked)
        folder.mkdir()
        with launched(engine(), folder, max_num_tokens=64, max_batch_size=8, enable_chunked_prefill=chunked) as server:
            error = asked(server, prompt=100)
            assert error is None if chunked else "should not exceed max_num_tokens (64)" in (error or "")


def test_a_program_that_is_not_there_is_the_users_to_set(tmp_path: Path) -> None:
    spec = EngineSpec(kind=EngineKind.TENSORRT_LLM, command=("/no/such/trtllm-serve",))
    with pytest.raises(LaunchError) as caught, launched(TensorRtLlmEngine(study_spec(engine=spec)), tmp_path):
        pass
    assert caught.value.failure.fault is Fault.SETUP
    assert "trtllm-serve" in caught.value.failure.cause


def test_a_stand_in_is_never_taken_for_the_real_engine(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "autotune.engines.simulated.trtllm")
    spec = EngineSpec(kind=EngineKind.TENSORRT_LLM, command=command)
    failure = refused(TensorRtLlmEngine(study_spec(engine=spec)), tmp_path)
    assert failure.fault is Fault.SETUP
    assert "no TensorRT-LLM" in failure.cause


def test_telemetry_is_off_unless_the_study_says_otherwise(tmp_path: Path) -> None:
    from autotune.engines.tensorrt_llm.command import launch_plan

    for env, value in (({}, "1"), ({"TRTLLM_NO_USAGE_STATS": "0"}, "0")):
        spec = EngineSpec(kind=EngineKind.TENSORRT_LLM, env=env)
        plan = launch_plan(spec, "m", {}, folder=tmp_path, port=1, gpus=("0", "1"))
        assert plan.env["TRTLLM_NO_USAGE_STATS"] == value
        assert plan.env["CUDA_VISIBLE_DEVICES"] == "0,1"
