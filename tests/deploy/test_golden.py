"""What each format looks like, whole: read the files in golden/ to review a change; `UPDATE_GOLDEN=1` writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.deploy import exporter
from autotune.deploy.files import write_files
from autotune.records.spec import EngineKind
from tests.deploy.deployments import CASES, contained, deployment_of

GOLDEN = Path(__file__).parent / "golden"
WAYS = [(kind, name, "host") for kind, name in CASES if name != "triton"] + [  # whose files are the engine's own
    (kind, name, "container") for kind in (EngineKind.VLLM,) for name in ("shell", "docker", "compose", "kubernetes")
]


@pytest.mark.parametrize(("kind", "name", "way"), WAYS)
def test_a_format_is_written_as_it_was(kind: EngineKind, name: str, way: str) -> None:
    deployment = deployment_of(kind, spec=contained(kind) if way == "container" else None)
    texts, folder = exporter(name)(deployment), GOLDEN / kind.value / way / name
    if os.environ.get("UPDATE_GOLDEN"):
        write_files(folder, texts)
    assert {file: text.splitlines() for file, text in texts.items()} == {
        str(path.relative_to(folder)): path.read_text().splitlines() for path in folder.rglob("*") if path.is_file()
    }


def test_exports_are_pure_functions() -> None:
    for kind, name in CASES:
        assert exporter(name)(deployment_of(kind)) == exporter(name)(deployment_of(kind))
