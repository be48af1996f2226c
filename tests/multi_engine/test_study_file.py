"""`engines:` in a study file: read engine by engine, every problem at its line, unequal treatment refused or told."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from autotune.errors import StudyFileError
from autotune.pipeline import read_study
from autotune.records.spec import EngineKind, SpaceSpec
from autotune.study import dump_study, study_schema, uneven
from tests.multi_engine.studies import SPACE, entry, study

FILE = """\
name: two
model: meta-llama/Llama-3.1-8B-Instruct
engines:
  vllm:
    kind: simulated
    simulate: {gpu: h100}
    space: vllm/default
    incumbent: {max_num_seqs: 128}
  trtllm:
    kind: tensorrt_llm
    simulate: {gpu: h100}
    space: tensorrt_llm/default
hardware: {gpus: [0]}
objective: chat
budget: {trials: 8}
"""


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    text = FILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "study.yaml").write_text(text)
    return folder / "study.yaml"


def problems(folder: Path, *changes: tuple[str, str]) -> list[str]:
    with pytest.raises(StudyFileError) as refused:
        read_study(written(folder, *changes))
    return [line.rpartition("study.yaml:")[2] for line in refused.value.lines]


def test_each_engine_has_its_own_space_and_incumbent_and_they_share_the_rest(tmp_path: Path) -> None:
    spec = read_study(written(tmp_path))
    one, other = (spec.of_engine(name) for name in spec.engine_names)
    assert (one.engine.name, one.engine.kind, one.search_space.name) == ("vllm", EngineKind.SIMULATED, "vllm/default")
    assert (other.engine.kind, other.search_space.name) == (EngineKind.TENSORRT_LLM, "tensorrt_llm/default")
    assert (one.incumbent, other.incumbent) == ({"max_num_seqs": 128}, None)
    assert (one.objective, one.seed, one.hardware) == (other.objective, other.seed, other.hardware)


def test_the_resolved_study_reads_back_as_the_same(tmp_path: Path) -> None:
    spec = read_study(written(tmp_path))
    (tmp_path / "dumped.yaml").write_text(dump_study(spec))
    assert read_study(tmp_path / "dumped.yaml") == spec


def test_the_schema_takes_the_file_and_neither_both_nor_none(tmp_path: Path) -> None:
    data = yaml.safe_load(written(tmp_path).read_text())
    validator = jsonschema.Draft202012Validator(study_schema())
    assert validator.is_valid(data)
    assert not validator.is_valid(data | {"engine": {"kind": "vllm"}})
    assert not validator.is_valid({key: value for key, value in data.items() if key != "engines"})


def test_problems_stand_at_their_lines_under_the_engines_name_and_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        ("simulate: {gpu: h100}\n    space: vllm", "startup_time: 3\n    space: vllm"),
        ("tensorrt_llm/default", "tensorrt_llm/defualt"),
        ("trials: 8", "trials: 0"),
    )
    assert any(line.startswith("12: engines.trtllm.space: ") for line in found)
    assert any(line.startswith("6: engines.vllm.startup_time: unknown key") for line in found)
    assert sum(line.startswith("15: budget.trials: ") for line in found) == 1


def test_a_stages_own_checks_name_the_engine_too(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, ("simulate: {gpu: h100}\n    space: ten", "simulate: {gpu: h1000}\n    space: ten"))
    assert found.startswith("11: engines.trtllm.simulate.gpu: no constants for a GPU called 'h1000'")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("hardware", "engine: {kind: vllm}\nhardware"), "engine: belongs to each engine"),
        (("hardware", "search_space: vllm/default\nhardware"), "search_space: belongs to each engine"),
        (("    space: vllm/default\n", ""), "engines.vllm.space: is missing"),
        (("    space: vllm", "    search_space: vllm"), "engines.vllm.search_space: unknown key"),
        (("  trtllm:", "  tr.t:"), "engines.tr.t: 'tr.t' can't be used as a name"),
        (("kind: tensorrt_llm", "kind: endpoint"), "engines.trtllm.kind: nothing is tuned of an endpoint"),
    ],
)
def test_what_is_no_study_of_several_engines_is_refused(change: tuple[str, str], line: str, tmp_path: Path) -> None:
    assert any(line in found for found in problems(tmp_path, change))


def test_one_engine_alone_is_no_choice(tmp_path: Path) -> None:
    text = FILE[: FILE.index("  trtllm:")] + FILE[FILE.index("hardware:") :]
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(StudyFileError, match="engines: expected two or more engines by name"):
        read_study(tmp_path / "study.yaml")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("simulate: {gpu: h100}", "simulate: {gpu: h200}"), "simulated on different GPUs: vllm h200, trtllm h100"),
        (("    kind: sim", "    args: {tokenizer: t}\n    kind: sim"), "different tokenizers: vllm tokenizer t"),
        (
            ("    kind: sim", "    args: {load_format: dummy}\n    kind: sim"),
            "different weights: vllm load_format dummy",
        ),
        (("trials: 8", "trials: 3"), "3 trials are too few for 2 engines"),
        (("objective: chat", "sampler: grid\nobjective: chat"), "a grid can't be laid over several engines"),
        (("    simulate: {gpu: h100}\n    space: ten", "    space: ten"), "can't be compared with a real one"),
    ],
)
def test_engines_that_can_not_be_compared_are_refused_with_the_reason(
    change: tuple[str, str], reason: str, tmp_path: Path
) -> None:
    assert any(reason in line for line in problems(tmp_path, change))


def test_the_same_treatment_raises_no_doubt(tmp_path: Path) -> None:
    assert list(uneven(read_study(written(tmp_path)), 1)) == []


def test_treatment_that_may_favour_one_is_told() -> None:
    wide = SpaceSpec(name="wide", engine=EngineKind.VLLM, parameters=SPACE.parameters)
    spec = study(
        entry("a", args={"tensor_parallel_size": 2, "max_model_len": 4096}), entry("b", wide, args={"dtype": "half"})
    )
    told = list(uneven(spec, 2))
    assert any("other numbers of GPUs: a [2], b [1]" in line for line in told)
    assert any("longest request" in line and "a 4096" in line for line in told)
    assert any("number formats are fixed; are they the same?: a none, b [dtype half]" in line for line in told)
