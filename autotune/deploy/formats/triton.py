"""The best configuration as a Triton model repository for TensorRT-LLM's LLM API backend."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.deploy.deployment import Deployment
from autotune.deploy.shell import checked, header
from autotune.engines.tensorrt_llm.options import options
from autotune.engines.triton.repository import repository
from autotune.errors import InputError
from autotune.records.spec import EngineKind


def export(deployment: Deployment) -> Mapping[str, str]:
    """A Triton model repository for the llmapi backend: model.yaml with the measured options, config.pbtxt.

    The same files as a study of Triton launches. Raises InputError for another engine's run.
    """
    require_tensorrt_llm(deployment, "triton")
    through_triton = deployment.engine is EngineKind.TRITON
    args = deployment.args if through_triton else options(deployment.args)
    comments = (
        [] if through_triton else ["Measured through trtllm-serve: through Triton these options were not measured."]
    )
    top = header(deployment, comments)
    gpus = deployment.trial.gpus if through_triton else deployment.gpus  # its instances may share one
    files = repository(args, model=deployment.model, gpus=[str(gpu) for gpu in range(gpus or 1)])
    return {name: checked(top + text) for name, text in files.items()}


def require_tensorrt_llm(deployment: Deployment, name: str) -> None:
    """Raise InputError for another engine's run."""
    if deployment.engine not in (EngineKind.TENSORRT_LLM, EngineKind.TRITON):
        trial, kind = deployment.best.trial, deployment.engine.value
        raise InputError(
            f"{name} is for TensorRT-LLM, and trial {trial} ran {kind}", "use kubernetes, compose or docker"
        )
