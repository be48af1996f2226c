"""What a study file may say of variants, and what is wrong with it at which line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.variants import variant_problems
from autotune.errors import StudyFileError
from autotune.pipeline import read_study
from autotune.quality import guarded
from autotune.records.quality import QualitySpec
from autotune.records.spec import Choice, StudySpec
from autotune.space import build_space
from autotune.space.space import RuledOut
from autotune.study import dump_study, load_study

STUDY: dict[str, Any] = {
    "name": "v",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "engine": {"kind": "simulated"},
    "quality": "unchecked",
    "objective": "chat",
    "search_space": {
        "engine": "vllm",
        "parameters": {
            "max_num_seqs": {"int": [16, 64]},
            "quantization": {"choice": ["None", "fp8"], "when": "checkpoint == 'base'", "changes_output": True},
        },
    },
    "variants": {
        "w8": {"command": f"{sys.executable} {{output}}", "needs_disk_gib": 2.0, "versions": {"llmcompressor": "0.9"}},
        "awq": {"model": "org/model-awq"},
    },
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False))
    return path


def read(folder: Path, **changes: Any) -> StudySpec:
    return load_study(write(folder, **changes), checks=(variant_problems,))


def complaints(folder: Path, **changes: Any) -> str:
    with pytest.raises(StudyFileError) as error:
        read_study(write(folder, **changes))
    return str(error.value)


def test_the_parameter_that_chooses_is_there_by_itself_and_changes_the_output(tmp_path: Path) -> None:
    checkpoint = read(tmp_path).search_space.parameters[0]
    assert (checkpoint.name, checkpoint.changes_output) == ("checkpoint", True)
    assert checkpoint.domain == Choice(values=("base", "w8", "awq"))


def test_where_answers_are_checked_the_choice_is_among_what_is_checked(tmp_path: Path) -> None:
    spec = read(tmp_path, quality=None)
    checked = replace(spec, objective=replace(spec.objective, quality=QualitySpec()))
    assert "checkpoint" in guarded(checked)
    assert "checkpoint" in [parameter.name for parameter in build_space(checked, gpus=1).dimensions]


def test_a_space_may_say_itself_what_is_chosen_and_never_that_it_keeps_the_output(tmp_path: Path) -> None:
    parameters = {"checkpoint": {"choice": ["w8", "awq"], "changes_output": False}}
    (checkpoint,) = read(tmp_path, search_space={"engine": "vllm", "parameters": parameters}).search_space.parameters
    assert (checkpoint.domain, checkpoint.changes_output) == (Choice(values=("w8", "awq")), True)


def test_a_study_with_variants_survives_being_written_and_read(tmp_path: Path) -> None:
    first = read(tmp_path, variants_dir="/big/disk")
    (tmp_path / "again.yaml").write_text(dump_study(first))
    assert load_study(tmp_path / "again.yaml") == first


def test_launch_flags_and_variants_are_one_conditional_space(tmp_path: Path) -> None:
    space = build_space(read(tmp_path), gpus=1)
    import random

    seen = set()
    for seed in range(60):
        candidate = space.sample(random.Random(seed))
        assert not isinstance(candidate, RuledOut)
        assert "checkpoint" not in candidate.args
        assert ("quantization" in candidate.args) == (candidate.checkpoint is None)
        assert candidate.params["checkpoint"] == (candidate.checkpoint or "base")
        seen.add((candidate.checkpoint, candidate.args.get("quantization")))
    assert seen == {(None, "None"), (None, "fp8"), ("w8", None), ("awq", None)}


def test_the_same_arguments_on_another_checkpoint_are_another_launch(tmp_path: Path) -> None:
    space = build_space(read(tmp_path), gpus=1)
    prints = {
        name: space._candidate({}, {"max_num_seqs": 16, "checkpoint": name}, space.reference(None).role).fingerprint
        for name in ("base", "w8", "awq")
    }
    assert len(set(prints.values())) == 3
    assert prints["base"] == space._candidate({}, {"max_num_seqs": 16}, space.reference(None).role).fingerprint


def test_the_reference_is_the_studys_own_model(tmp_path: Path) -> None:
    reference = build_space(read(tmp_path), gpus=1).reference({"max_num_seqs": 32, "quantization": "fp8"})
    assert reference.checkpoint is None
    assert reference.params == {"checkpoint": "base", "max_num_seqs": 32, "quantization": "fp8"}


def test_without_leave_no_variant_is_searched_and_its_conditions_hold_for_the_model(tmp_path: Path) -> None:
    spec = read(tmp_path, quality=None, search_space={
        "engine": "vllm",
        "parameters": {"max_num_seqs": {"int": [16, 64], "when": "checkpoint == 'base'"}},
    })  # fmt: skip
    space = build_space(spec, gpus=1)
    assert [parameter.name for parameter in space.dimensions] == ["max_num_seqs"]
    assert "checkpoint is not searched: it may change what the model says" in space.notes[0]


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ({"a": {}}, "variants.a: needs exactly one of model and command, got neither"),
        ({"a": {"model": "m", "command": "x"}}, "variants.a: needs exactly one of model and command, got both"),
        ({"a": {"model": "m", "timeout_s": 3.0}}, "variants.a.timeout_s: has no effect: nothing is made"),
        ({"base": {"model": "m"}}, "variants.base: 'base' is the study's own model"),
        ({"a b": {"model": "m"}}, "variants.a b"),
        ({"a": {"comand": "x"}}, "variants.a.comand: unknown key; did you mean command?"),
        ({"a": {"command": "/no/such/tool {output}"}}, "variants.a.command: there is no program '/no/such/tool'"),
        ({"a": {"command": f"{sys.executable} x"}}, "variants.a.command: says nowhere what to write; write {output}"),
        ({"a": {"command": f"{sys.executable} {{output}}", "inputs": ["no.json"]}}, "there is no file 'no.json'"),
        ({"a": {"command": "x {output}", "env": {"HF_TOKEN": "hf_abc"}}}, "a secret must not stand in a study"),
        ({"a": {"model": "./nowhere"}}, "variants.a.model: there is nothing in ./nowhere"),
        ({"a": {"command": "x {output}", "needs_disk_gib": -1.0}}, "must be at least 0"),
    ],
)
def test_what_is_wrong_with_a_variant_is_said_at_its_line(tmp_path: Path, variants: dict[str, Any], said: str) -> None:
    text = complaints(tmp_path, variants=variants)
    assert said in text
    assert f"{tmp_path}/study.yaml:" in text


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ({"choice": ["base", "w8", "awq", "fp4"]}, "'fp4' is no variant of this study; there are: base, awq, w8"),
        ({"choice": ["base", "w8"]}, "variants.awq: is chosen by no candidate"),
        ({"int": [0, 1]}, "a checkpoint is chosen by its name"),
        ({"choice": ["w8", "awq"], "when": "max_num_seqs > 20"}, "the checkpoint is chosen first"),
    ],
)
def test_what_is_wrong_with_the_choice_is_said(tmp_path: Path, checkpoint: dict[str, Any], said: str) -> None:
    parameters = {"checkpoint": checkpoint, "max_num_seqs": {"int": [16, 64]}}
    assert said in complaints(tmp_path, search_space={"engine": "vllm", "parameters": parameters})


def test_an_endpoint_has_none(tmp_path: Path) -> None:
    endpoint = {"name": "e", "model": "m", "engine": {"kind": "endpoint", "url": "http://h"}, "objective": "chat"}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**endpoint, "variants": {"a": {"model": "m2"}}}))
    with pytest.raises(StudyFileError, match="variants: has no effect: nothing is launched"):
        read_study(path)
