"""What of this machine a container sees: its GPUs, the model, the hub's cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from autotune.engines.command import resolved_model
from autotune.engines.hardware import nvml_gpus


def gpu_uuids(gpus: Sequence[str]) -> tuple[str, ...]:
    """Name GPUs by UUID: an index means another GPU to another program (CUDA_DEVICE_ORDER)."""
    uuids = {gpu.id: gpu.uuid for gpu in nvml_gpus()}
    return tuple(uuids.get(gpu) or gpu for gpu in gpus)


def model_mounts(model: str) -> tuple[str, ...]:
    """A model that is a path stands at the same path inside, read-only; files of a hub's cache are links out of their
    snapshot, so the whole of its repository goes along."""
    folder = Path(resolved_model(model))
    if not folder.exists():
        return ()
    repository = folder.parent.parent if folder.parent.name == "snapshots" else folder
    return (f"{repository}:{repository}:ro",)


def wants_hub(model: str, names: Collection[str]) -> bool:
    """Whether the hub's cache is to be mounted: a model by name, of which the study's own variables say nothing."""
    return not Path(resolved_model(model)).exists() and not {"HF_HOME", "HF_HUB_CACHE"} & set(names)
