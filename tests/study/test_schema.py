from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from autotune.study import objective_schema, shipped_objectives, shipped_spaces, space_schema, study_schema
from autotune.study.schema import FOLDER, schema_text
from tests.study.writing import SOUND, changed

ROOT = Path(__file__).parents[2]
STUDIES = sorted(ROOT.glob("studies/*.yaml"))
SCHEMAS = {"study": study_schema, "search_space": space_schema, "objective": objective_schema}
FILES = [
    *((path, "study") for path in STUDIES),
    *((path, "search_space") for path in shipped_spaces().values()),
    *((path, "objective") for path in shipped_objectives().values()),
]


def _errors(schema: dict[str, Any], text: str) -> list[str]:
    return [error.message for error in Draft202012Validator(schema).iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schemas_are_valid_and_those_in_the_repository_are_current(kind: str) -> None:
    schema = SCHEMAS[kind]()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (FOLDER / f"{kind}.json").read_text() == schema_text(schema)


@pytest.mark.parametrize(("path", "kind"), FILES, ids=lambda value: value.stem if isinstance(value, Path) else value)
def test_every_file_is_valid_and_points_its_editor_at_the_schema(path: Path, kind: str) -> None:
    assert _errors(SCHEMAS[kind](), path.read_text()) == []
    match = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())
    assert match is not None
    assert (path.parent / match[1]).resolve() == FOLDER / f"{kind}.json"


def test_inline_spaces_and_objectives_are_valid() -> None:
    assert _errors(study_schema(), SOUND) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model: some/model", "modell: some/model"),
        ("model: some/model", ""),
        ("name: test", "name: a/b"),
        ("kind: vllm", "kind: vlm"),
        ("trials: 5", "trials: 0"),
        ("trials: 5", "trials: many"),
        ("[1, 64], log: true", "[1, 64], lgo: true"),
        ("[1, 64], log: true", "[1]"),
        ("{choice: [16, 32]}", "{choose: [16, 32]}"),
        ("concurrency: 8", "concurrency: 8, poisson_rps: 3"),
        ("concurrency: 8", "duration_s: 8"),
        ("error_ratio: 0.01", "error_ratio: {mn: 1}"),
        ("  maximize: output_tok_per_s", ""),
        ("input_tokens: 128", "input_tokens: {uniform: [1]}"),
        ("input_tokens: 128", "input_tokens: {lognormal: {median: 3}}"),
        ("max_num_seqs: {", "max-num-seqs: {"),
    ],
)
def test_broken_studies_are_invalid(old: str, new: str) -> None:
    assert _errors(study_schema(), changed(old, new)) != []


def test_keys_are_described() -> None:
    for schema in (study_schema(), space_schema(), objective_schema()):
        assert schema["description"]
    described = [key for key, value in study_schema()["properties"].items() if "description" in value]
    assert {"name", "model", "search_space", "objective", "incumbent", "seed", "storage"} <= set(described)
