"""`best/`: written whole beside its place, then put there, so that a pipeline never finds half of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.deploy import tensorrt_llm, vllm
from autotune.deploy.evidence import BestFile, best_file
from autotune.engines.tensorrt_llm.options import FILE_NAME
from autotune.records.spec import EngineKind, StudySpec
from autotune.records.summary import StudySummary
from autotune.records.trial import TrialRecord
from autotune.trial.store import RunDirectory, to_json, write_atomically

Exporter = Callable[[BestFile, StudySpec], str]

EXPORTERS: Mapping[EngineKind, Mapping[str, Exporter]] = {
    EngineKind.VLLM: {"vllm.yaml": vllm.vllm_yaml, "serve.sh": vllm.serve_sh},
    EngineKind.TENSORRT_LLM: {FILE_NAME: tensorrt_llm.options_yaml, "serve.sh": tensorrt_llm.serve_sh},
}
"""File name -> what writes it, by the engine whose parameters the space has. Files ending in `.sh` are executable."""


def write_best(
    run: RunDirectory, spec: StudySpec, best: TrialRecord, reference: TrialRecord | None, summary: StudySummary
) -> Path:
    """Write `best/` of a run, in place of an older one, and return it.

    Raises InputError when a value can't be written the way the engine reads it; an older `best/` then stays.
    """
    content = best_file(run, spec, best, reference, summary)
    exporters = EXPORTERS.get(spec.search_space.engine, {})
    texts = {name: export(content, spec) for name, export in exporters.items()}
    run.path.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=run.path, prefix=".best."))
    try:
        fresh.chmod(0o755)
        for name, text in texts.items():
            write_atomically(fresh / name, text.encode())
            if name.endswith(".sh"):
                (fresh / name).chmod(0o755)
        write_atomically(fresh / "best.json", to_json(content))
        _swap(fresh, run.best)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return run.best


def _swap(fresh: Path, place: Path) -> None:
    """No rename replaces a folder that isn't empty, so the old one steps aside first; it is gone only when the new
    one stands."""
    old = place.with_name(f".{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)
