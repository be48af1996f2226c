"""JSON Schemas (draft 2020-12) of the files, for editors and `autotune schema`; kept in `schemas/` beside this module.

After a change of the forms: `python -c "from autotune.study.schema import write_schemas; write_schemas()"`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autotune.study.form import Form
from autotune.study.forms import SpaceForm, StudyForm
from autotune.study.objective_forms import ObjectiveForm

FOLDER = Path(__file__).parent / "schemas"


def study_schema() -> dict[str, Any]:
    """Return the schema of a study file; its space and objective may be named or inline."""
    return _schema(StudyForm)


def space_schema() -> dict[str, Any]:
    """Return the schema of a search space file."""
    return _schema(SpaceForm)


def objective_schema() -> dict[str, Any]:
    """Return the schema of an objective file."""
    return _schema(ObjectiveForm)


def schema_text(schema: dict[str, Any]) -> str:
    """Return a schema as it is kept in its file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path = FOLDER) -> None:
    """Write all schemas to `folder`."""
    for name, schema in (
        ("study", study_schema()),
        ("search_space", space_schema()),
        ("objective", objective_schema()),
    ):
        (folder / f"{name}.json").write_text(schema_text(schema), encoding="utf-8")


def _schema(form: type[Form]) -> dict[str, Any]:
    schema = form.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_closed(schema)}


def _closed(node: Any) -> Any:  # noqa: ANN401 - a JSON value
    """Return the schema with mappings whose keys have a pattern closed to other keys, which pydantic leaves open."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _closed(value) for key, value in node.items()}
    return closed | {"additionalProperties": False} if "patternProperties" in node else closed
