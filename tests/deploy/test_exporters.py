"""Every format there is: deploys what was measured, tells where it comes from, and no secret or foreign path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autotune.deploy import Asked, Deployment, described, exporter
from autotune.deploy.exporters import GROUP
from autotune.deploy.files import best_texts, write_files
from autotune.engines.tensorrt_llm.options import options
from autotune.engines.vllm import render_argv
from autotune.errors import EnvironmentFault, InputError
from autotune.records.spec import ContainerSpec, EngineKind, EngineSpec
from tests.deploy.deployments import (
    ARGS,
    BEST,
    CASES,
    READERS,
    START_NOTHING,
    contained,
    deployment_of,
    spec_of,
)
from tests.deploy.test_write_best import ARGS as VLLM_ARGS
from tests.deploy.test_write_best import JSON, NASTY, TEXT
from tests.runs import HOSTILE

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
STARTING = [case for case in CASES if case[1] not in START_NOTHING]
OWN = sorted({name for _, name in CASES})


def texts_of(kind: EngineKind, name: str, deployment: Deployment | None = None) -> Mapping[str, str]:
    return exporter(name)(deployment or deployment_of(kind))


def test_every_format_is_covered_by_these_tests() -> None:
    found = {name for name, _ in described()}
    assert found == set(OWN) == set(READERS) | START_NOTHING


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_file_tells_where_it_comes_from_and_what_is_in_doubt(kind: EngineKind, name: str) -> None:
    deployment = deployment_of(kind, simulated=True)
    for text in texts_of(kind, name, deployment).values():
        for fact in ("llama-8b-chat", "trial 5", deployment.best.fingerprint, "NOT CONFIRMED", "SIMULATED"):
            assert fact in text


# --- the arguments deployed are those measured ------------------------------------------------------------------------

TRTLLM_NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
TRTLLM_ARGS = st.dictionaries(
    TRTLLM_NAMES.filter(lambda name: name not in ("model", "backend", "triton_config", "speculative_config")),
    JSON | st.lists(JSON, max_size=3),
    max_size=4,
)
MODELS = st.sampled_from([BEST.model, "/data/models/llama $HOME ${X} $(id)", "org/it's"])


@pytest.mark.parametrize("name", [name for kind, name in STARTING if kind is EngineKind.VLLM])
@SETTINGS
@given(args=VLLM_ARGS, model=MODELS)
@example(args=NASTY, model=BEST.model)
@example(args={"served_model_name": ["$(HF_TOKEN)", "${HOME}", "$$", "$$$(X)", "a\n b\n", " \n"]}, model=BEST.model)
def test_vllm_is_started_with_the_measured_words(name: str, args: dict[str, Any], model: str) -> None:
    started = READERS[name](texts_of(EngineKind.VLLM, name, deployment_of(EngineKind.VLLM, args, model=model)))
    assert started.words == ("serve", model, *render_argv(args))


@pytest.mark.parametrize("name", [name for kind, name in STARTING if kind is EngineKind.TENSORRT_LLM])
@SETTINGS
@given(args=TRTLLM_ARGS, model=MODELS)
@example(args={"a": "${HOME} $(id) $$\nb: c", "kv": {"dtype": "fp8"}}, model=BEST.model)
def test_tensorrt_llm_is_started_with_the_measured_options(name: str, args: dict[str, Any], model: str) -> None:
    deployment = deployment_of(EngineKind.TENSORRT_LLM, args, model=model)
    started = READERS[name](texts_of(EngineKind.TENSORRT_LLM, name, deployment))
    assert started.options == options(args)
    if started.words:
        assert started.words[:2] == ("serve", model)
        assert [word for word in started.words[2:] if word.startswith("--")] in ([], ["--config"])


@pytest.mark.parametrize(("kind", "name"), STARTING)
def test_a_study_in_a_container_deploys_the_same_words(kind: EngineKind, name: str) -> None:
    texts = texts_of(kind, name, deployment_of(kind, spec=contained(kind)))
    if name == "shell":  # then a `docker run` as well
        texts, name = {**texts, "docker-run.sh": texts["serve.sh"]}, "docker"
    started = READERS[name](texts)
    if kind is EngineKind.VLLM:
        assert started.words == ("serve", BEST.model, *render_argv(ARGS[kind]))
    else:
        assert started.options == options(ARGS[kind])


@pytest.mark.parametrize("name", [name for kind, name in STARTING if kind is EngineKind.VLLM])
def test_limits_are_added_only_when_asked_for_and_after_what_was_measured(name: str) -> None:
    """20/s of 4 s: 80 + 2 x 9 in flight, 0.4 s of 20/s more wait; in prefill 10 + 2 x 3.2, of 200 tokens each."""
    words = ("--max-num-queued-reqs", "106", "--max-num-queued-tokens", "3400")
    plain, more = (
        texts_of(EngineKind.VLLM, name, deployment_of(EngineKind.VLLM, asked=Asked(limits=limits)))
        for limits in (False, True)
    )
    measured = ("serve", BEST.model, *render_argv(ARGS[EngineKind.VLLM]))
    assert READERS[name](plain).words == measured
    assert set(READERS[name](more).words) - set(measured) == set(words)
    if name != "vllm-yaml":  # whose order is the names'
        assert READERS[name](more).words == (*measured, *words)
    assert any(" ".join(words) in text and "not added" in text for text in plain.values())


def test_limits_that_were_measured_stay_as_they_were() -> None:
    args = {**ARGS[EngineKind.VLLM], "max_num_queued_reqs": 7}
    deployment = deployment_of(EngineKind.VLLM, args, asked=Asked(limits=True))
    words = READERS["kubernetes"](texts_of(EngineKind.VLLM, "kubernetes", deployment)).words
    assert [words[i + 1] for i, word in enumerate(words) if word == "--max-num-queued-reqs"] == ["7"]


def test_a_study_of_triton_has_its_repository_in_best() -> None:
    """With Triton's own parameters, which go to config.pbtxt, and without what only `trtllm-serve` was given."""
    args = {"max_batch_size": 64, "dynamic_batching.max_queue_delay_microseconds": 500, "instance_group.count": 2}
    texts = best_texts(replace(deployment_of(EngineKind.TENSORRT_LLM, args), engine=EngineKind.TRITON))
    assert "max_queue_delay_microseconds: 500" in texts["tensorrt_llm/config.pbtxt"]
    options_given = yaml.safe_load(texts["tensorrt_llm/1/model.yaml"])
    assert (options_given["max_batch_size"], options_given["model"]) == (64, BEST.model)
    assert "enable_iter_perf_stats" not in options_given


# --- secrets and paths ------------------------------------------------------------------------------------------------

MARK = "s3cr3t-7c41d1"


@pytest.mark.parametrize("in_container", [False, True])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_no_secret_is_ever_written(
    kind: EngineKind, name: str, in_container: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", MARK)
    env = {"HF_TOKEN": "${HF_TOKEN}", "VLLM_API_KEY": MARK, "MY_PASSWORD": MARK, "AUTH": "Bearer ${HF_TOKEN}"}
    container = ContainerSpec(image="i") if in_container else None
    spec = spec_of(kind, engine=EngineSpec(kind=kind, env=env, container=container))
    for asked in (Asked(), Asked(here=True)):
        texts = texts_of(kind, name, deployment_of(kind, spec=spec, asked=asked))
        assert MARK not in "".join(texts.values())
        assert name == "litellm" or "HF_TOKEN" in "".join(texts.values())


@pytest.mark.parametrize(("kind", "name"), CASES)
@SETTINGS
@given(value=TEXT, in_container=st.booleans())
def test_no_path_of_the_machine_that_measured_leaves_it(
    kind: EngineKind, name: str, value: str, in_container: bool
) -> None:
    """The model's path does: it is where the model must lie."""
    spec = (contained if in_container else spec_of)(kind)
    engine = spec.engine
    if not in_container:
        mine = {"HF_HOME": "/scratch/tuner/hub", "LD_LIBRARY_PATH": f"{value}:/scratch/tuner/lib"}
        engine = replace(engine, command=("/scratch/tuner/venv/bin/vllm",), env={**engine.env, **mine, "PLAIN": value})
    model = "/data/models/llama"
    argv = ("/scratch/tuner/venv/bin/vllm", "serve", model)
    deployment = deployment_of(kind, spec=replace(spec, engine=engine), model=model, argv=argv)
    texts = texts_of(kind, name, deployment)
    written = "".join(texts.values())
    assert "/scratch/tuner" not in written
    assert model in written or name in ("trtllm-yaml", "triton-legacy", "litellm")


def test_an_argument_that_is_a_path_is_deployed_and_said_to_be_one() -> None:
    args = {"chat_template": "/scratch/tuner/chat.jinja", "max_num_seqs": 8, "served_model_name": "a/b"}
    text = texts_of(EngineKind.VLLM, "kubernetes", deployment_of(EngineKind.VLLM, args))["kubernetes.yaml"]
    assert "# Must be there where it runs: what these arguments name as paths: chat_template\n" in text
    assert READERS["kubernetes"]({"kubernetes.yaml": text}).words[2:4] == (
        "--chat-template",
        "/scratch/tuner/chat.jinja",
    )


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_hostile_name_stays_inside_its_comment(kind: EngineKind, name: str) -> None:
    """Names of studies, models and mounts are strangers' words."""
    names = HOSTILE + "\x85rm\u2028-rf\r/"
    container = ContainerSpec(image="i", mounts=("/x:/a\nrm -rf /",), options=("--x\nrm -rf /", "/y"))
    spec = spec_of(kind, name=names)
    spec = replace(spec, engine=replace(spec.engine, container=container))
    for file, text in texts_of(kind, name, deployment_of(kind, spec=spec)).items():
        top = text.split("\n")[: text.count("\n# ") + 1]
        assert all(line.startswith("#") for line in top)
        assert not any(line.startswith(("rm", "next", "-rf")) for line in text.splitlines())
        if file.endswith(".sh"):
            subprocess.run(["bash", "-n"], input=text.encode(), check=True, capture_output=True)
        if file.endswith(".yaml"):
            list(yaml.safe_load_all(text))


# --- finding them -----------------------------------------------------------------------------------------------------


def test_a_wrong_name_gets_a_did_you_mean_and_the_list() -> None:
    with pytest.raises(InputError) as caught:
        exporter("kubernets")
    assert "did you mean kubernetes?" in str(caught.value)
    assert all(name in str(caught.value) for name in OWN)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(EngineKind.VLLM, "trtllm-yaml"), (EngineKind.VLLM, "triton"), (EngineKind.VLLM, "triton-legacy")]
    + [(EngineKind.TENSORRT_LLM, "vllm-yaml")]
    + [(EngineKind.ENDPOINT, name) for name in ("shell", "compose", "kubernetes", "litellm", "argo-rollouts")],
)
def test_a_format_of_another_engine_says_so(kind: EngineKind, name: str) -> None:
    deployment = replace(deployment_of(EngineKind.VLLM), engine=kind)
    with pytest.raises(InputError, match=r"is for|no command that this format"):
        exporter(name)(deployment)


def distribution(folder: Path, name: str, points: str, module: str = "") -> None:
    """An installed distribution, as small as one can be."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}\n")
    (folder / f"{name}.py").write_text(module)


NOMAD = '''
def export(deployment):
    """nomad.hcl: a job for Nomad."""
    return {"nomad.hcl": f"job {deployment.name} {dict(deployment.args)}"}
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_another_distribution_brings_a_format_by_an_entry_point(site: Path) -> None:
    distribution(site, "acme_nomad", "nomad = acme_nomad:export", NOMAD)
    assert ("nomad", "nomad.hcl: a job for Nomad.") in described()
    texts = exporter("nomad")(deployment_of(EngineKind.VLLM))
    assert texts["nomad.hcl"].startswith("job llama-8b-chat {'max_model_len': 8192")


@pytest.mark.integration
def test_the_command_line_finds_it_too(site: Path) -> None:
    distribution(site, "acme_nomad", "nomad = acme_nomad:export", NOMAD)
    done = subprocess.run(
        [sys.executable, "-m", "autotune.cli", "export", "nowhere"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "nomad          nomad.hcl: a job for Nomad." in done.stdout.splitlines()
    assert [line.split()[0] for line in done.stdout.splitlines()] == sorted([*OWN, "nomad"])


def test_a_format_that_is_claimed_twice_is_used_by_nobody(site: Path) -> None:
    distribution(site, "acme_compose", "compose = acme_compose:export", NOMAD)
    with pytest.raises(InputError, match="several distributions have a format 'compose': autotune, acme_compose"):
        exporter("compose")
    assert exporter("kubernetes")(deployment_of(EngineKind.VLLM))


def test_a_broken_distribution_is_named_and_hurts_no_other_format(site: Path) -> None:
    distribution(site, "acme_broken", "broken = acme_broken:export", "import no_such_module")
    with pytest.raises(EnvironmentFault, match="'broken' of acme_broken can't be loaded: No module named"):
        exporter("broken")
    assert {name for name, _ in described()} == {*OWN, "broken"}


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", ""])
def test_an_exporter_writes_only_into_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="names a file"):
        write_files(tmp_path / "out", {name: "x"})
    assert list(tmp_path.rglob("x")) == []
