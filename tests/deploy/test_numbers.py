"""Numbers in exports come from the records: start-up, stop, drain, GPUs, image, replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.deploy.deployment import launched_model
from autotune.deploy.image import image_of
from autotune.deploy.limits import replica_limits, replicas_of
from autotune.deploy.timing import drain_s, startup_budget_s, startup_words, stop_grace_s
from autotune.records.spec import ContainerSpec, EngineKind, LoadSpec
from autotune.records.trial import Cleanup
from tests.deploy.deployments import BEST, contained, deployment_of, measured, spec_of

VLLM, TRTLLM = EngineKind.VLLM, EngineKind.TENSORRT_LLM


def test_an_instance_may_take_three_times_the_slowest_start_of_the_run() -> None:
    deployment = deployment_of(VLLM)
    assert startup_budget_s(deployment) == 240
    assert "3 x 80 s, the slowest start-up measured, cold ones among them" in startup_words(deployment)
    warm = replace(deployment, cold=False, startups_s=(46.0, 101.0))
    assert startup_budget_s(warm) == 310  # whole probe periods
    assert "none of them cold" in startup_words(warm)


def test_a_fast_start_is_given_a_minimum_and_an_unknown_one_the_studys_own_limit() -> None:
    deployment = deployment_of(VLLM)
    assert startup_budget_s(replace(deployment, startups_s=(2.0,))) == 120
    assert startup_budget_s(replace(deployment, startups_s=())) == 2700


@pytest.mark.parametrize(("took_s", "grace_s"), [(None, 10), (2.5, 10), (9.2, 19)])
def test_the_stop_has_the_ladders_time_or_twice_what_it_took(took_s: float | None, grace_s: int) -> None:
    cleanup = Cleanup(left_processes=0, port_free=True, stop_s=took_s)
    assert stop_grace_s(deployment_of(VLLM, cleanup=cleanup)) == grace_s


def test_answers_under_way_have_their_p99_to_end() -> None:
    assert drain_s(deployment_of(VLLM)) == 5 + 9
    assert drain_s(deployment_of(VLLM, measurements=(), capacity=None)) == 5


@pytest.mark.parametrize(
    ("kind", "args", "gpus"),
    [
        (VLLM, {}, 1),
        (VLLM, {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "data_parallel_size": 2}, 16),
        (TRTLLM, {"tensor_parallel_size": 8, "moe_expert_parallel_size": 8}, 8),
    ],
)
def test_gpus_are_those_that_the_arguments_occupy(kind: EngineKind, args: dict[str, Any], gpus: int) -> None:
    assert deployment_of(kind, args).gpus == gpus


def test_what_was_measured_without_a_gpu_asks_for_none() -> None:
    deployment = deployment_of(VLLM, versions={"vllm": "0.32.0", "gpus": None})
    assert deployment.gpus == 0
    assert image_of(deployment).reference == "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.32.0"


DIGEST = f"registry.example/engine@sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("kind", "version", "reference"),
    [
        (VLLM, "0.32.0", "vllm/vllm-openai:v0.32.0"),
        (VLLM, "0.32.0+cu129", "vllm/vllm-openai:v0.32.0"),
        (VLLM, "0.33.0.dev7+g1a2b", "vllm/vllm-openai:v0.32.0"),
        (VLLM, None, "vllm/vllm-openai:v0.32.0"),
        (TRTLLM, "1.3.0rc2", "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc2"),
        (TRTLLM, "1.2.0.post1", "nvcr.io/nvidia/tensorrt-llm/release:1.2.0.post1"),
    ],
)
def test_the_image_is_the_official_one_of_the_version(kind: EngineKind, version: str | None, reference: str) -> None:
    image = image_of(deployment_of(kind, versions={kind.value: version}))
    assert image.reference == reference
    assert ("no version was measured" in image.why) is (version is None or ".dev" in version)


@pytest.mark.parametrize(
    ("recorded", "reference"),
    [(DIGEST, DIGEST), (f"sha256:{'b' * 64}", "registry.example/engine:v1"), (None, "registry.example/engine:v1")],
)
def test_the_image_is_the_one_measured_where_there_was_one(recorded: str | None, reference: str) -> None:
    deployment = deployment_of(VLLM, spec=contained(VLLM), versions={"container_image": recorded})
    assert image_of(deployment).reference == reference
    asked = replace(deployment.asked, image="mine:1")
    assert image_of(replace(deployment, asked=asked)).reference == "mine:1"


def test_replicas_carry_the_studys_traffic() -> None:
    """60/s at 20/s a replica, 30 % kept free: 5."""
    assert replicas_of(deployment_of(VLLM))[0] == 5
    assert replicas_of(deployment_of(VLLM, spec=spec_of(VLLM, price=None)))[0] == 1


def test_without_a_capacity_limits_are_the_load_that_was_measured() -> None:
    spec, trial = spec_of(VLLM), replace(measured(BEST, VLLM), capacity=None)
    limits = replica_limits(trial, spec.objective)
    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.in_flight) == (480, 144000, None)
    assert "may be less than its capacity" in limits.why
    closed = replica_limits(trial, replace(spec.objective, load=LoadSpec(concurrency=64)))
    assert (closed.requests_per_minute, closed.tokens_per_minute, closed.in_flight) == (None, None, 64)


@pytest.mark.parametrize(
    ("model", "word", "launched"),
    [
        ("org/model", "org/model", "org/model"),
        ("./models/tiny", "/home/me/models/tiny", "/home/me/models/tiny"),
        ("~/models/tiny", "/home/me/models/tiny", "/home/me/models/tiny"),
        ("/models/tiny", "/models/tiny", "/models/tiny"),
    ],
)
def test_the_model_is_as_it_was_launched_wherever_it_is_exported(model: str, word: str, launched: str) -> None:
    assert launched_model(replace(BEST, model=model, argv=("/x/vllm", "serve", word, "--port", "1"))) == launched


def test_a_snapshot_of_the_hub_takes_its_repository_along() -> None:
    snapshot = "/hub/models--a--b/snapshots/1f2e"
    assert deployment_of(VLLM, model=snapshot).model_folder == "/hub/models--a--b"
    assert deployment_of(VLLM, model="/models/a").model_folder == "/models/a"
    assert deployment_of(VLLM).model_folder is None


@pytest.mark.parametrize(
    ("study", "name"),
    [
        ("llama-8b-chat", "llama-8b-chat"),
        ("70B_RAG test", "autotune-70b-rag-test"),
        ("ü", "autotune"),
        ("a" * 90, "a" * 40),
    ],
)
def test_names_suit_kubernetes(study: str, name: str) -> None:
    assert deployment_of(VLLM, spec=spec_of(VLLM, name=study)).name == name


def test_options_that_name_paths_stay_behind_and_are_named() -> None:
    from autotune.deploy.containers import container_of, left_out

    deployment = deployment_of(VLLM, spec=contained(VLLM))
    assert container_of(deployment) == ContainerSpec(
        image="registry.example/engine:v1", mounts=("cache:/root/.cache/vllm",), options=("--cpus", "16")
    )
    assert left_out(deployment) == [
        "Left out, naming paths where it was measured: the mount of /kernels, the option --env-file"
    ]
