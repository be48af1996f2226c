"""How vLLM is started, and what a study may not ask of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from autotune.engines.base import Engine, engine_for
from autotune.engines.command import engine_python, resolved_env
from autotune.engines.logfile import redact
from autotune.engines.served import vocab_size
from autotune.engines.vllm.command import ask_versions, launch_plan, serve_argv
from autotune.engines.vllm.engine import VllmEngine
from autotune.errors import EnvironmentFault
from autotune.records.spec import Choice, EngineKind, EngineSpec, IntRange, ParameterSpec, SpaceSpec
from tests.builders import study_spec


@pytest.mark.parametrize(
    ("command", "start"),
    [
        ((), ("vllm", "serve")),
        (("/opt/venv/bin/vllm",), ("/opt/venv/bin/vllm", "serve")),
        (("vllm", "serve"), ("vllm", "serve")),
        (("python", "-m", "vllm.entrypoints.cli.main"), ("python", "-m", "vllm.entrypoints.cli.main", "serve")),
    ],
)
def test_any_command_can_start_vllm(command: tuple[str, ...], start: tuple[str, ...]) -> None:
    argv = serve_argv(command, "org/m", {"max_num_seqs": 8}, 1234)
    assert argv == (*start, "org/m", "--max-num-seqs", "8", "--host", "127.0.0.1", "--port", "1234")


def test_a_relative_path_of_a_model_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert serve_argv((), "tiny", {}, 1)[2] == str(tmp_path / "tiny")


def test_references_are_resolved_and_remembered_as_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "abcdefgh")
    assert resolved_env({"A": "x", "B": "${TOKEN}/y"}) == {"A": "x", "B": "abcdefgh/y"}
    monkeypatch.delenv("TOKEN")
    with pytest.raises(EnvironmentFault, match=r"\$\{TOKEN\}"):
        resolved_env({"B": "${TOKEN}"})


def test_secrets_are_redacted_longest_first_and_short_values_are_left() -> None:
    assert redact("a=secret12 b=secret c=1", ("secret", "secret12", "1")) == "a=<redacted> b=<redacted> c=1"


def test_the_plan_names_gpus_served_name_and_the_commands_virtual_environment(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "pyvenv.cfg").touch()
    spec = EngineSpec(kind=EngineKind.VLLM, command=(str(program),))
    plan = launch_plan(spec, "org/m", {"served_model_name": ["a", "b"]}, port=9, gpus=("0", "MIG-1"))
    assert plan.env["CUDA_VISIBLE_DEVICES"] == "0,MIG-1"
    assert plan.env["PATH"] == f"{program.parent}:{os.environ['PATH']}"
    assert plan.model_name == "a"
    assert launch_plan(spec, "org/m", {}, port=9, gpus=()).model_name == "org/m"
    assert "CUDA_VISIBLE_DEVICES" not in launch_plan(spec, "org/m", {}, port=9, gpus=()).env


def test_the_engines_python_is_found_by_its_scripts_first_line_or_beside_it(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\n")
    assert engine_python(script) == Path(sys.executable)
    script.write_text("#!/bin/sh\n")
    assert engine_python(script) is None
    (tmp_path / "python3").touch()
    assert engine_python(script) == tmp_path / "python3"
    assert engine_python(Path("/usr/bin/python3.12")) == Path("/usr/bin/python3.12")


def test_versions_are_asked_of_the_engines_python_and_absent_ones_are_none() -> None:
    versions = ask_versions(EngineSpec(kind=EngineKind.VLLM, command=(sys.executable, "-m", "vllm")))
    assert versions["engine_python"] == ".".join(map(str, sys.version_info[:3]))
    assert versions["torch"] is None
    assert set(ask_versions(EngineSpec(kind=EngineKind.VLLM, command=("/nowhere",))).values()) == {None}


def test_vocabulary_is_read_from_the_model_or_the_hubs_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--m" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 7}}))
    assert vocab_size(str(snapshot), {}) == 7
    assert vocab_size("org/m", {"HF_HOME": str(tmp_path)}) == 7
    assert vocab_size("org/other", {"HF_HOME": str(tmp_path)}) is None


def problems(**fields: object) -> dict[str, str]:
    spec = study_spec(**fields)
    return {".".join(map(str, p.path)): f"{p.message}; {p.hint}" for p in VllmEngine(spec).problems(spec)}


def test_a_study_that_fits_has_no_problems() -> None:
    assert problems(incumbent={"max_num_seqs": 4}) == {}


def test_every_argument_that_vllm_would_refuse_is_a_problem_with_its_place() -> None:
    args = {"port": 80, "api_key": "x", "max_num_seqz": 8, "block_size": "big", "compilation_config.mode": 3}
    space = SpaceSpec(
        name="s",
        engine=EngineKind.VLLM,
        parameters=(
            ParameterSpec(name="kv_cache_dtype", domain=Choice(values=("auto", "fp9"))),
            ParameterSpec(name="enforce_eager", domain=IntRange(low=0, high=1)),
        ),
        derived={"max_model_length": "1"},
    )
    found = problems(
        engine=EngineSpec(kind=EngineKind.VLLM, args=args), search_space=space, incumbent={"max_num_seqs": "many"}
    )
    assert found.keys() == {
        "engine.args.port",
        "engine.args.api_key",
        "engine.args.max_num_seqz",
        "engine.args.block_size",
        "search_space.parameters.kv_cache_dtype",
        "search_space.parameters.enforce_eager",
        "search_space.derived.max_model_length",
        "incumbent.max_num_seqs",
    }
    assert "did you mean `max_num_seqs`?" in found["engine.args.max_num_seqz"]
    assert "did you mean `max_model_len`?" in found["search_space.derived.max_model_length"]
    assert "belongs to the tuner" in found["engine.args.port"]
    assert "secret" in found["engine.args.api_key"]


@pytest.mark.parametrize("kind", EngineKind)
def test_engines_are_chosen_by_kind(kind: EngineKind) -> None:
    engine: Engine = engine_for(study_spec(engine=EngineSpec(kind=kind)))
    assert (engine.kind, engine.simulated) == (kind, kind is EngineKind.SIMULATED)
