"""A model of the Hugging Face hub in this machine's cache: where it lies, whether it is whole, when to stay offline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from autotune.engines.model_files import missing_in
from autotune.models.facts import hub_cache
from autotune.records.spec import Args

OFFLINE_NAMES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
OTHER_REPOSITORIES = frozenset(
    {
        "tokenizer",
        "hf_config_path",
        "speculative_config",
        "lora_modules",
        "enable_lora",
        "trust_remote_code",
        "quantization_param_path",
        "download_dir",
    }
)
"""Arguments by which an engine may look for files beyond the model's own repository or outside the cache."""


def is_path(model: str) -> bool:
    """Whether a study names its model by a folder of this machine."""
    return Path(model).expanduser().exists()


def cached_snapshot(model: str, revision: str | None, env: Mapping[str, str]) -> Path | None:
    """Return the cache's folder of a revision (branch, tag, commit), under the environment `env`; None without one."""
    repository = hub_cache(env) / f"models--{model.replace('/', '--')}"
    name = revision or "main"
    try:
        commit = (repository / "refs" / name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = name
    folder = repository / "snapshots" / commit
    return folder if folder.is_dir() else None


def complete_snapshot(model: str, args: Args, env: Mapping[str, str]) -> Path | None:
    """Return the model's folder in the cache when an engine finds all that it loads there, else None."""
    revision = args.get("revision")
    folder = cached_snapshot(model, revision if isinstance(revision, str) else None, env)
    weights = args.get("load_format") != "dummy"
    return folder if folder is not None and next(missing_in(folder, weights=weights), None) is None else None


def offline(model: str, args: Args, env: Mapping[str, str]) -> dict[str, str]:
    """Return what keeps an engine off the network: HF_HUB_OFFLINE=1 when its model lies whole in the cache.

    So a hub that is slow or down spoils no trial, and no new revision slips in between two. {} for a model that is a
    path, where arguments name other repositories, and where the user has said anything about it in `env` or around.
    """
    around = {**os.environ, **env}
    if is_path(model) or any(name in around for name in OFFLINE_NAMES) or OTHER_REPOSITORIES & args.keys():
        return {}
    return {"HF_HUB_OFFLINE": "1"} if complete_snapshot(model, args, around) is not None else {}


def model_versions(model: str, args: Args, env: Mapping[str, str]) -> dict[str, str | None]:
    """Return what a record says of the model: the commit that the cache has of it, None for a path or none."""
    folder = None if is_path(model) else complete_snapshot(model, args, {**os.environ, **env})
    return {"model_revision": folder.name if folder else None}
