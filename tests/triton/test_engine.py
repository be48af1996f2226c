"""Triton as an engine: what a study may ask of it, how its deaths are told, and a launch of its stand-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.base import LaunchError, Refusal, Server, engine_for
from autotune.engines.failures import Rule
from autotune.engines.simulated.process import StartupFailure
from autotune.engines.simulated.triton_repository import read_repository
from autotune.engines.triton.diagnosis import diagnose, knowledge
from autotune.engines.triton.engine import TritonEngine, read_model_yaml
from autotune.engines.triton.repository import repository
from autotune.load import probe
from autotune.records.spec import ContainerSpec, EngineKind, EngineSpec, SimulateSpec, SpaceSpec, StudySpec
from autotune.records.trial import Candidate, Fault, Outcome, Phase, RequestPlan, Role
from tests.builders import study_spec
from tests.contract.engines import TRITON
from tests.engines.children import wait_until


def simulated(*faults: str, **args: Any) -> StudySpec:
    simulate = SimulateSpec(gpu="h100", face="server", time_scale=20, faults=faults)
    return study(EngineSpec(kind=EngineKind.TRITON, simulate=simulate, startup_timeout_s=60, args=args))


def study(engine: EngineSpec) -> StudySpec:
    space = SpaceSpec(name="none", engine=EngineKind.TRITON, parameters=())
    return study_spec(engine=engine, search_space=space)


@contextmanager
def launched(spec: StudySpec, folder: Path, **args: Any) -> Iterator[Server]:
    candidate = Candidate(params={}, args={"max_seq_len": 512, **args}, role=Role.SEARCH, fingerprint="f")
    with TritonEngine(spec).launch(candidate, trial_dir=folder, gpus=("0", "1"), on_phase=lambda _: None) as server:
        yield server


def asked(server: Server, first: int = 300) -> str | None:
    plan = RequestPlan(index=0, at_s=None, output_tokens=4, prompt_ids=tuple(range(first, first + 16)))
    return probe(server.endpoint, plan, timeout_s=60, dialect=TRITON.dialect).error


# --- a study's arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said", "hint"),
    [
        ({"dynamic_batching.max_queue_delay_ms": 5}, "has no `dynamic_batching.max_queue_delay_ms`", "microseconds"),
        ({"dynamic_batching": {"preferred_size": 4}}, "has no", "preferred_batch_size"),
        ({"dynamic_batching.preferred_batch_size": [4, 0]}, "0 is below 1", ""),
        ({"instance_group.count": "two"}, "not a whole number", ""),
        ({"triton_config.decoupled": False}, "belongs to the tuner", "remove it"),
        ({"dynamic_batching.preferred_batch_size": 8, "triton_config.max_batch_size": 4}, "is above", ""),
        ({"max_num_seqs": 4}, "has no field `max_num_seqs`", "max_batch_size"),
    ],
)
def test_what_triton_or_tensorrt_llm_would_refuse_is_told_with_a_hint(
    args: dict[str, Any], said: str, hint: str
) -> None:
    spec = simulated(**args)
    (problem,) = TritonEngine(spec).problems(spec)
    assert said in problem.message
    assert hint in problem.hint


def test_good_arguments_have_no_problems_and_the_engine_is_found_by_its_kind() -> None:
    spec = simulated(**TRITON.args)
    assert list(engine_for(spec).problems(spec)) == []
    assert engine_for(spec).kind is EngineKind.TRITON


def test_an_image_without_a_release_is_told_with_one_of_tritons() -> None:
    container = ContainerSpec(image="nvcr.io/nvidia/tritonserver")
    spec = study(EngineSpec(kind=EngineKind.TRITON, container=container))
    (problem,) = TritonEngine(spec).problems(spec)
    assert "trtllm-python-py3" in problem.hint


def test_instances_beyond_the_gpus_are_refused_before_a_launch() -> None:
    with TritonEngine(simulated()).preflight(gpus=("0", "1"), tell=print) as preflight:
        assert preflight is not None
        refused = preflight.ask({"instance_group.count": 2, "tensor_parallel_size": 2})
        assert preflight.ask({"instance_group.count": 2}) is None
    assert isinstance(refused, Refusal)
    assert "2 instances of 2 GPUs each take 4 GPUs" in refused.failure.cause


def test_a_model_yaml_is_taken_over() -> None:
    text = "model: m\nbackend: pytorch\nmax_batch_size: 8\ntriton_config: {max_batch_size: 0, decoupled: True}\n"
    assert read_model_yaml(text) == {"max_batch_size": 8}
    assert read_model_yaml("triton_config: {max_batch_size: 16}") == {"triton_config.max_batch_size": 16}


def test_a_real_triton_needs_the_tokenizer_here_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    spec = study_spec(model="org/m", engine=EngineSpec(kind=EngineKind.TRITON, command=(sys.executable,)))
    with pytest.raises(LaunchError) as caught, launched(spec, tmp_path):
        pass
    assert caught.value.failure.fault is Fault.SETUP
    assert "autotune prepare" in caught.value.failure.remedy


# --- deaths -----------------------------------------------------------------------------------------------------------

RELAYED = (
    "E0117 09:50:01.977892 4096 model_lifecycle.cc:626] \"failed to load 'tensorrt_llm' version 1: Internal: {line}\"\n"
    "error: creating server: Internal - failed to load all models\n"
)


@pytest.mark.parametrize("rule", knowledge().rules, ids=lambda rule: rule.name)
def test_every_rule_finds_its_own_examples(rule: Rule) -> None:
    for example in rule.examples:
        found = diagnose(1, Phase.LAUNCH, RELAYED.format(line=example))
        assert (found.remedy, found.fault) == (rule.remedy, rule.fault)


def test_what_tensorrt_llm_says_inside_is_told_as_its_own() -> None:
    found = diagnose(1, Phase.LAUNCH, RELAYED.format(line="ValueError: No GPU devices found on the node"))
    assert (found.outcome, found.fault) == (Outcome.ENVIRONMENT, Fault.SETUP)
    assert found.cause.startswith("ValueError: No GPU devices")


def test_a_stub_that_dies_under_load_is_the_candidates() -> None:
    log = "E0117 09:50:01.977892 4096 pb_stub.cc:1] \"Stub process 'tensorrt_llm_0_0' is not healthy.\"\n"
    assert diagnose(None, Phase.LOAD, log).fault is Fault.CANDIDATE


# --- the stand-in -----------------------------------------------------------------------------------------------------


def in_folder(folder: Path, **args: Any) -> Path:
    for name, text in repository(args, model="meta-llama/Llama-3.1-8B-Instruct").items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("tensorrt_llm/config.pbtxt", ("[ 8 ]", "[ 99 ]"), "preferred size must be <= max batch size"),
        ("tensorrt_llm/config.pbtxt", ("max_batch_size: 64", "max_batch_size: 65"), "configuration specified"),
        ("tensorrt_llm/config.pbtxt", ('"gpu_device_ids"', '"other"'), "gpu_device_ids parameter required"),
        ("tensorrt_llm/config.pbtxt", ("0;1", "0"), "gpu_device_ids mismatch"),
        ("tensorrt_llm/config.pbtxt", ("{", "${"), "failed to read text proto"),
        ("tensorrt_llm/1/model.yaml", ("decoupled: true", "decoupled: false"), "decoupled mode"),
        ("ensemble/config.pbtxt", ('"streaming"', '"stream_it"'), "does not fit"),
        ("ensemble/config.pbtxt", ('{ key: "streaming" value: "stream" },', ""), "is not used"),
        ("ensemble/config.pbtxt", ('model_name: "tensorrt_llm"', 'model_name: "x"'), "which is not found"),
    ],
)
def test_the_stand_in_refuses_a_repository_as_triton_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, change: tuple[str, str], said: str
) -> None:
    folder = in_folder(tmp_path, **{"dynamic_batching.preferred_batch_size": 8, "instance_group.count": 2})
    assert read_repository(folder).instances == 2
    path = folder / file
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(StartupFailure):
        read_repository(folder)
    told = capsys.readouterr()
    assert said in told.out + told.err


@pytest.mark.integration
def test_requests_wait_in_tritons_queue_for_the_preferred_batch(tmp_path: Path) -> None:
    """The delay is far longer than the test may take: only the batch's size lets requests through."""
    batching = {"max_queue_delay_microseconds": 600_000_000 * 20, "preferred_batch_size": 2}
    with launched(simulated(), tmp_path, dynamic_batching=batching) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(asked, server)
        wait_until(lambda: server.metrics().get("triton:waiting_requests") == 1, "the first in the queue")
        second = pool.submit(asked, server, 400)
        assert (first.result(60), second.result(60)) == (None, None)
        wait_until(lambda: server.metrics().get("triton:completed_requests_total") == 2, "both counted")
        metrics = server.metrics()
        assert (metrics["triton:executions_total"], metrics["triton:waiting_requests"]) == (1, 0)
        assert metrics["triton:queue_seconds_sum"] > 0
    assert server.cleanup is not None
    assert (server.cleanup.left_processes, server.cleanup.port_free) == (0, True)


@pytest.mark.integration
def test_instances_share_the_requests_and_the_repository_lies_beside_the_trial(tmp_path: Path) -> None:
    with launched(simulated(), tmp_path, instance_group={"count": 2}) as server:
        assert [asked(server, first) for first in (300, 400, 500)] == [None] * 3
        assert server.endpoint.model_name == "ensemble"
        assert str(tmp_path / "repository") in server.argv
    assert '"0;1"' in (tmp_path / "repository/tensorrt_llm/config.pbtxt").read_text()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fault", "outcome"), [("oom:weights", Outcome.OOM_STARTUP), ("fails_like:no GPU", Outcome.ENVIRONMENT)]
)
def test_a_start_that_fails_is_told_by_what_tensorrt_llm_said(tmp_path: Path, fault: str, outcome: Outcome) -> None:
    with pytest.raises(LaunchError) as caught, launched(simulated(fault), tmp_path):
        pass
    assert caught.value.failure.outcome is outcome
    assert caught.value.cleanup is not None
    assert caught.value.cleanup.left_processes == 0


@pytest.mark.integration
def test_a_model_that_dies_under_load_is_seen_though_the_server_lives_on(tmp_path: Path) -> None:
    with launched(simulated("dies_at_first_request"), tmp_path) as server:
        assert asked(server) is not None
        wait_until(lambda: server.failure(Phase.LOAD), "a failure that is seen")
        failure = server.failure(Phase.LOAD)
        assert failure is not None
        assert failure.outcome is Outcome.CRASHED_UNDER_LOAD
        assert server.exit_code() is None
