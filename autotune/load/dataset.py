"""Datasets of real prompts and conversations: what a row says, told apart by its keys.

    {"messages": [{"role": "user", "content": "…"}], "max_tokens": 200, "model": "m", "extra_body": {"top_p": 0.9}}
    {"id": "x", "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
    {"prompt": "…", "max_tokens": 200}

JSON Lines, or a list of such objects in one file, as ShareGPT comes; a file called `.txt` holds a plain prompt a line.
`model`, `max_tokens` and `extra_body` are optional and pass through to the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.load.lengths import sample
from autotune.load.rows import BadRowError, Rows, json_value, lines_of, sound_rows
from autotune.load.seeds import Stream, generator
from autotune.records.spec import Length, SessionSpec
from autotune.records.trial import RequestPlan

Message = Mapping[str, Any]

_KEY = "workload.dataset"
_HINT = "each line is a JSON object with OpenAI `messages`, ShareGPT `conversations` or a `prompt`"
_AVERAGED = 2000  # conversations: the mean number of turns is known to some 2 %
_KEYS = frozenset({"messages", "prompt", "model", "max_tokens", "extra_body"})
# What the client itself sets: another value would change what is measured.
_RESERVED = frozenset({"messages", "prompt", "model", "max_tokens", "stream", "stream_options", "n"})
# ShareGPT was collected from several sites, each with names of its own.
_ROLES = {"human": "user", "user": "user", "system": "system"} | dict.fromkeys(
    ("gpt", "assistant", "chatgpt", "bing", "bard"), "assistant"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One conversation. `exchange`: it holds answers after its first question, of which a single request has none."""

    messages: tuple[Message, ...]
    model: str | None = None
    max_tokens: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    exchange: bool = False

    def questions(self) -> list[int]:
        """Where the user speaks: each is the end of a turn's prompt."""
        return [place for place, message in enumerate(self.messages) if message["role"] == "user"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """Rows in an order shuffled by the seed; each time round, another order."""

    rows: tuple[Row, ...]
    output_tokens: Length | None
    seed: int

    def row(self, number: int) -> Row:
        """Row `number` of an endless sequence."""
        cycle, place = divmod(number, len(self.rows))
        return self.rows[_order(self.seed, cycle, len(self.rows))[place]]

    def request(self, row: Row, index: int, messages: tuple[Message, ...]) -> RequestPlan:
        """The request `index`, of `messages` of a row."""
        return RequestPlan(
            index=index,
            at_s=None,
            output_tokens=row.max_tokens or self._output_tokens(index),
            messages=messages,
            model=row.model,
            extra_body=row.extra_body,
        )

    def _output_tokens(self, index: int) -> int:
        if self.output_tokens is None:
            raise InputError("a row has no max_tokens and the workload no output_tokens", "set one of them")
        return sample(self.output_tokens, generator(self.seed, Stream.REQUEST, index))


@lru_cache(maxsize=8)
def _order(seed: int, cycle: int, rows: int) -> tuple[int, ...]:
    return tuple(generator(seed, Stream.ORDER, cycle).permutation(rows).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """A request for each row: its messages, of ShareGPT's rows those up to the first question."""

    shuffled: Shuffled

    def draw(self, index: int, at_s: float | None) -> RequestPlan:
        """The request `index`, the same at every call."""
        row = self.shuffled.row(index)
        messages = row.messages[: row.questions()[0] + 1] if row.exchange else row.messages
        return replace(self.shuffled.request(row, index, messages), at_s=at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConversations:
    """A request for each of a row's questions: what was said before it, with the answers of the dataset."""

    shuffled: Shuffled
    sessions: SessionSpec

    @property
    def mean_turns(self) -> float:
        """Turns of a conversation on average, over the first of them."""
        sessions = range(min(_AVERAGED, len(self.shuffled.rows)))
        return sum(self.turns(session) for session in sessions) / len(sessions)

    def turns(self, session: int) -> int:
        """Questions of a row, at most as many as `turns` says."""
        most = sample(self.sessions.turns, generator(self.shuffled.seed, Stream.SESSION, session))
        return min(most, max(1, len(self.shuffled.row(session).questions())))

    def draw(self, session: int, first: int, turn: int) -> RequestPlan:
        """Turn number `turn` of a conversation whose first request is number `first`."""
        row = self.shuffled.row(session)
        questions = row.questions() or [len(row.messages) - 1]
        return self.shuffled.request(row, first + turn, row.messages[: questions[turn] + 1])


# --- reading ----------------------------------------------------------------------------------------------------------


def read_dataset(path: str, *, needs_max_tokens: bool) -> Rows[Row]:
    """Read every row of the file at `path`; blank lines are skipped.

    `needs_max_tokens`: each row must say its own, since the workload doesn't. Raises InputError when more than a tenth
    of the rows is bad, with the first 20 of them as `file:line: problem`, or when the file holds no row.
    """
    try:
        stat = Path(path).stat()
    except OSError as error:
        raise InputError(f"{path}: can't read the dataset: {error.strerror}", f"check {_KEY}") from error
    return _read(path, needs_max_tokens, (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=1)
def _read(path: str, needs_max_tokens: bool, _: tuple[int, int]) -> Rows[Row]:
    """Every level of every trial reads the same file, which may be of hundreds of megabytes."""
    parse = partial(_row, needs_max_tokens=needs_max_tokens)
    return sound_rows(path, _values(path), parse, _HINT)


def _values(path: str) -> Iterable[tuple[int, Any]]:
    """The rows with their numbers: bytes of a line, or what was in a list."""
    if path.endswith(".txt"):
        return ((number, {"prompt": line}) for number, line in lines_of(path, _KEY))
    first = next(lines_of(path, _KEY), (0, b""))[1].strip()
    if first == b"[" or first.startswith((b"[{", b"[ {")):
        return _list_of(path)
    return lines_of(path, _KEY)


def _list_of(path: str) -> Iterable[tuple[int, Any]]:
    try:
        value = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}", _HINT) from error
    return enumerate(value, start=1)


def _row(raw: bytes | object, *, needs_max_tokens: bool) -> Row:
    """Raises BadRowError."""
    value = json_value(raw) if isinstance(raw, bytes) else raw
    if not isinstance(value, dict):
        raise BadRowError(f"a {type(value).__name__} where an object belongs")
    shared = "conversations" in value  # others' files, with keys of their own
    if not shared and (unknown := sorted(value.keys() - _KEYS)):
        raise BadRowError(f"unknown key `{unknown[0]}`; request options belong under `extra_body`")
    max_tokens = _max_tokens(value.get("max_tokens"), needed=needs_max_tokens)
    if not isinstance(value.get("model"), str | None):
        raise BadRowError(f"`model` must be text, not {value['model']!r:.80}")
    return Row(
        messages=_encodable(_said(value["conversations"]) if shared else _messages(value)),
        model=None if shared else value.get("model"),
        max_tokens=max_tokens,
        extra_body={} if shared else _extra_body(value.get("extra_body")),
        exchange=shared,
    )


def _max_tokens(value: object, *, needed: bool) -> int | None:
    if value is None and needed:
        raise BadRowError("no `max_tokens`, and the workload sets no output_tokens")
    if value is not None and (type(value) is not int or value < 1):
        raise BadRowError(f"`max_tokens` must be a whole number from 1 on, not {value!r:.40}")
    return value


def _encodable(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """JSON can hold half of a surrogate pair (a text cut inside an emoji), which no tokenizer takes."""
    try:
        for message in messages:
            str(message.get("content")).encode()
    except UnicodeEncodeError as error:
        raise BadRowError(f"text with half a character at {error.start}: {error.object[error.start]!a}") from error
    return messages


def _messages(row: Mapping[str, Any]) -> tuple[Message, ...]:
    if "prompt" in row and "messages" not in row:
        return ({"role": "user", "content": _prompt(row["prompt"])},)
    value = row.get("messages")
    if not isinstance(value, list) or not value:
        raise BadRowError("`messages` must be a list with at least one message")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRowError(f"a message must be an object with a `role`, not {message!r:.80}")
    return tuple(value)


def _prompt(value: object) -> str:
    try:
        text = value.decode().strip() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise BadRowError("not UTF-8 text") from error
    if not isinstance(text, str) or not text:
        raise BadRowError(f"`prompt` must be text, not {value!r:.80}")
    return text


def _said(value: object) -> tuple[Message, ...]:
    """ShareGPT's turns as messages, from the first question (or the system's words) to the last."""
    if not isinstance(value, list):
        raise BadRowError("`conversations` must be a list")
    messages = [_turn(turn) for turn in value]
    begin = next((place for place, message in enumerate(messages) if message["role"] != "assistant"), len(messages))
    end = max((place + 1 for place, message in enumerate(messages) if message["role"] == "user"), default=0)
    if end <= begin:
        raise BadRowError("`conversations` has no question")
    return tuple(messages[begin:end])


def _turn(turn: object) -> Message:
    role = _ROLES.get(str(turn.get("from"))) if isinstance(turn, dict) else None
    text = turn.get("value") if isinstance(turn, dict) else None
    if role is None or not isinstance(text, str):
        raise BadRowError(f"a turn must have `from` (human, gpt or system) and `value`, not {turn!r:.80}")
    return {"role": role, "content": text}


def _extra_body(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRowError(f"`extra_body` must be an object, not {value!r:.80}")
    if reserved := sorted(value.keys() & _RESERVED):
        raise BadRowError(f"`extra_body` may not set `{reserved[0]}`: the load client does")
    return value
