"""The prompt set put to a server: an endpoint and prompts in, the answers of one or several passes out."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from autotune.quality.answers import NotTold, body_of, read_answer
from autotune.quality.prompts import FEWEST
from autotune.records.quality import Answers, AskedBy, PromptAnswer, ReferenceAnswers
from autotune.records.trial import Endpoint

TIMEOUT_S = 180.0  # as for the canary: a first request may compile kernels
AT_ONCE = 16  # requests of a batched pass under way
_REFUSALS = range(400, 500)
_BODY_SHOWN = 300


class Unanswered(Exception):
    """A prompt got no answer that can be used. `refused`: the server said no (HTTP 4xx), rather than failing."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.refused = refused


def ask_reference(
    endpoint: Endpoint, prompts: Sequence[str], *, trial: int, answer_tokens: int, settings: Mapping[str, Any]
) -> ReferenceAnswers:
    """Ask alone, in batches, alone and in batches again. Prompts that it refuses (too long for it) are left out.

    Raises Unanswered when it can't be asked at all, or refuses too many.
    """
    asked_by = _way(endpoint, prompts, answer_tokens, tuple(AskedBy))
    first = _pass(endpoint, prompts, asked_by, answer_tokens, at_once=1)
    kept = [(prompt, answer) for prompt, answer in zip(prompts, first, strict=True) if isinstance(answer, PromptAnswer)]
    dropped = [answer for answer in first if isinstance(answer, Unanswered)]
    if len(kept) < FEWEST:
        raise Unanswered(f"{len(dropped)} of {len(prompts)} prompts were refused: {dropped[0].why}", refused=True)
    asked = tuple(prompt for prompt, _ in kept)
    repeats = [_whole(_pass(endpoint, asked, asked_by, answer_tokens, at_once=n)) for n in (AT_ONCE, 1, AT_ONCE)]
    note = (f"{len(dropped)} prompts were refused by the reference and left out: {dropped[0].why}",) if dropped else ()
    return ReferenceAnswers(
        trial=trial,
        asked_by=asked_by,
        answer_tokens=answer_tokens,
        prompts=asked,
        base=tuple(answer for _, answer in kept),
        repeats=tuple(repeats),
        settings=settings,
        notes=note,
    )


def ask_candidate(endpoint: Endpoint, reference: ReferenceAnswers) -> tuple[Answers, AskedBy]:
    """Ask in batches what the reference was asked, in the same way; in a barer one where that is refused.

    Raises Unanswered when a prompt that the reference answered gets no answer.
    """
    ways = tuple(AskedBy)
    asked_by = _way(endpoint, reference.prompts, reference.answer_tokens, ways[ways.index(reference.asked_by) :])
    answers = _pass(endpoint, reference.prompts, asked_by, reference.answer_tokens, at_once=AT_ONCE)
    return _whole(answers), asked_by


def _way(endpoint: Endpoint, prompts: Sequence[str], answer_tokens: int, ways: Sequence[AskedBy]) -> AskedBy:
    """The fullest of `ways` that the server knows, tried on the shortest prompt."""
    shortest = min(prompts, key=len)
    last = Unanswered("it was not asked")
    for asked_by in ways:
        try:
            _ask(endpoint, asked_by, answer_tokens, shortest)
        except Unanswered as why:
            if not why.refused:
                raise
            last = why
        else:
            return asked_by
    raise last


def _pass(
    endpoint: Endpoint, prompts: Sequence[str], asked_by: AskedBy, answer_tokens: int, *, at_once: int
) -> list[PromptAnswer | Unanswered]:
    """The answers in order, refusals in their places. Raises Unanswered for what is no refusal."""
    ask = partial(_answer_or_refusal, endpoint, asked_by, answer_tokens)
    if at_once == 1:
        return [ask(prompt) for prompt in prompts]
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="quality")
    try:
        return list(pool.map(ask, prompts))
    finally:  # Ctrl-C must not wait for an engine that hangs: it is stopped next, which ends what is under way
        pool.shutdown(wait=False, cancel_futures=True)


def _answer_or_refusal(
    endpoint: Endpoint, asked_by: AskedBy, answer_tokens: int, prompt: str
) -> PromptAnswer | Unanswered:
    try:
        return _ask(endpoint, asked_by, answer_tokens, prompt)
    except Unanswered as why:
        if not why.refused:
            raise
        return why


def _whole(answers: Sequence[PromptAnswer | Unanswered]) -> Answers:
    for place, answer in enumerate(answers):
        if isinstance(answer, Unanswered):
            raise Unanswered(f"prompt {place}, which the reference answered: {answer.why}", refused=True)
    return tuple(answer for answer in answers if isinstance(answer, PromptAnswer))


def _ask(endpoint: Endpoint, asked_by: AskedBy, answer_tokens: int, prompt: str) -> PromptAnswer:
    status, text = _posted(endpoint, body_of(prompt, endpoint.model_name, asked_by, answer_tokens))
    if status != http.HTTPStatus.OK:
        said = " ".join(text.split())[:_BODY_SHOWN]
        raise Unanswered(f"HTTP {status}: {said}", refused=status in _REFUSALS)
    try:
        return read_answer(json.loads(text), asked_by)
    except (ValueError, NotTold) as error:
        raise Unanswered(f"the answer can't be read ({error}): {text[:_BODY_SHOWN]}", refused=True) from error


def _posted(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[int, str]:
    """Status and text; a connection that breaks is tried once more, as it says nothing of the model."""
    try:
        return _post(endpoint, body)
    except TimeoutError as error:
        raise Unanswered(f"no answer within {TIMEOUT_S:g} s") from error
    except (OSError, http.client.HTTPException):
        pass
    try:
        return _post(endpoint, body)
    except (OSError, http.client.HTTPException) as error:
        raise Unanswered(f"the connection broke twice: {error or type(error).__name__}") from error


def _post(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[int, str]:
    headers = {"Content-Type": "application/json"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    with contextlib.closing(_connection(endpoint)) as connection:
        connection.request("POST", f"{endpoint.base_path}/completions", json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")


def _connection(endpoint: Endpoint) -> http.client.HTTPConnection:
    if endpoint.tls:
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=TIMEOUT_S, context=context)
    return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=TIMEOUT_S)
