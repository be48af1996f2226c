"""What figures depend on: hashes of the sources, so that a memo never answers for code that has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "autotune"
ENGINE = ("physics.py", "truth.py", "traffic.py", "levels.py", "evaluation.py", "landscapes.py")
MODELS = ("kernel", "simulation", "memory", "steptime", "config", "shapes", "observed")


@cache
def of_evaluation() -> str:
    """The version of what a launch measures."""
    models = [PACKAGE / "models" / f"{name}.py" for name in MODELS]
    data = (PACKAGE / "models" / "data").glob("*.json")
    return _digest([*(HERE / name for name in ENGINE), *(HERE / "landscapes").glob("*.yaml"), *models, *data])


@cache
def of_strategy(*, ours: bool) -> str:
    """The version of a strategy: of the benchmark, and of the product's search where that is what runs."""
    files = [
        path for path in HERE.glob("*.py") if path.name not in ("__init__.py", "__main__.py", "table.py", "plot.py")
    ]
    product = (PACKAGE / "search").rglob("*.py") if ours else ()
    return _digest([*files, *product]) + of_evaluation()


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
