"""What stands on a run line, and what never does."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.containers.runline import (
    Environment,
    Inside,
    asking_line,
    container_problems,
    on_host_network,
    serving_line,
    split_environment,
)
from autotune.records.spec import ContainerSpec

UUIDS = ("GPU-18a3e86f-4c0e", "GPU-ad2367dd-a40e")
NOTHING = Environment(client={}, written={})


def inside(**changes: object) -> Inside:
    fields: dict[str, object] = {"image": "sha256:1", "command": ("vllm", "serve", "m"), "environment": NOTHING}
    return Inside(**{**fields, "labels": {"autotune.study": "s"}, **changes})  # type: ignore[arg-type]


def line(*options: str, runtime: str = "docker", mounts: tuple[str, ...] = (), **changes: object) -> tuple[str, ...]:
    spec = ContainerSpec(runtime=runtime, image="i", mounts=mounts, options=options)  # type: ignore[arg-type]
    return serving_line(spec, "/usr/bin/x", inside(**changes), port=4321)


def follows(words: tuple[str, ...], name: str) -> list[str]:
    return [value for word, value in pairwise(words) if word == name]


def test_a_plain_line_publishes_on_loopback_pulls_nothing_and_ends_with_image_and_command() -> None:
    words = line()
    assert words[:3] == ("/usr/bin/x", "run", "--detach")
    assert follows(words, "--publish") == ["127.0.0.1:4321:8000"]
    assert "--pull=never" in words
    assert "--rm" not in words  # its end is looked at before it is removed
    assert words[-5:] == ("--entrypoint", "vllm", "sha256:1", "serve", "m")


def test_docker_is_given_gpus_by_uuid_in_quotes_since_it_reads_csv() -> None:
    assert follows(line(gpus=UUIDS), "--gpus") == [f'"device={UUIDS[0]},{UUIDS[1]}"']


def test_podman_is_given_gpus_by_cdi_name() -> None:
    words = line(gpus=UUIDS, runtime="podman")
    assert follows(words, "--device") == [f"nvidia.com/gpu={uuid}" for uuid in UUIDS]
    assert "--gpus" not in words


@pytest.mark.parametrize("options", [("--gpus", "all"), ("--gpus=2",), ("--device", "nvidia.com/gpu=all")])
def test_gpus_that_the_user_gives_are_not_given_twice(options: tuple[str, ...]) -> None:
    words = line(*options, gpus=UUIDS)
    assert not any(UUIDS[0] in word for word in words)


def test_shared_memory_is_the_containers_own_unless_the_user_says_otherwise() -> None:
    assert follows(line(), "--shm-size") == ["16g"]
    assert "--shm-size" not in line("--ipc=host")
    assert follows(line("--shm-size", "1g"), "--shm-size") == ["1g"]


def test_memory_may_be_locked_where_there_are_gpus_and_no_limit_of_the_users() -> None:
    assert follows(line(gpus=UUIDS), "--ulimit") == ["memlock=-1"]
    assert follows(line(), "--ulimit") == []
    assert follows(line("--ulimit", "memlock=64:64", gpus=UUIDS), "--ulimit") == ["memlock=64:64"]
    assert follows(line("--ulimit=memlock=64", gpus=UUIDS), "--ulimit") == []


def test_logs_go_where_they_can_be_followed() -> None:
    assert follows(line(), "--log-driver") == ["json-file"]
    assert follows(line(runtime="podman"), "--log-driver") == ["k8s-file"]
    assert follows(line("--log-driver=local"), "--log-driver") == []


@pytest.mark.parametrize("options", [("--network", "host"), ("--network=host",), ("--net=host",), ("--net", "host")])
def test_on_the_hosts_network_nothing_is_published(options: tuple[str, ...]) -> None:
    assert on_host_network(ContainerSpec(image="i", options=options))
    assert "--publish" not in line(*options)
    assert not on_host_network(ContainerSpec(image="i", options=("--network", "mine")))


def test_a_child_to_talk_to_is_removed_at_its_end_and_publishes_nothing() -> None:
    words = asking_line(ContainerSpec(image="i"), "/usr/bin/docker", inside())
    assert words[2:4] == ("--interactive", "--rm")
    assert "--publish" not in words
    assert "--detach" not in words


def test_mounts_of_this_machine_are_made_absolute_and_volumes_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = line(mounts=("~/hf:/hf:ro", "./rel:/rel", "volume:/data"))
    assert follows(words, "--volume") == [f"{tmp_path}/hf:/hf:ro", f"{tmp_path}/rel:/rel", "volume:/data"]


names = st.from_regex(r"[A-Z][A-Z0-9_]{0,12}", fullmatch=True)
values = st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=6, max_size=30)


@given(st.dictionaries(names, values, max_size=5), st.data())
def test_every_variable_goes_over_once_and_no_secret_stands_on_the_line(
    env: dict[str, str], data: st.DataObject
) -> None:
    secret = tuple(value for value in env.values() if data.draw(st.booleans()))
    split = split_environment(env, secret)
    assert {**split.client, **split.written} == env
    assert not split.client.keys() & split.written.keys()
    assert not any(text in value for text in secret for value in split.written.values())
    words = line(environment=split)
    assert sorted(word.partition("=")[0] for word in follows(words, "--env")) == sorted(env)


def test_what_the_client_itself_would_heed_is_written_out() -> None:
    values = {"PATH": "/opt/bin", "DOCKER_HOST": "tcp://x", "VLLM_USE_V1": "1", "HF_TOKEN": "s3cret!"}
    split = split_environment({**values, "DOCKER_AUTH_TOKEN": "s3cret!"})
    assert set(split.written) == {"PATH", "DOCKER_HOST"}
    assert set(split.client) == {"VLLM_USE_V1", "HF_TOKEN", "DOCKER_AUTH_TOKEN"}


@given(st.lists(st.sampled_from(["--cpus", "4", "--privileged", "--ipc=host", "--memory=9g"]), max_size=6))
def test_the_users_options_stand_as_they_are_before_the_image(options: list[str]) -> None:
    words = line(*options)
    begin = words.index("--entrypoint") - len(options)
    assert list(words[begin : begin + len(options)]) == options


@pytest.mark.parametrize(
    "option",
    ["-d", "--rm", "--name=x", "-p", "-p8000:8000", "--publish=1:1", "--entrypoint", "--restart", "-it", "-ditP"],
)
def test_options_that_belong_to_the_tuner_are_a_problem_of_the_study(option: str) -> None:
    (problem,) = container_problems(ContainerSpec(image="i", options=("--init", option)))
    assert problem.path == ("engine", "container", "options", 1)
    assert "belongs to the tuner" in problem.message


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--log-driver=none",), "log"),
        (("--network", "none"), "reach"),
        (("--label", "autotune.study=mine"), "labels"),
        (("--label=autotune.owner=me",), "labels"),
    ],
)
def test_an_option_that_leaves_no_trial_or_no_clean_up_is_a_problem_of_the_study(
    options: tuple[str, ...], word: str
) -> None:
    (problem,) = container_problems(ContainerSpec(image="i", options=options))
    assert problem.path == ("engine", "container", "options", 0)
    assert word in problem.message


@pytest.mark.parametrize(
    "options",
    [
        ("-v/data:/d", "-m16g", "-uroot", "-w/repo", "-epath=1"),
        ("--log-driver", "local", "--network", "host", "--label", "team=autotune.x", "--memory-swap", "-1"),
    ],
)
def test_options_of_the_users_own_are_no_problem_however_they_are_spelt(options: tuple[str, ...]) -> None:
    assert list(container_problems(ContainerSpec(image="i", options=options))) == []


def test_mounts_of_what_is_not_here_are_a_problem(tmp_path: Path) -> None:
    mounts = (f"{tmp_path}:/data:ro", "volume:/v", f"{tmp_path}/nothing:/data")
    (problem,) = container_problems(ContainerSpec(image="i", mounts=mounts))
    assert problem.path == ("engine", "container", "mounts", 2)
    assert f"{tmp_path}/nothing" in problem.message
