"""One container as `engines.process` keeps it: which program does, how it is found, and whether it is what answers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.engines.containers.owner import LAUNCH
from autotune.engines.containers.runline import INSIDE_PORT
from autotune.engines.containers.runtime import Runtime, RuntimeRefusedError
from autotune.engines.net import HOST


def launch_mark() -> str:
    """A value of the label LAUNCH that no other container has."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLaunch:
    """Follows `engines.process.Contained`. `mark` is the container's LAUNCH label."""

    runtime: Runtime
    mark: str
    host_network: bool = False
    host_ipc: bool = False
    start_timeout_s: float
    keeper: Path = field(default=Path(__file__).parent / "keeper.py")

    @property
    def label(self) -> str:
        """What finds the container, in whatever state it is."""
        return f"{LAUNCH}={self.mark}"

    @property
    def plan(self) -> Mapping[str, Any]:
        """What its keeper needs to know."""
        return {"client": self.runtime.program, "label": self.label, "host_ipc": self.host_ipc}

    def serves(self, container: str, port: int) -> bool:
        """Whether it is this container that answers: by the port that its runtime holds for it, on the host's network
        by a listening socket of one of its own processes."""
        if self.host_network:
            return self.runtime.listens(container, port)
        return self.runtime.publishes(container, INSIDE_PORT, HOST, port)

    def remove(self) -> int:
        """Remove it without its keeper; a runtime that can't be asked counts as one left."""
        try:
            self.runtime.remove(self.runtime.labelled(self.label))
            return len(self.runtime.labelled(self.label))
        except RuntimeRefusedError:
            return 1
