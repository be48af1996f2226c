"""Preparing a study: the model is fetched by the engine's own huggingface_hub, checked, and not asked for again."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.fetch_child import wanted
from autotune.engines.hub import model_versions, offline
from autotune.engines.model_files import missing_in
from autotune.engines.prepare import Prepared, prepare
from autotune.engines.vllm.command import launch_plan
from autotune.errors import EnvironmentFault, InputError
from autotune.records.spec import ContainerSpec, EngineKind, EngineSpec, SimulateSpec
from tests.builders import study_spec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_thistokenissecret"


def safetensors(path: Path, tensor_bytes: int = 16) -> None:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "data_offsets": [0, tensor_bytes]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(tensor_bytes))


def model(folder: Path) -> Path:
    """A whole model in two files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in names:
        safetensors(folder / name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("ab", names, strict=True))})
    )
    return folder


def cached(home: Path, repository: str = "org/m") -> Path:
    """The same as the hub's cache lays it out."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return model(folder / "snapshots" / COMMIT)


FAKE_HUB = f'''
import os, pathlib, sys
from types import SimpleNamespace as constants_of
HOME = pathlib.Path(os.environ["HF_HOME"])
constants = constants_of(HF_HUB_CACHE=str(HOME / "hub"))
SIZES = {{"config.json": 2, "tokenizer.json": 2, "model.safetensors": int(os.environ.get("FAKE_BYTES", "32")),
         "original/consolidated.00.pth": 10**15, "pytorch_model.bin": 10**15, "README.md": 5}}

class GatedRepoError(Exception):
    pass

class HfApi:
    def model_info(self, repository, revision=None, files_metadata=False):
        assert "{TOKEN}" not in str(sys.argv)
        if os.environ.get("HF_TOKEN") != "{TOKEN}":
            raise GatedRepoError(f"Access to model {{repository}} is restricted; token {{os.environ.get('HF_TOKEN')}}")
        files = [constants_of(rfilename=name, size=size) for name, size in SIZES.items()]
        return constants_of(sha="{COMMIT}", siblings=files)

def try_to_load_from_cache(repository, name, revision=None):
    return None

def snapshot_download(repository, revision=None, allow_patterns=()):
    if os.environ.get("FAKE_DIES"):
        os._exit(9)
    print("a line of noise")
    sys.path.insert(0, os.environ["FAKE_TESTS"])
    from tests.engines.test_prepare import cached
    folder = cached(HOME, repository)
    (HOME / "asked").write_text("\\n".join(allow_patterns))
    return str(folder)
'''


@pytest.fixture
def engine_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of the engine's own, whose Python has a huggingface_hub, and an HF_HOME."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "huggingface_hub.py").write_text(FAKE_HUB)
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nshift\nexec env PYTHONPATH={tmp_path}/site {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("FAKE_TESTS", str(Path(__file__).parents[2]))
    return tmp_path


def ask(
    home: Path, told: list[str] | None = None, *, name: str = "org/m", kind: EngineKind = EngineKind.VLLM, **env: str
) -> Prepared:
    values = {"HF_HOME": str(home / "hf"), "HF_TOKEN": TOKEN, **env}
    engine = EngineSpec(kind=kind, command=(str(home / "python3"),), env=values)
    return prepare(study_spec(model=name, engine=engine), ([] if told is None else told).append)


@pytest.mark.integration
@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.TENSORRT_LLM])
def test_a_model_is_fetched_once_and_trials_run_offline_from_then_on(engine_home: Path, kind: EngineKind) -> None:
    told: list[str] = []
    prepared = ask(engine_home, told, kind=kind)
    assert prepared.offline
    assert "fetched to" in prepared.lines[0]
    assert "fetching org/m: 0.0 GiB in 3 files" in told[0]
    asked = (engine_home / "hf" / "asked").read_text().split()
    assert asked == ["config.json", "model.safetensors", "tokenizer.json"]
    again: list[str] = []
    assert "whole in" in ask(engine_home, again, HF_TOKEN="none").lines[0]  # no token and no network any more
    assert again == []


@pytest.mark.integration
def test_a_gated_model_is_refused_with_what_to_do_and_without_the_token(engine_home: Path) -> None:
    with pytest.raises(EnvironmentFault, match="could not be fetched") as caught:
        ask(engine_home, HF_TOKEN="hf_anothersecret")
    assert "token" in caught.value.hint.lower()
    assert "hf_anothersecret" not in str(caught.value)


@pytest.mark.integration
def test_a_disk_without_room_is_told_before_anything_is_fetched(engine_home: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"disk .* too small"):
        ask(engine_home, FAKE_BYTES=str(10**17))
    assert not (engine_home / "hf" / "asked").exists()


@pytest.mark.integration
def test_a_child_that_dies_is_no_success(engine_home: Path) -> None:
    with pytest.raises(EnvironmentFault, match="without a word"):
        ask(engine_home, FAKE_DIES="1")


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.TENSORRT_LLM])
def test_without_the_engines_python_there_is_nobody_to_fetch(tmp_path: Path, kind: EngineKind) -> None:
    engine = EngineSpec(kind=kind, command=("/nowhere/program",), env={"HF_HOME": str(tmp_path)})
    with pytest.raises(EnvironmentFault, match="no Python") as caught:
        prepare(study_spec(model="org/m", engine=engine), print)
    assert "engine.command" in caught.value.hint
    assert "hf download org/m" in caught.value.hint


@pytest.mark.parametrize("path", ["/nowhere/model", "./model", "../model", "~/no-such-model"])
def test_a_path_where_nothing_is_is_not_asked_of_the_hub(path: str) -> None:
    engine = EngineSpec(kind=EngineKind.VLLM, command=("/nowhere/vllm",))
    with pytest.raises(InputError, match="there is no model in"):
        prepare(study_spec(model=path, engine=engine), print)


@pytest.mark.parametrize(
    ("error", "hint"), [("OfflineModeIsEnabled: no", "unset HF_HUB_OFFLINE"), ("ConnectError: no", "HTTPS_PROXY")]
)
@pytest.mark.integration
def test_a_hub_that_was_not_asked_or_not_reached_is_told_apart(engine_home: Path, error: str, hint: str) -> None:
    kind, words = error.split(": ")
    (engine_home / "site" / "huggingface_hub.py").write_text(f"class {kind}(Exception): ...\nraise {kind}({words!r})\n")
    with pytest.raises(EnvironmentFault, match=error) as caught:
        ask(engine_home)
    assert hint in caught.value.hint


def test_simulated_studies_need_nothing() -> None:
    assert prepare(study_spec(), print).offline
    stand_in = EngineSpec(kind=EngineKind.TENSORRT_LLM, simulate=SimulateSpec(face="server"))
    assert prepare(study_spec(engine=stand_in), print).lines[0].endswith("the engine is simulated")


@pytest.mark.integration
def test_an_image_that_is_not_here_is_pulled_and_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        '#!/bin/sh\necho "$@" >> "$0.log"\n'
        'case "$1" in pull) touch "$0.here"; [ "$2" != bad ];; image) [ -e "$0.here" ] && echo sha256:abc;; esac\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def asked(image: str) -> Prepared:
        engine = EngineSpec(kind=EngineKind.VLLM, container=ContainerSpec(image=image))
        return prepare(study_spec(model=str(model(tmp_path / "m")), engine=engine), print)

    assert "pulled, sha256:abc" in asked("good").lines[0]
    assert "here, sha256:abc" in asked("good").lines[0]
    assert (tmp_path / "docker.log").read_text().count("pull") == 1
    (tmp_path / "docker.here").unlink()
    with pytest.raises(EnvironmentFault, match="could not be pulled"):
        asked("bad")


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_whole_model_lacks_nothing(tmp_path: Path) -> None:
    assert list(missing_in(model(tmp_path / "m"))) == []
    spec = study_spec(model=str(tmp_path / "m"), engine=EngineSpec(kind=EngineKind.VLLM))
    assert prepare(spec, print).lines == (f"model {tmp_path}/m: whole",)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("config.json", Path.unlink, "config.json is missing"),
        ("tokenizer.json", Path.unlink, "tokenizer is missing"),
        ("model-00002-of-00002.safetensors", Path.unlink, "model-00002-of-00002.safetensors is missing"),
        ("model-00002-of-00002.safetensors", _cut, "cut off"),
        ("model-00002-of-00002.safetensors", lambda path: path.write_bytes(b""), "cut off"),
        ("model-00002-of-00002.safetensors", lambda path: path.write_bytes(b"\xff" * 99), "cut off"),
        ("model-00002-of-00002.safetensors", lambda path: path.write_bytes(struct.pack("<Q", 2) + b"[]"), "cut off"),
        ("model.safetensors.index.json", lambda path: path.write_text("{"), "index.json (readable) is missing"),
    ],
)
def test_what_is_missing_or_cut_off_is_named(tmp_path: Path, name: str, change: Any, said: str) -> None:
    folder = model(tmp_path / "m")
    change(folder / name)
    (problem,) = missing_in(folder)
    assert said in problem
    for kind in (EngineKind.VLLM, EngineKind.TENSORRT_LLM):
        with pytest.raises(EnvironmentFault, match="can't be loaded"):
            prepare(study_spec(model=str(folder), engine=EngineSpec(kind=kind)), print)


def test_made_up_weights_are_not_missed(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    for path in folder.glob("*model*"):
        path.unlink()
    assert "no weights" in next(missing_in(folder))
    assert list(missing_in(folder, weights=False)) == []


NAMES = [
    "config.json", "tokenizer.json", "README.md", "model-1.safetensors", "consolidated.safetensors", "modeling.py",
    "original/params.json", "original/consolidated.00.pth", "pytorch_model.bin", "onnx/model.safetensors",
]  # fmt: skip


def test_only_what_vllm_loads_is_fetched() -> None:
    small = ["config.json", "original/params.json", "tokenizer.json"]
    assert wanted(NAMES, code=False, consolidated=False) == sorted([*small, "model-1.safetensors"])
    assert wanted(NAMES, code=True, consolidated=True) == sorted([*small, "modeling.py", "consolidated.safetensors"])
    assert "pytorch_model.bin" in wanted(["pytorch_model.bin"], code=False, consolidated=False)


# --- offline ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "env", "off"),
    [
        ({}, {}, True),
        ({"revision": "main"}, {}, True),
        ({"revision": COMMIT}, {}, True),
        ({"revision": "another"}, {}, False),
        ({"tokenizer": "org/other"}, {}, False),
        ({"speculative_config": {"model": "org/draft"}}, {}, False),
        ({}, {"HF_HUB_OFFLINE": "0"}, False),
        ({}, {"TRANSFORMERS_OFFLINE": "1"}, False),
    ],
)
def test_an_engine_is_kept_offline_only_where_all_it_loads_is_here_and_nobody_says_otherwise(
    engine_home: Path, args: Mapping[str, Any], env: Mapping[str, str], *, off: bool
) -> None:
    cached(engine_home / "hf")
    values = {"HF_HOME": str(engine_home / "hf"), **env}
    assert offline("org/m", args, values) == ({"HF_HUB_OFFLINE": "1"} if off else {})
    plan = launch_plan(EngineSpec(kind=EngineKind.VLLM, env=values), "org/m", args, port=1, gpus=())
    assert plan.env.get("HF_HUB_OFFLINE") == ("1" if off else env.get("HF_HUB_OFFLINE"))


def test_a_model_of_which_a_file_is_missing_is_not_offline_and_has_no_version(engine_home: Path) -> None:
    folder = cached(engine_home / "hf")
    env = {"HF_HOME": str(engine_home / "hf")}
    assert model_versions("org/m", {}, env) == {"model_revision": COMMIT}
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert offline("org/m", {}, env) == {}
    assert model_versions("org/m", {}, env) == {"model_revision": None}
