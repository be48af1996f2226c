"""Small studies on the simulated server, run by the real command line, and what can be seen of them from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.engines.children import wait_until

DEADLINE_S = 120.0
MARK = "AUTOTUNE_TEST_MARK"  # a variable that every process of one study inherits, whoever its parent is by now
STUDY: Mapping[str, Any] = {
    "name": "s",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "engine": {"kind": "simulated", "args": {"max_model_len": 256}, "startup_timeout_s": 60},
    "search_space": {
        "engine": "vllm",
        "parameters": {
            "max_num_seqs": {"int": [8, 64], "log": True},
            "max_num_batched_tokens": {"int": [256, 4096], "log": True},
        },
    },
    "objective": {
        "name": "quick",
        "maximize": "output_tok_per_s",
        "slos": {"ttft_ms.p75": 60_000, "error_ratio": 0.9},
        "workload": {"input_tokens": {"uniform": [16, 32]}, "output_tokens": {"uniform": [8, 16]}},
        "load": {"concurrency": 8, "duration_s": 1.2, "warmup_s": 0.4},
        "confidence": 0.8,
    },
    "budget": {"trials": 2},
    "finals": False,
}


def write_study(
    folder: Path, *, faults: Sequence[str] = (), trials: int = 2, sampler: str = "auto", **engine: Any
) -> Path:
    """A study file whose engine has `faults`; `engine` are more settings of it."""
    simulate = {"face": "server", "gpu": "l40s", "faults": list(faults)}  # slow, so that it takes little of the CPU
    study = {
        **STUDY,
        "engine": {**STUDY["engine"], "simulate": simulate, **engine},
        "budget": {"trials": trials},
        "sampler": sampler,
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


@dataclass(slots=True)
class Place:
    """Where one study runs: its folder, and the mark that all of its processes bear."""

    folder: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "s"

    @property
    def temporary(self) -> Path:
        """What the tuner and everything below it take for /tmp."""
        return self.folder / "tmp"

    def records(self) -> dict[str, str]:
        """The text of every trial.json by the name of its folder."""
        return {path.parent.name: path.read_text() for path in sorted(self.run.glob("trials/*/trial.json"))}

    def outcomes(self) -> list[str]:
        return [json.loads(text)["outcome"] for text in self.records().values()]

    def processes(self) -> list[psutil.Process]:
        """Every living process of the study."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE and self._marked(process.pid):
                    found.append(process)
        return found

    def _marked(self, pid: int) -> bool:
        return f"{MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    def process(self, part: str) -> psutil.Process | None:
        """The one whose command line has `part`; None while there is none."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if part in " ".join(process.cmdline()):
                    return process
        return None

    def left_behind(self) -> list[str]:
        """What outlives the study's end: processes, shared memory that its engines made, temporary files."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.processes(), "the end of every process", deadline_s=30)
        logs = [path.read_text(errors="replace") for path in self.run.glob("trials/*/engine.log")]
        made = [Path(found) for text in logs for found in re.findall(r"Created shared memory (\S+)", text)]
        processes = [str(process) for process in self.processes()]
        return [*processes, *(str(path) for path in [*made, *self.temporary.iterdir()] if path.exists())]


class Tuner:
    """A running `autotune study`: its lines as they come, and its end."""

    def __init__(self, place: Place, process: subprocess.Popen[str]) -> None:
        self.place = place
        self.process = process
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self.lines.append("")
            self._news.notify_all()

    def wait_for(self, pattern: str) -> None:
        """Wait for a line of the live view. Raises AssertionError when the tuner ends without it."""

        def seen() -> bool:
            return any(re.search(pattern, line) for line in self.lines) or not self._reader.is_alive()

        with self._news:
            assert self._news.wait_for(seen, DEADLINE_S), f"no line like {pattern!r}: {self.text}"
        assert any(re.search(pattern, line) for line in self.lines), f"ended without {pattern!r}: {self.text}"

    def wait(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@contextlib.contextmanager
def tuning(place: Place, study: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Tuner]:
    """`autotune study` on a study file, in a session of its own; whatever of it still runs at the end is killed."""
    place.temporary.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "autotune.cli", "study", str(study), "--runs", str(place.folder / "runs"), *options]
    own = {MARK: place.mark, "TMPDIR": str(place.temporary), "TERM": "dumb", "COLUMNS": "200"}
    process = subprocess.Popen(
        argv,
        env={**os.environ, **own, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield Tuner(place, process)
        finally:
            for left in place.processes():
                with contextlib.suppress(psutil.Error):
                    left.kill()
