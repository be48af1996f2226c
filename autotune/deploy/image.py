"""Which image a deployment runs: the one measured, else the official one of the version measured. Always pinned."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.deploy.deployment import Deployment
from autotune.engines.vllm.flags import flags_version
from autotune.records.spec import EngineKind

VLLM_IMAGE = "vllm/vllm-openai:v{}"
VLLM_CPU_IMAGE = "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v{}"
TRTLLM_IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:{}"
TRTLLM_KNOWN = "1.2.0"  # the first release that fields.json describes


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """`why` says how sure it is that this is what was measured."""

    reference: str
    why: str


def image_of(deployment: Deployment) -> Image:
    """Return the image, by its digest where the study ran in one that has one."""
    if deployment.asked.image is not None:
        return Image(reference=deployment.asked.image, why="as given by --image; nothing checked that it is the same")
    container = deployment.spec.engine.container
    if container is not None:
        measured = deployment.trial.versions.get("container_image")
        why = "the image that was measured" if measured else "the study's image; its digest was not recorded"
        return Image(reference=_pullable(measured, container.image), why=why)
    return _official(deployment)


def _pullable(measured: str | None, named: str) -> str:
    """A bare id names an image of this machine's storage: only a digest can be fetched elsewhere."""
    return named if measured is None or measured.startswith("sha256:") else measured


def _official(deployment: Deployment) -> Image:
    version = _release(deployment.best.versions.get(deployment.engine.value))
    if deployment.engine is EngineKind.TENSORRT_LLM:
        pattern, known, name = TRTLLM_IMAGE, TRTLLM_KNOWN, "TensorRT-LLM"
    else:
        pattern, known, name = (VLLM_IMAGE if deployment.gpus else VLLM_CPU_IMAGE), flags_version(), "vLLM"
    if version is None:
        why = f"{name}'s own of {known}, for no version was measured: set --image"
        return Image(reference=pattern.format(known), why=why)
    why = f"{name}'s own of the version that was measured, {version}, outside a container"
    return Image(reference=pattern.format(version), why=why)


def _release(version: str | None) -> str | None:
    """The release that a version was built from; None for none and for what no registry has (0.33.0.dev7+g1a2b)."""
    found = re.match(r"\d+(\.\d+)+(rc\d+)?(\.post\d+)?", version or "")
    return None if found is None or ".dev" in (version or "") else found.group()
