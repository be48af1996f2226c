"""The OpenAI API as vLLM 0.32 speaks it: what a request asks for, and why it is refused."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from autotune.engines.simulated.speech import Damage, first_wrong_token
from autotune.engines.simulated.tokens import WORD_LENGTH, Tokenizer, decode

_COMPLETION_MAX_TOKENS = 16  # OpenAI's default for completions; chat runs to the end of the context
_NATURAL_TOKENS, _NATURAL_SIGMA = 250.0, 0.7  # length of an answer that may end by itself: log-normal, by the prompt


class ApiError(Exception):
    """A request is refused: HTTP status and OpenAI's error object."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, kind=kind, param=param)


def error_body(status: int, message: str, *, kind: str, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object with vLLM's fields."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _invalid(message: str, parameter: str, value: object) -> ApiError:
    """A refusal in vLLM's words: it names the parameter and its value."""
    return ApiError(400, f"{message} (parameter={parameter}, value={value})", param=parameter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request that passed validation. `max_tokens` None: up to the end of the context."""

    chat: bool
    prompts: tuple[Sequence[int], ...]
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: bool
    prompt_logprobs: bool = False
    echo: bool = False
    token_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a prompt will be answered, known in advance; `text_end`: where a stop string cuts the text, if one does;
    `wrong_from`: the token from which a damaged model says something else."""

    tokenizer: Tokenizer
    seed: int
    tokens: int
    finish_reason: str
    text_end: int | None = None
    wrong_from: int | None = None

    def ids(self, start: int, end: int) -> list[int]:
        """Tokens start..end-1."""
        return [self.tokenizer.output_token(self._voice(position), position) for position in range(start, end)]

    def _voice(self, position: int) -> int:
        return self.seed if self.wrong_from is None or position < self.wrong_from else self.seed + 1

    def text(self, start: int, end: int) -> str:
        """The text of tokens start..end-1."""
        text = decode(self.ids(start, end))
        return text if self.text_end is None else text[: max(self.text_end - start * WORD_LENGTH, 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the served model accepts; `force_usage`: every stream reports usage (`--enable-force-include-usage`)."""

    model: str
    max_model_len: int
    tokenizer: Tokenizer
    force_usage: bool
    seed: int
    damage: Damage = Damage.NONE


def read_request(body: Any, limits: Limits, *, chat: bool) -> Generation:  # noqa: ANN401 - whatever was sent
    """Validate a request's JSON; raises ApiError as vLLM would refuse it."""
    if not isinstance(body, Mapping):
        raise ApiError(400, "The request body must be a JSON object.")
    _check_model(body.get("model"), limits.model)
    if body.get("n") not in (None, 1):
        raise _invalid("The simulated engine answers n=1 only.", "n", body["n"])
    options = body.get("stream_options") or {}
    include_usage = limits.force_usage or bool(options.get("include_usage"))
    max_tokens = _max_tokens(body, chat=chat, max_model_len=limits.max_model_len)
    tokenizer = limits.tokenizer
    prompts = (tokenizer.encode_chat(_messages(body)),) if chat else _prompts(body.get("prompt"), tokenizer)
    for prompt in prompts:
        _check_prompt(prompt, limits)
    stop = body.get("stop") or ()
    return Generation(
        chat=chat,
        prompts=prompts,
        max_tokens=max_tokens,
        min_tokens=_integer(body, "min_tokens") or 0,
        ignore_eos=bool(body.get("ignore_eos")),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stream=bool(body.get("stream")),
        include_usage=include_usage,
        continuous_usage=limits.force_usage or (include_usage and bool(options.get("continuous_usage_stats"))),
        logprobs=bool(body.get("logprobs")),
        prompt_logprobs=body.get("prompt_logprobs") is not None,
        echo=bool(body.get("echo")),
        token_ids=bool(body.get("return_token_ids")),
    )


def _check_model(asked: object, served: str) -> None:
    if asked and asked != served:
        raise ApiError(404, f"The model `{asked}` does not exist.", kind="NotFoundError", param="model")


def _integer(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise _invalid(f"{name} must be an integer.", name, value)
    return value


def _max_tokens(body: Mapping[str, Any], *, chat: bool, max_model_len: int) -> int | None:
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None and chat else "max_tokens"
    value = _integer(body, name)
    if value is None:
        return None if chat else _COMPLETION_MAX_TOKENS
    if value < 1:
        raise _invalid(f"{name} must be at least 1, got {value}.", name, value)
    if value > max_model_len:
        message = f"{name}={value} cannot be greater than max_model_len={max_model_len}. "
        raise _invalid(message + "Please request fewer output tokens.", name, value)
    return value


def _prompts(prompt: Any, tokenizer: Tokenizer) -> tuple[Sequence[int], ...]:  # noqa: ANN401 - text, ids or a list
    if isinstance(prompt, str):
        return (tokenizer.encode(prompt),)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, int) for item in prompt):
            return (prompt,)
        return tuple(tokenizer.encode(item) if isinstance(item, str) else item for item in prompt)
    raise ApiError(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")


def _messages(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message.", param="messages")
    return [(str(message.get("role")), _content(message.get("content"))) for message in messages]


def _content(content: Any) -> str:  # noqa: ANN401 - text, or a list of parts
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _check_prompt(prompt: Sequence[int], limits: Limits) -> None:
    if not prompt:
        raise ApiError(400, "The decoder prompt cannot be empty", param="prompt")
    if not all(isinstance(token, int) and 0 <= token < limits.tokenizer.size for token in prompt):
        raise ApiError(400, f"Token id {max(prompt)} is out of vocabulary", param="prompt")
    if len(prompt) > limits.max_model_len:
        message = (
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt contains "
            f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        raise _invalid(message, "input_tokens", len(prompt))


def plan_answer(request: Generation, prompt: Sequence[int], limits: Limits) -> Answer:
    """Decide what a prompt is answered: as long as asked for, cut (as vLLM does) at the end of the context."""
    identity = crc32(array("q", prompt).tobytes(), limits.seed)
    room = limits.max_model_len - len(prompt)
    if room < 1:
        raise _invalid("max_tokens must be at least 1, got 0.", "max_tokens", 0)
    tokens, reason = min(request.max_tokens or room, room), "length"
    natural = max(_natural_length(identity), request.min_tokens)
    if not request.ignore_eos and natural < tokens:
        tokens, reason = natural, "stop"
    answer = Answer(
        tokenizer=limits.tokenizer,
        seed=identity,
        tokens=tokens,
        finish_reason=reason,
        wrong_from=first_wrong_token(limits.damage, identity),
    )
    return _cut_at_stop(answer, request)


def _natural_length(seed: int) -> int:
    draw = random.Random(seed).lognormvariate(0.0, _NATURAL_SIGMA)  # noqa: S311 - a model, not a secret
    return max(round(_NATURAL_TOKENS * draw), 1)


def _cut_at_stop(answer: Answer, request: Generation) -> Answer:
    if not request.stop:
        return answer
    text = answer.text(0, answer.tokens)
    hits = [(text.find(stop, request.min_tokens * WORD_LENGTH), len(stop)) for stop in request.stop]
    found = min((hit for hit in hits if hit[0] >= 0), default=None)
    if found is None:
        return answer
    start, length = found
    return replace(answer, tokens=-(-(start + length) // WORD_LENGTH), finish_reason="stop", text_end=start)
