"""A running vLLM, as the stages behind the launch see it."""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.engines.net import get
from autotune.engines.process import EngineProcess
from autotune.engines.vllm.diagnosis import diagnose
from autotune.engines.vllm.logs import log_warnings, metric_sums, resolved_settings
from autotune.records.trial import Cleanup, Endpoint, Failure, LaunchPlan, Phase

REDACT_FROM_CHARS = 6  # shorter values ("1", "true") are no secrets, and hiding them would garble the log
MAX_LOG_BYTES = 8_000_000  # what is read of a log that has grown beyond all use: its start and its end


def redact(text: str, secrets: tuple[str, ...]) -> str:
    """`text` with every secret replaced."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= REDACT_FROM_CHARS:
            text = text.replace(secret, "<redacted>")
    return text


def read_log(path: Path, secrets: tuple[str, ...] = ()) -> str:
    """The engine's log, redacted; "" before there is one."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LOG_BYTES)
            rest = os.fstat(file.fileno()).st_size - MAX_LOG_BYTES
            if rest > 0:
                file.seek(-min(rest, MAX_LOG_BYTES), os.SEEK_END)
                data += b"\n" + file.read()
    except FileNotFoundError:
        return ""
    return redact(data.decode(errors="replace"), secrets)


def tail(text: str, lines: int) -> tuple[str, ...]:
    """The last `lines` lines."""
    return tuple(text.splitlines()[-lines:]) if lines > 0 else ()


class VllmServer:
    """Follows `engines.base.Server`."""

    def __init__(self, plan: LaunchPlan, process: EngineProcess, log: Path, startup_s: float, model: str) -> None:
        self._plan = plan
        self._process = process
        self._log = log
        self._startup_s = startup_s
        self._model = model
        self._served = self._ask_models()
        self._metrics_text = self._ask_metrics()

    @property
    def endpoint(self) -> Endpoint:
        name = self._served.get("id") or self._plan.model_name
        return Endpoint(host=self._plan.host, port=self._plan.port, model_name=name)

    @property
    def startup_s(self) -> float:
        return self._startup_s

    @property
    def argv(self) -> tuple[str, ...]:
        return self._plan.argv

    @property
    def max_model_len(self) -> int | None:
        length = self._served.get("max_model_len")
        return length if isinstance(length, int) else None

    @property
    def vocab_size(self) -> int | None:
        environment = {**os.environ, **self._plan.env}
        return vocab_size(self._model, environment)

    @property
    def cleanup(self) -> Cleanup | None:
        return self._process.cleanup

    def resolved(self) -> Mapping[str, Any]:
        return resolved_settings(self._text(), self._metrics_text)

    def warnings(self) -> tuple[str, ...]:
        return log_warnings(self._text())

    def metrics(self) -> Mapping[str, float]:
        return metric_sums(self._ask_metrics())

    def exit_code(self) -> int | None:
        return self._process.exit_code()

    def log_tail(self, lines: int) -> tuple[str, ...]:
        return tail(self._text(), lines)

    def failure(self, phase: Phase) -> Failure | None:
        code = self.exit_code()
        return None if code is None else diagnose(code, phase, self._text())

    def _text(self) -> str:
        return read_log(self._log, self._plan.redacted)

    def _ask_metrics(self) -> str:
        answer = get(self._plan.port, "/metrics")
        return answer[1] if answer is not None and answer[0] == 200 else ""

    def _ask_models(self) -> Mapping[str, Any]:
        """The first model of /v1/models; {} when the page can't be read."""
        answer = get(self._plan.port, "/v1/models")
        if answer is None or answer[0] != 200:
            return {}
        try:
            return dict(json.loads(answer[1])["data"][0])
        except (ValueError, LookupError, TypeError):
            return {}


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
