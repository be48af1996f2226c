"""Fetches a model from the Hugging Face hub. Run by path in the engine's own Python, whose huggingface_hub it uses.

In: one argument, JSON (`repository`, `revision`, `code`, `consolidated`); the token by HF_TOKEN alone. Out: JSON lines
on stdout, `plan`, then `done`, `full` or `failed`; huggingface_hub shows its progress on stderr.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

KEPT = (".json", ".txt", ".model", ".jinja", ".tiktoken")
SPARE_BYTES = 2 * 2**30  # what the engine's own caches take


def say(event: str, **fields: object) -> None:
    """Write one event."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def wanted(names: Iterable[str], *, code: bool, consolidated: bool) -> list[str]:
    """Return the files that vLLM loads: one kind of weights, in the repository's root, and all that is small."""
    names = list(names)
    root = [name for name in names if "/" not in name]
    tensors = [name for name in root if name.endswith(".safetensors")]
    other = [name for name in tensors if name.startswith("consolidated")]
    plain = [name for name in tensors if name not in other]
    weights = (other if consolidated else plain) or tensors or [name for name in root if name.endswith(".bin")]
    small = [name for name in names if name.endswith(KEPT) or (code and name.endswith(".py"))]
    return sorted({*weights, *small})


def existing(folder: Path) -> Path:
    """Return the nearest folder above that is there."""
    return folder if folder.is_dir() else existing(folder.parent)


def fetch(*, repository: str, revision: str | None, code: bool, consolidated: bool) -> None:
    """Look at what the hub has and the cache lacks, and fetch that where there is room."""
    hub = importlib.import_module("huggingface_hub")  # the engine's
    info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings}
    names = wanted(sizes, code=code, consolidated=consolidated)
    here = [n for n in names if isinstance(hub.try_to_load_from_cache(repository, n, revision=info.sha), str)]
    missing = sum(sizes[name] for name in names if name not in here)
    cache = hub.constants.HF_HUB_CACHE
    free = shutil.disk_usage(existing(Path(cache).absolute())).free
    say("plan", cache=cache, files=len(names), missing_bytes=missing, free_bytes=free, revision=info.sha)
    if missing and missing + SPARE_BYTES > free:
        say("full")
        return
    folder = hub.snapshot_download(repository, revision=revision, allow_patterns=names)
    say("done", folder=folder)


def main() -> None:
    """Fetch, and tell of whatever went wrong."""
    try:
        fetch(**json.loads(sys.argv[1]))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and classified by the tuner
        say("failed", error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
