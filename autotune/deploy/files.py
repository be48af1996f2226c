"""`best/`: written whole beside its place, then put there, so that a pipeline never finds half of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from autotune.deploy.deployment import Asked, Deployment, make_deployment
from autotune.deploy.exporters import exporter
from autotune.errors import InputError
from autotune.records.spec import EngineKind, StudySpec
from autotune.records.summary import StudySummary
from autotune.records.trial import TrialRecord
from autotune.trial.store import RunDirectory, to_json, write_atomically

IN_BEST: Mapping[EngineKind, tuple[str, ...]] = {
    EngineKind.VLLM: ("vllm-yaml", "shell"),
    EngineKind.TENSORRT_LLM: ("trtllm-yaml", "shell"),
    EngineKind.TRITON: ("triton",),
}
"""Formats that `best/` always has, by the engine that ran; the others are a command away."""


def write_best(
    run: RunDirectory, spec: StudySpec, best: TrialRecord, reference: TrialRecord | None, summary: StudySummary
) -> Path:
    """Write `best/` of a run, in place of an older one, and return it.

    Raises InputError when a value can't be written the way the engine reads it; an older `best/` then stays.
    """
    deployment = make_deployment(run, spec, best, reference, summary, trials=run.trials(), asked=Asked(here=True))
    texts = best_texts(deployment)
    run.path.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=run.path, prefix=".best."))
    try:
        fresh.chmod(0o755)
        write_files(fresh, texts)
        write_atomically(fresh / "best.json", to_json(deployment.best))
        _swap(fresh, run.best)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return run.best


def best_texts(deployment: Deployment) -> dict[str, str]:
    """Return the files of `best/` beside best.json."""
    texts: dict[str, str] = {}
    for name in IN_BEST.get(deployment.engine, ()):
        texts |= exporter(name)(deployment)
    return texts


def write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files by name, `.sh` executable. Raises InputError for a name that leads out of `folder`."""
    for name, text in texts.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or path == folder:
            raise InputError(f"an exporter names a file {name!r}", "it would lie outside its folder")
        write_atomically(path, text.encode())
        if name.endswith(".sh"):
            path.chmod(0o755)


def _swap(fresh: Path, place: Path) -> None:
    """No rename replaces a folder that isn't empty, so the old one steps aside first; it is gone only when the new
    one stands."""
    old = place.with_name(f".{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)
