"""Every fault the simulated server can be told to have: one table that drives `--help`, the parser and the tests.

A fault is written `name` or `name:value`. What each one does stands in its `help`; where it happens is found by
searching for its name in `startup`, `process`, `core`, `server` and `metrics`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.models.memory import StartupPhase

OOM_PHASES = tuple(StartupPhase)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """`takes`: what may follow the colon; `default` is used when nothing does (None: a value must be given)."""

    name: str
    help: str
    takes: Literal["nothing", "number", "text"] = "nothing"
    value: str = ""
    default: float | str | None = None
    choices: tuple[str, ...] = ()

    @property
    def synopsis(self) -> str:
        """How it is written on the command line."""
        if self.takes == "nothing":
            return self.name
        return f"{self.name}:{self.value}" if self.default is None else f"{self.name}[:{self.value}={self.default}]"


def _number(name: str, value: str, default: float, text: str) -> FaultKind:
    return FaultKind(name=name, takes="number", value=value, default=default, help=text)


KINDS: tuple[FaultKind, ...] = (
    # start-up
    _number("slow_start", "SECONDS", 5, "start-up takes this much longer"),
    FaultKind(name="hang_at_start", help="start-up never ends; nothing listens on the port"),
    FaultKind(
        name="oom",
        takes="text",
        value="PHASE",
        default="weights",
        choices=OOM_PHASES,
        help=f"start-up runs out of memory, with the engine's log lines, exit 1; phases: {', '.join(OOM_PHASES)}",
    ),
    _number("binds_without_listening", "SECONDS", 3600, "the port is bound, but not listened on, for that long first"),
    FaultKind(name="always_503", help="listens, but /health and every request are answered 503 for ever"),
    FaultKind(
        name="fails_like",
        takes="text",
        value="RULE",
        help="start-up fails with the example of that rule of failures.yaml, exit 1 (of TensorRT-LLM's face)",
    ),
    FaultKind(name="drops_flag", takes="text", value="NAME", help="this flag is accepted, then silently ignored"),
    # stopping
    FaultKind(name="ignores_sigterm_starting", help="SIGTERM during start-up is lost"),
    FaultKind(name="ignores_sigterm", help="SIGTERM is always ignored"),
    _number("leaves_children", "SECONDS", 600, "a child in its own session outlives the server, at most that long"),
    FaultKind(name="leaves_shm", help="a file stays behind in /dev/shm"),
    # dying and hanging
    FaultKind(name="dies_at_first_request", help="the engine core crashes on the first request; exit 1"),
    _number("dies_after", "REQUESTS", 20, "the process is killed (SIGKILL) when that many requests were answered"),
    _number(
        "dies_mid_stream",
        "TOKENS",
        20,
        "the engine core dies after that many tokens: clients get 200 and an error event, then the server exits with 0",
    ),
    _number("oom_under_load", "REQUESTS", 16, "the engine core runs out of memory when that many requests are running"),
    _number("hang_under_load", "REQUESTS", 16, "from that many requests on, no token comes; /health stays 200"),
    # answering wrongly
    _number("error_event", "RATIO", 1, "this share of requests gets HTTP 200 with an error event"),
    FaultKind(name="half_chunk", help="every stream is cut inside its second chunk by closing the socket"),
    FaultKind(name="wrong_usage", help="usage counts twice the output tokens and one prompt token too few"),
    FaultKind(
        name="wrong_output",
        takes="text",
        value="FLAG=VALUE",
        default="always",
        help="answers and their log-probabilities are a damaged model's; with FLAG=VALUE in launches with that alone",
    ),
    FaultKind(
        name="perturbed_output",
        takes="text",
        value="FLAG=VALUE",
        default="always",
        help="they differ a little, as a quantised model's do",
    ),
    FaultKind(name="missing_usage", help="usage is left out, also when asked for"),
    FaultKind(name="empty_tokens", help="every token's text is empty"),
    _number("tokens_per_chunk", "TOKENS", 4, "streams carry that many tokens a chunk"),
    # timing and counters
    _number("drifting_speed", "RATIO", 1, "steps get slower by this share of their time every simulated minute"),
    _number("slow_token", "SECONDS", 1, "every 20th step stalls for this long (simulated)"),
    _number("prefix_hits", "RATIO", 0.5, "this share of every prompt is already in the prefix cache"),
    FaultKind(name="lies_in_metrics", help="/metrics halves token counters and hides queue, preemptions and hits"),
)

_BY_NAME = {kind.name: kind for kind in KINDS}


class FaultError(ValueError):
    """A fault was named that doesn't exist, or with a value that it can't take."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults that are on, by name, with their values."""

    values: Mapping[str, float | str]

    def __contains__(self, name: str) -> bool:
        return _kind(name).name in self.values

    def number(self, name: str, otherwise: float = 0.0) -> float:
        """The value of a numeric fault, or `otherwise` when it is off."""
        return float(self.values.get(_kind(name).name, otherwise))

    def text(self, name: str) -> str | None:
        """The value of a textual fault, None when it is off."""
        value = self.values.get(_kind(name).name)
        return None if value is None else str(value)


def parse_faults(texts: Iterable[str]) -> Faults:
    """Read `name[:value]` texts; raises FaultError with the nearest name for one that doesn't exist."""
    return Faults(dict(_parse_one(text.strip()) for text in texts if text.strip()))


def _parse_one(text: str) -> tuple[str, float | str]:
    name, colon, value = text.partition(":")
    kind = _kind(name)
    if not colon:
        return kind.name, _default(kind)
    return kind.name, _value(kind, value)


def _kind(name: str) -> FaultKind:
    if kind := _BY_NAME.get(name):
        return kind
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(_BY_NAME)}"
    raise FaultError(f"unknown fault '{name}'; {hint}")


def _default(kind: FaultKind) -> float | str:
    if kind.takes == "nothing":
        return 1.0
    if kind.default is None:
        raise FaultError(f"fault '{kind.name}' needs a value: {kind.name}:{kind.value}")
    return kind.default


def _value(kind: FaultKind, text: str) -> float | str:
    if kind.takes == "nothing":
        raise FaultError(f"fault '{kind.name}' takes no value, got '{text}'")
    if kind.takes == "number":
        return _as_number(kind, text)
    if kind.choices and text not in kind.choices:
        raise FaultError(f"fault '{kind.name}' takes one of {', '.join(kind.choices)}, got '{text}'")
    return text


def _as_number(kind: FaultKind, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FaultError(f"fault '{kind.name}' takes a number ({kind.value}), got '{text}'") from None


def describe() -> str:
    """The table as text for `--help`."""
    width = max(len(kind.synopsis) for kind in KINDS) + 2
    return "\n".join(f"  {kind.synopsis:<{width}}{kind.help}" for kind in KINDS)
