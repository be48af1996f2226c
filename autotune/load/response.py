"""What a response says: server-sent events of an OpenAI stream, parsed after it ended, off the path that keeps time.

The client keeps the body as it came and, for each read, the time and how many body bytes had arrived by then. An event
arrived with the read that brought its last byte; so any cutting of a stream into reads gives the same events.

An event carries a token when it has text or reasoning, or when it is a decoding step without visible text (a special
token, half a character): a choice whose text is empty, not the opening event with the role and not the closing event.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

CUT = "cut"
"""Error of a request that the client gave up at the level's end."""

TRUNCATED = "truncated"
"""Error of a stream that ended in proper HTTP, but with neither `[DONE]` nor a finish_reason."""

NO_TOKENS = "no tokens"

_EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_EXCERPT_BYTES = 300
_TEXT_KEYS = ("text", "content", "reasoning_content", "reasoning", "tool_calls", "refusal")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResponse:
    """A response as the client kept it: `read_s[i]` is when the body had grown to `read_ends[i]` bytes."""

    status: int | None
    body: bytes
    read_s: Sequence[float]
    read_ends: Sequence[int]
    error: str | None = None


@dataclass(slots=True)
class Parsed:
    """What the stream held. Times are those of `RawResponse`; counts are the server's `usage`, None without.

    `chunk_tokens` are the tokens of each of the events in `chunk_s`, empty unless the server counts them with each.
    """

    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None


def parse(raw: RawResponse) -> Parsed:
    """Read a response; whatever a server sends gives a `Parsed`, its `error` None only for a proper success."""
    if raw.status is not None and raw.status != 200:
        return Parsed(error=raw.error if raw.error == CUT else f"HTTP {raw.status}: {_excerpt(raw.body)}")
    stream = _Stream()
    for end, payload in _events(raw.body):
        stream.take(payload, at_read=bisect_left(raw.read_ends, end))
    parsed = stream.parsed
    parsed.chunk_s = [raw.read_s[read] for read in stream.token_reads()]
    parsed.chunk_tokens = stream.token_counts()
    parsed.error = parsed.error or _verdict(raw, stream)
    return parsed


def _verdict(raw: RawResponse, stream: _Stream) -> str | None:
    """The error of a response in which no event was an error."""
    if raw.error == CUT:
        return CUT
    ended = stream.done or stream.parsed.finish_reason is not None
    if raw.error is not None and not ended:
        return raw.error
    if not stream.parsed.chunk_s:
        return NO_TOKENS if stream.events or not raw.body else f"not an event stream: {_excerpt(raw.body)}"
    return None if ended else TRUNCATED


def _excerpt(body: bytes) -> str:
    return " ".join(body[:_EXCERPT_BYTES].decode(errors="replace").split())


def _events(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (position after the event, its data); the last may lack its blank line."""
    start = 0
    while start < len(body):
        match = _EVENT_END.search(body, start)
        stop, end = (match.start(), match.end()) if match else (len(body), len(body))
        if (payload := _data(body[start:stop])) is not None:
            yield end, payload
        start = end


def _data(event: bytes) -> bytes | None:
    """The data lines of an event, joined; None for comments and events without data."""
    if event.startswith(b"data: ") and b"\n" not in event and b"\r" not in event:
        return event[6:]  # nearly every event
    lines = [line[5:] for line in _LINE_END.split(event.removeprefix(b"\xef\xbb\xbf")) if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines) if lines else None


class _Stream:
    """Collects the events of one response in order."""

    def __init__(self) -> None:
        self.parsed = Parsed()
        self.events = 0
        self.done = False
        self._token_reads: list[int] = []
        self._totals: list[int | None] = []  # tokens so far, as the server counts them, at each of these
        self._finish_read: int | None = None

    def take(self, payload: bytes, *, at_read: int) -> None:
        self.events += 1
        if payload.strip() == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self.parsed.error = self.parsed.error or f"bad event: {_excerpt(payload)}"
        elif error := event.get("error") or (event.get("object") == "error" and event):
            self.parsed.error = self.parsed.error or f"server error: {_error_text(error)}"
        else:
            usage = event.get("usage")
            self._usage(usage)
            self._choice(event.get("choices"), at_read, counted=isinstance(usage, dict))

    def token_reads(self) -> list[int]:
        """Reads that brought a token. A sole closing event that `usage` says was a token counts as one."""
        if not self._token_reads and self._finish_read is not None and self.parsed.output_tokens:
            return [self._finish_read]
        return self._token_reads

    def token_counts(self) -> list[int]:
        """Tokens of each event with a token; empty unless all of them came with a count."""
        totals = [total for total in self._totals if total is not None]
        if len(totals) < len(self._totals):
            return []
        return [max(0, after - before) for before, after in pairwise([0, *totals])]

    def _usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        parsed = self.parsed
        parsed.prompt_tokens = _count(usage, "prompt_tokens", parsed.prompt_tokens)
        parsed.output_tokens = _count(usage, "completion_tokens", parsed.output_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            parsed.cached_tokens = _count(details, "cached_tokens", parsed.cached_tokens)

    def _choice(self, choices: object, at_read: int, *, counted: bool) -> None:
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        choice = choices[0]
        delta = choice.get("delta")
        said = delta if isinstance(delta, dict) else choice
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self.parsed.finish_reason = finish
            self._finish_read = at_read
        texts = [said[key] for key in _TEXT_KEYS if key in said]
        if any(texts) or ("" in texts and not finish and "role" not in said):
            self._token_reads.append(at_read)
            self._totals.append(self.parsed.output_tokens if counted else None)


def _error_text(error: object) -> str:
    text = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(text).split())[:_EXCERPT_BYTES]


def _count(usage: dict[str, Any], key: str, before: int | None) -> int | None:
    value = usage.get(key)
    return value if type(value) is int and value >= 0 else before
