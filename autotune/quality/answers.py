"""What a server is sent for one prompt, and what its JSON says: a body in, a `PromptAnswer` out.

vLLM 0.32 takes `prompt_logprobs` and `return_token_ids`. trtllm-serve 1.2 to 1.4 refuses both (its models forbid
unknown fields), takes `echo` without log-probabilities of the prompt, and has `logprobs` of the answer alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.records.quality import AskedBy, PromptAnswer

LEAST_LOGPROB = -100.0  # stands for minus infinity and for what is no number, so that sums stay finite

_FIELDS: Mapping[AskedBy, Mapping[str, Any]] = {
    AskedBy.PROMPT_LOGPROBS: {"prompt_logprobs": 0, "logprobs": 1, "return_token_ids": True},
    AskedBy.ECHO: {"echo": True, "logprobs": 1},
    AskedBy.ANSWER_LOGPROBS: {"logprobs": 1},
    AskedBy.TEXT: {},
}


class NotTold(Exception):
    """The server answered, but not with what it was asked for in this way."""


def body_of(prompt: str, model: str, asked_by: AskedBy, answer_tokens: int) -> dict[str, Any]:
    """Return a request for the most likely answer to a prompt."""
    plain = {"model": model, "prompt": prompt, "max_tokens": answer_tokens, "temperature": 0, "stream": False}
    return {**plain, **_FIELDS[asked_by]}


def read_answer(answer: Mapping[str, Any], asked_by: AskedBy) -> PromptAnswer:
    """Return what a completion says. Raises NotTold where it lacks what `asked_by` promises."""
    try:
        choice = answer["choices"][0]
        return _READERS[asked_by](choice, answer.get("usage") or {})
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise NotTold(f"{type(error).__name__}: {error}") from error


def _prompt_logprobs(choice: Mapping[str, Any], _usage: Mapping[str, Any]) -> PromptAnswer:
    told = choice["prompt_logprobs"]
    ids = choice.get("prompt_token_ids")
    of_prompt = [_of_token(entry, ids[place] if ids else None) for place, entry in enumerate(told) if entry is not None]
    tokens, logprobs = _told_tokens(choice)
    named = choice.get("token_ids")
    if named is not None and len(named) == len(tokens):
        tokens = [str(token) for token in named]
    return _answer(choice, choice["text"], tokens, logprobs, of_prompt)


def _of_token(entry: Mapping[str, Any], token: int | None) -> float:
    """Of the prompt's own token: the one named, else the only one told."""
    told = entry[str(token)] if token is not None and str(token) in entry else next(iter(entry.values()))
    return float(told["logprob"])


def _echoed(choice: Mapping[str, Any], usage: Mapping[str, Any]) -> PromptAnswer:
    """The first `prompt_tokens` entries are the prompt's; a server that ignores `echo` has none of them."""
    told = choice["logprobs"]
    at, answered = usage["prompt_tokens"], usage["completion_tokens"]
    if len(told["token_logprobs"]) != at + answered:
        raise NotTold(f"{len(told['token_logprobs'])} log-probabilities for {at} + {answered} tokens")
    of_prompt = [float(value) for value in told["token_logprobs"][1:at]]
    tokens = told["tokens"][at:]
    return _answer(choice, "".join(tokens), tokens, told["token_logprobs"][at:], of_prompt)


def _answer_logprobs(choice: Mapping[str, Any], _usage: Mapping[str, Any]) -> PromptAnswer:
    return _answer(choice, choice["text"], *_told_tokens(choice))


def _text(choice: Mapping[str, Any], _usage: Mapping[str, Any]) -> PromptAnswer:
    return PromptAnswer(text=choice["text"], tokens=tuple(choice["text"]), finish_reason=choice.get("finish_reason"))


def _told_tokens(choice: Mapping[str, Any]) -> tuple[list[str], list[float]]:
    told = choice["logprobs"]
    if len(told["tokens"]) != len(told["token_logprobs"]):
        raise NotTold("as many log-probabilities as tokens are needed")
    return told["tokens"], told["token_logprobs"]


def _answer(
    choice: Mapping[str, Any],
    text: str,
    tokens: Sequence[str],
    logprobs: Sequence[float | None],
    of_prompt: Sequence[float] | None = None,
) -> PromptAnswer:
    return PromptAnswer(
        text=text,
        tokens=tuple(tokens),
        logprobs=tuple(_finite(value) for value in logprobs),
        prompt_logprobs=None if of_prompt is None else tuple(_finite(value) for value in of_prompt),
        finish_reason=choice.get("finish_reason"),
    )


def _finite(value: float | None) -> float:
    """JSON has no NaN of its own, yet engines with broken weights write it."""
    return max(LEAST_LOGPROB, float(value)) if value is not None and math.isfinite(value) else LEAST_LOGPROB


_READERS = {
    AskedBy.PROMPT_LOGPROBS: _prompt_logprobs,
    AskedBy.ECHO: _echoed,
    AskedBy.ANSWER_LOGPROBS: _answer_logprobs,
    AskedBy.TEXT: _text,
}
