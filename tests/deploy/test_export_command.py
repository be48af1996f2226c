"""`autotune export` as its users meet it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.deploy.command import export_run, fallback_of
from autotune.deploy.deployment import Asked
from autotune.errors import InputError
from autotune.records.spec import EngineKind, EngineSpec
from autotune.records.summary import StudySummary
from autotune.trial.store import RunDirectory
from tests.deploy.deployments import BEST, REFERENCE, measured, spec_of
from tests.runs import dozen, study, summary, write_run


def run_of(path: Path, kind: EngineKind = EngineKind.VLLM, summarised: StudySummary | None = None) -> RunDirectory:
    trials = [measured(REFERENCE, kind), *dozen()[1:5], measured(BEST, kind), *dozen()[6:]]
    return write_run(path / "run", trials, summarised or summary(), spec_of(kind))


def exported(run: RunDirectory, name: str, output: Path | None = None, trial: int | None = None) -> list[str]:
    told: list[str] = []
    export_run(run, name, output, Asked(), told.append, trial=trial)
    return told


def test_one_file_goes_to_stdout(tmp_path: Path) -> None:
    (text,) = exported(run_of(tmp_path), "kubernetes")
    assert "kind: Deployment" in text
    assert not text.endswith("\n")  # the caller ends it


def test_several_files_want_a_folder_and_scripts_may_be_run(tmp_path: Path) -> None:
    run = run_of(tmp_path, EngineKind.TENSORRT_LLM)
    with pytest.raises(InputError, match=r"docker has 2 files: docker-run\.sh, options\.yaml"):
        exported(run, "docker")
    paths = exported(run, "docker", tmp_path / "new" / "folder")
    assert [Path(path).name for path in paths] == ["docker-run.sh", "options.yaml"]
    assert [oct(Path(path).stat().st_mode & 0o777) for path in paths] == ["0o755", "0o644"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        exported(run, "docker", tmp_path / "file")
    exported(run, "triton", tmp_path / "repository")
    found = {str(path.relative_to(tmp_path / "repository")) for path in (tmp_path / "repository").rglob("*.*")}
    assert {"tensorrt_llm/1/model.yaml", "tensorrt_llm/config.pbtxt", "ensemble/config.pbtxt"} <= found


def test_another_trial_may_be_asked_for(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert "trial 0," in exported(run, "vllm-yaml", trial=0)[0]
    with pytest.raises(InputError, match="the run has no trial 77"):
        exported(run, "vllm-yaml", trial=77)
    with pytest.raises(InputError, match="trial 2 has no output_tok_per_s"):
        exported(run, "vllm-yaml", trial=2)


def test_nothing_is_exported_where_nothing_met_the_objective(tmp_path: Path) -> None:
    run = run_of(tmp_path, summarised=summary(best=None, nearest=6))
    with pytest.raises(InputError, match="nothing met the objectives of llama-8b-chat; trial 6 came nearest"):
        exported(run, "vllm-yaml")
    with pytest.raises(InputError, match="is not a run"):
        exported(RunDirectory(tmp_path / "no run"), "vllm-yaml")


def test_a_fallback_is_a_providers_model_or_an_endpoints_run(tmp_path: Path) -> None:
    engine = EngineSpec(kind=EngineKind.ENDPOINT, url="https://api.example/v1/", api_key_env="EXAMPLE_KEY")
    write_run(tmp_path / "api", [], None, replace(study(engine=engine), model="big"))
    found = fallback_of(str(tmp_path / "api"))
    assert (found.model, found.api_base, found.api_key_env) == ("openai/big", "https://api.example/v1", "EXAMPLE_KEY")
    assert fallback_of("openai/gpt-4o-mini").api_base is None
    for wrong in ("gpt-4o", "openai/", "/x", str(run_of(tmp_path).path)):
        with pytest.raises(InputError, match=r"fallback|no run of an endpoint"):
            fallback_of(wrong)
