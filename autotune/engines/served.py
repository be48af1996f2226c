"""A running engine, as the stages behind the launch see it: what is the same whichever engine it is."""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.engines.launching import Started, Way, why_ended
from autotune.engines.logfile import tail
from autotune.engines.net import get
from autotune.records.trial import Cleanup, Endpoint, Failure, Phase


class LaunchedServer(ABC):
    """Follows `engines.base.Server` and `engines.telemetry.OnGpus`; an engine adds what it tells of itself."""

    def __init__(self, way: Way, started: Started, model: str) -> None:
        self._way = way
        self._started = started
        self._model = model
        self._card = _first(self._asked("/v1/models").get("data"))
        self._simulated = self._asked("/version").get("simulated") is True

    # --- what engines tell differently --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def max_model_len(self) -> int | None: ...

    @abstractmethod
    def resolved(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def warnings(self) -> tuple[str, ...]: ...

    @abstractmethod
    def metrics(self) -> Mapping[str, float]: ...

    # --- what is the same ---------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> Endpoint:
        plan = self._started.plan
        name = self._card.get("id") or plan.model_name
        return Endpoint(host=plan.host, port=plan.port, model_name=name, api_key=plan.api_key)

    @property
    def simulated(self) -> bool:
        return self._simulated

    @property
    def startup_s(self) -> float:
        return self._started.startup_s

    @property
    def argv(self) -> tuple[str, ...]:
        return self._started.plan.argv

    @property
    def vocab_size(self) -> int | None:
        return vocab_size(self._model, {**os.environ, **self._started.plan.env})

    @property
    def cleanup(self) -> Cleanup | None:
        return self._started.memory.proven(self._started.process.cleanup)

    @property
    def gpus(self) -> tuple[str, ...]:
        return self._started.memory.gpus

    @property
    def others_bytes(self) -> Mapping[str, int]:
        return self._started.memory.others_bytes

    def owns(self, pid: int) -> bool | None:
        return self._started.memory.owns(pid)

    def exit_code(self) -> int | None:
        return self._started.process.exit_code()

    def log_tail(self, lines: int) -> tuple[str, ...]:
        return tail(self._started.text(), lines)

    def failure(self, phase: Phase) -> Failure | None:
        if self.exit_code() is None:
            return None
        started = self._started
        return started.memory.blame(why_ended(self._way, started.process, phase, started.text()))

    def _page(self, path: str) -> str:
        """A page of the server's, "" when it can't be read."""
        plan = self._started.plan
        answer = get(plan.port, path, api_key=plan.api_key)
        return answer[1] if answer is not None and answer[0] == 200 else ""

    def _asked(self, path: str) -> Mapping[str, Any]:
        """A page of the server's that holds a JSON object; {} when it can't be read."""
        try:
            answer = json.loads(self._page(path))
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}


def _first(entries: object) -> Mapping[str, Any]:
    """The first of a list of objects; {} where there is none."""
    first = entries[0] if isinstance(entries, list) and entries else None
    return first if isinstance(first, dict) else {}


def vocab_size(model: str, environment: Mapping[str, str]) -> int | None:
    """Vocabulary of a model by its config.json, in its folder or in the hub's cache; None when neither is here."""
    for path in _config_files(model, environment):
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        if isinstance(size, int):
            return size
    return None


def _config_files(model: str, environment: Mapping[str, str]) -> list[Path]:
    """Where the config.json may be, as huggingface_hub lays out its cache (HF_HUB_CACHE, HF_HOME)."""
    home = environment.get("HF_HOME") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = Path(environment.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
    snapshots = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    return [Path(model, "config.json"), *sorted(snapshots.glob("*/config.json"))]
