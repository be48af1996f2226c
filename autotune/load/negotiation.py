"""Finds the dialect of a server by asking it: a few probes, each without what the last answer refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from autotune.load.dialect import Decode, Dialect, Feature, refused
from autotune.load.runner import probe
from autotune.records.trial import Endpoint, RequestPlan, RequestRecord

# Bad request, unsupported media type, unprocessable, not implemented: how servers refuse a field.
_REFUSALS = (400, 415, 422, 501)
# Inside a 200, as an event: only when it speaks of the request, not of the engine's health.
_REFUSING_EVENT = re.compile(
    r"unsupported|not supported|unknown|unrecognized|unexpected|invalid|not permitted|validation", re.IGNORECASE
)

Ask = Callable[[Dialect], RequestRecord]


def negotiate(
    endpoint: Endpoint, request: RequestPlan, *, decode: Decode | None = None, timeout_s: float = 60.0
) -> Dialect:
    """Find how to put requests like `request` to a server; one probe for a server that takes all.

    What the refusal's message names is left out; where it names nothing, one thing after the other, and what was left
    out without need is asked for again. `decode` is how prompts become text for a server that takes no token ids;
    without it (and without a `prompt_text`) they stay ids. A server that takes no form of the request, or fails
    otherwise, gives the plain dialect: the first real request then shows what it says. Raises as `probe`.
    """

    def ask(dialect: Dialect) -> RequestRecord:
        return probe(endpoint, request, timeout_s, dialect=dialect)

    return find(ask, request, decode)


def find(ask: Ask, request: RequestPlan, decode: Decode | None) -> Dialect:
    """Find the dialect in which `ask` gets an answer; see `negotiate`."""
    plain = Dialect(decode=decode)
    found = _settle(ask, _options(request, decode), plain)
    return plain if found is None else _counting(ask, found)


@dataclass(frozen=True, slots=True)
class _Found:
    dialect: Dialect
    record: RequestRecord


def _options(request: RequestPlan, decode: Decode | None) -> tuple[Feature, ...]:
    """What this request asks for and could do without, in the order in which servers are known to refuse."""
    options = [Feature.STREAM_OPTIONS, Feature.TEMPERATURE, Feature.MAX_TOKENS]
    if request.messages is None:
        options = [Feature.MIN_TOKENS, Feature.IGNORE_EOS, Feature.STREAM_OPTIONS, Feature.TEMPERATURE]
        if decode is not None or request.prompt_text is not None:
            options.append(Feature.PROMPT_IDS)
    return tuple(options)


def _settle(ask: Ask, options: tuple[Feature, ...], dialect: Dialect) -> _Found | None:
    """Leave out until the server answers; None when it answers nothing."""
    doubtful: list[Feature] = []
    while refusal := _refusal(record := ask(dialect)):
        asked = [option for option in options if dialect.has(option)]
        if not asked:
            return None
        named = refused(refusal, asked) or (asked[0],)
        if len(named) > 1 or named[0] not in refused(refusal, asked):
            doubtful += named
        dialect = dialect.without(*named)
    if record.error is not None:
        return None
    return _put_back(ask, _Found(dialect, record), doubtful)


def _put_back(ask: Ask, found: _Found, doubtful: list[Feature]) -> _Found:
    """Ask again, one at a time, for what may have been left out without need."""
    for feature in doubtful:
        richer = replace(found.dialect, lacks=found.dialect.lacks - {feature})
        if found.dialect.lacks == {feature}:
            continue  # that was refused already: it is the only thing missing
        if (record := ask(richer)).error is None:
            found = _Found(richer, record)
    return found


def _refusal(record: RequestRecord) -> str:
    """The message with which the server refused a field of the request; empty for all else."""
    error = record.error or ""
    if record.status in _REFUSALS:
        return error
    return error if error.startswith("server error: ") and _REFUSING_EVENT.search(error) else ""


def _counting(ask: Ask, found: _Found) -> Dialect:
    """How the server counts tokens, by an answer of it."""
    dialect, record = found.dialect, found.record
    if record.output_tokens is None:
        return replace(dialect, usage=False)
    # A closing event without text may hold the last token, so one event less than tokens is usual.
    if dialect.has(Feature.STREAM_OPTIONS) and record.output_tokens > len(record.chunk_s) + 1:
        counted = replace(dialect, chunk_usage=True)
        if ask(counted).chunk_tokens:
            return counted
    return dialect
