"""Tools that cross-check a measurement: how each is given a level, and how its answer is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.bench.replay import Replay
from autotune.engines.endpoint import EndpointServer
from autotune.errors import EnvironmentFault
from autotune.records.trial import RequestRecord

PERCENTILES = (50, 90, 95, 99)
SHARED_DIFFERENCES = (
    "its rates are over the time from the first request to the last answer, ours over the window after warm-up",
    "its latencies count from the sending, in an open loop too, where ours count from when the request was due",
    "its figures are of all requests, those of the warm-up too, and its percentiles interpolate between values",
)
"""By which all of these tools differ from us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a tool found: its own figures by our names for the nearest metric, and its requests on a clock that starts
    with the first of them."""

    said: Mapping[str, float]
    requests: tuple[RequestRecord, ...]
    version: str | None = None


class Tool(Protocol):
    """Another load generator."""

    @property
    def name(self) -> str:
        """As `--cross-check` names it."""

    @property
    def command(self) -> tuple[str, ...]:
        """What starts it when it is on PATH."""

    @property
    def install(self) -> str:
        """How to get it."""

    @property
    def differences(self) -> tuple[str, ...]:
        """Where its definitions differ from ours, a line each."""

    def arguments(self, replay: Replay, server: EndpointServer, folder: Path, command: Sequence[str]) -> list[str]:
        """Write what it needs into `folder`, and return the arguments that follow `command`."""

    def read(self, replay: Replay, folder: Path) -> Answered:
        """Return what it left in `folder`. Raises EnvironmentFault when that is not what is known of it."""


def tool_named(name: str) -> Tool:
    """Return the tool called so. Raises KeyError."""
    from autotune.bench.aiperf import Aiperf  # noqa: PLC0415 - only the tool asked for is loaded
    from autotune.bench.vllm_bench import VllmBench  # noqa: PLC0415

    tools: dict[str, Tool] = {"vllm-bench": VllmBench(), "aiperf": Aiperf()}
    return tools[name]


TOOLS = ("vllm-bench", "aiperf")


def unreadable(tool: str, what: object) -> EnvironmentFault:
    """Return the error for results of another shape than the one known."""
    return EnvironmentFault(
        f"the results of {tool} can't be read: {what}", "its format may have changed; leave --cross-check out"
    )


def tokenizer_arguments(server: EndpointServer, command: Sequence[str]) -> list[str]:
    """Return where the tool finds the tokenizer, unless the user's command says it: the weights' own name or folder."""
    if any(argument.partition("=")[0] == "--tokenizer" for argument in command):
        return []
    return ["--tokenizer", server.card.root or server.card.name]
