"""What the user should know of the machine before a study: room for the model's weights. Nothing here stops one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from autotune.models.config import WEIGHT_BYTES
from autotune.models.facts import hub_cache, model_folder, weights_bytes
from autotune.models.shapes import shape_of
from autotune.records.spec import EngineKind, StudySpec

GB = 10**9  # as downloads and disks are counted


def machine_doubts(spec: StudySpec) -> Iterator[str]:
    """Yield sentences about disk and host memory for the weights of a model that really is to be launched."""
    if spec.simulated or spec.engine.kind is EngineKind.ENDPOINT:
        return
    env = {**os.environ, **spec.engine.env}
    folder = model_folder(spec.model, env)
    present = weights_bytes(folder)
    size = present or _expected_bytes(spec.model)
    if not size:
        return
    if not present and folder is None and "download_dir" not in spec.engine.args:
        cache = hub_cache(env)
        free = shutil.disk_usage(_existing(cache)).free
        if size > free:
            yield f"the model's weights take {size / GB:.0f} GB to fetch; {cache} has {free / GB:.0f} GB free"
    memory = psutil.virtual_memory().total
    if size > memory:
        yield (
            f"the model's weights take {size / GB:.0f} GB; this host has {memory / GB:.0f} GB of memory, so every "
            "launch reads them from disk"
        )


def _expected_bytes(model: str) -> float:
    shape = shape_of(model)
    return 0.0 if shape is None else shape.parameters * WEIGHT_BYTES.get(shape.weight_format, 2.0)


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())
