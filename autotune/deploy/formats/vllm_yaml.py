"""The best configuration as a file for `vllm serve --config`."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.deploy.deployment import Deployment
from autotune.deploy.shell import checked, header, limit_words
from autotune.engines.vllm import render_yaml
from autotune.errors import InputError
from autotune.records.spec import EngineKind


def export(deployment: Deployment) -> Mapping[str, str]:
    """`vllm serve --config vllm.yaml`: model and arguments, read by vLLM as exactly those measured.

    Raises InputError for another engine's run, and for values that can't be written.
    """
    if deployment.engine is not EngineKind.VLLM:
        raise InputError(f"vllm-yaml is for vLLM, and trial {deployment.best.trial} ran {deployment.engine.value}")
    extra = deployment.extra_args if deployment.asked.limits else {}
    text = render_yaml(deployment.model, {**deployment.args, **extra})
    return {"vllm.yaml": checked(header(deployment, limit_words(deployment)) + text)}
