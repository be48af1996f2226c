"""The best configuration as the options file of `trtllm-serve --config`."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.deploy.deployment import Deployment
from autotune.deploy.shell import checked, header
from autotune.engines.tensorrt_llm.options import FILE_NAME, render_options
from autotune.errors import InputError
from autotune.records.spec import EngineKind


def export(deployment: Deployment) -> Mapping[str, str]:
    """`trtllm-serve serve MODEL --config options.yaml`: below its comment the very bytes that were measured.

    Raises InputError for another engine's run.
    """
    if deployment.engine is not EngineKind.TENSORRT_LLM:
        raise InputError(
            f"trtllm-yaml is for TensorRT-LLM, and trial {deployment.best.trial} ran {deployment.engine.value}"
        )
    return {FILE_NAME: checked(header(deployment) + render_options(deployment.args))}
