"""The best configuration behind LiteLLM's proxy: limits, a gradual move, a fallback. Nothing that LiteLLM can't do.

Its keys as of 1.110: `weight` decides before `rpm` and `tpm` in simple-shuffle; `enforce_model_rate_limits` answers 429
beyond them; `max_parallel_requests` does (releases before about 1.80 queue instead). Rolling back by itself on a missed
SLO it can't: see argo-rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.deploy.deployment import Deployment
from autotune.deploy.inside import inside_of
from autotune.deploy.limits import replica_limits
from autotune.deploy.shell import header
from autotune.deploy.yamltext import yaml_file
from autotune.engines.vllm.command import served_name
from autotune.records.spec import EngineKind
from autotune.records.trial import TrialRecord

BEST_BASE, REFERENCE_BASE, MASTER_KEY = "BEST_API_BASE", "REFERENCE_API_BASE", "LITELLM_MASTER_KEY"
NO_KEY = "none"  # the OpenAI client in LiteLLM wants some text
FIRST_SHARE = 10
"""Per cent of the requests that go to the best at first; 100 is the move's end."""


def export(deployment: Deployment) -> Mapping[str, str]:
    """litellm.yaml: LiteLLM's proxy with measured limits, weights for a gradual move, and a fallback if there is one.

    Raises InputError for an engine that is not started.
    """
    inside_of(deployment)  # what starts no engine is refused
    group = _group(deployment)
    fallback = _fallback(deployment, f"{group}-fallback")
    document = {
        "model_list": [*_deployments(deployment, group), *([fallback] if fallback else [])],
        "router_settings": {
            "routing_strategy": "simple-shuffle",
            "optional_pre_call_checks": ["enforce_model_rate_limits"],
            "num_retries": 1,  # on another replica: an overloaded one answers 503 or 429 at once
            **({"fallbacks": [{group: [f"{group}-fallback"]}]} if fallback else {}),
        },
        "general_settings": {"master_key": f"os.environ/{MASTER_KEY}"},
    }
    return {"litellm.yaml": yaml_file(header(deployment, _comments(deployment), environment=False), document)}


def _comments(deployment: Deployment) -> list[str]:
    limits, moves = replica_limits(deployment.trial, deployment.spec.objective), _moves(deployment)
    needed = [MASTER_KEY, BEST_BASE, *([REFERENCE_BASE] if moves else [])]
    move = f"Traffic moves to the best by `weight`, {FIRST_SHARE} % at first: raise it, restart the proxy."
    return [
        f"Needs in the proxy's environment: {', '.join(needed)} (each ..._BASE is http://HOST:PORT/v1).",
        f"Limits of one replica, from {limits.why}; with several behind one address, multiply.",
        "They are not part of what was measured. Beyond them LiteLLM answers 429 at once, or turns to the fallback.",
        *([move] if moves else []),
        "LiteLLM does not roll back by itself when an SLO is missed; argo-rollouts does.",
    ]


def _moves(deployment: Deployment) -> bool:
    """Whether there is something to move from: a reference that ran, other than the best."""
    reference = deployment.reference
    return (
        reference is not None and reference.outcome.measured and reference.fingerprint != deployment.trial.fingerprint
    )


def _deployments(deployment: Deployment, group: str) -> list[dict[str, Any]]:
    if not _moves(deployment) or deployment.reference is None:
        return [_entry(deployment, deployment.trial, group=group, role="best", base=BEST_BASE, weight=None)]
    return [
        _entry(deployment, deployment.trial, group=group, role="best", base=BEST_BASE, weight=FIRST_SHARE),
        _entry(
            deployment,
            deployment.reference,
            group=group,
            role="reference",
            base=REFERENCE_BASE,
            weight=100 - FIRST_SHARE,
        ),
    ]


def _entry(
    deployment: Deployment, trial: TrialRecord, *, group: str, role: str, base: str, weight: int | None
) -> dict[str, Any]:
    limits = replica_limits(trial, deployment.spec.objective)
    parameters = {
        "model": f"{_provider(deployment)}/{_served(deployment, trial)}",
        "api_base": f"os.environ/{base}",
        "api_key": _api_key(deployment),
        "weight": weight,
        "rpm": limits.requests_per_minute,
        "tpm": limits.tokens_per_minute,
        "max_parallel_requests": limits.in_flight,
    }
    return {
        "model_name": group,
        "litellm_params": {name: value for name, value in parameters.items() if value is not None},
        "model_info": {"id": f"{deployment.name}-{role}"},
    }


def _group(deployment: Deployment) -> str:
    """What clients call it: the same for the best and the reference."""
    return _served(deployment, deployment.trial).rstrip("/").rpartition("/")[2] or deployment.name


def _served(deployment: Deployment, trial: TrialRecord) -> str:
    """The name that the server answers to; TensorRT-LLM calls a folder by its last part."""
    if deployment.engine is EngineKind.TENSORRT_LLM:
        return deployment.model.rpartition("/")[2] if deployment.model.startswith("/") else deployment.model
    return served_name(trial.args) or deployment.model


def _provider(deployment: Deployment) -> str:
    return "hosted_vllm" if deployment.engine is EngineKind.VLLM else "openai"


def _api_key(deployment: Deployment) -> str | None:
    if "VLLM_API_KEY" in deployment.spec.engine.env:
        return "os.environ/VLLM_API_KEY"
    return None if deployment.engine is EngineKind.VLLM else NO_KEY


def _fallback(deployment: Deployment, group: str) -> dict[str, Any] | None:
    """Another provider, whose key LiteLLM takes from that provider's own variable, or an endpoint that was measured."""
    wanted = deployment.asked.fallback
    if wanted is None:
        return None
    parameters = {"model": wanted.model}
    if wanted.api_base is not None:
        key = f"os.environ/{wanted.api_key_env}" if wanted.api_key_env else NO_KEY
        parameters |= {"api_base": wanted.api_base, "api_key": key}
    return {"model_name": group, "litellm_params": parameters, "model_info": {"id": f"{deployment.name}-fallback"}}
