"""The JSON that answers a request, whole or as server-sent events, with the faults that falsify it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.engines.simulated.faults import Faults
from autotune.engines.simulated.protocol import Answer, Generation

_TOKEN_LOGPROB = -0.25  # of every token: nothing is computed


@dataclass(slots=True)
class Writer:
    """Builds the answers to one request, whole or in chunks."""

    request: Generation
    model: str
    faults: Faults
    details: bool = False  # report cached tokens (`--enable-prompt-tokens-details`)
    id: str = ""
    created: int = 0

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.request.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())

    def role_chunk(self) -> bytes:
        """The empty first chunk of a chat stream."""
        return sse(self._head([_choice(0, delta={"role": "assistant", "content": ""})]))

    def chunk(self, index: int, answer: Answer, span: tuple[int, int], prompt_tokens: int) -> bytes:
        """Tokens span[0]..span[1]-1 of a prompt's answer."""
        text = self._text(answer, span)
        done = span[1] == answer.tokens
        content: dict[str, Any] = {"delta": {"content": text}} if self.request.chat else {"text": text}
        choice = _choice(index, finish_reason=answer.finish_reason if done else None, **content)
        choice["logprobs"] = self._logprobs(answer, span)
        body = self._head([choice])
        if self.request.continuous_usage:
            body |= self._usage(prompt_tokens, span[1])
        return sse(body)

    def usage_chunk(self, answers: Sequence[Answer], cached_tokens: int) -> bytes:
        """The last chunk of a stream that was asked for usage; nothing when usage is missing on command."""
        usage = self._final_usage(answers, cached_tokens)
        return sse(self._head([]) | usage) if usage else b""

    def whole(self, answers: Sequence[Answer], cached_tokens: int) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        return self._head(choices, "chat.completion") | self._final_usage(answers, cached_tokens)

    def _whole_choice(self, index: int, answer: Answer) -> dict[str, Any]:
        span = (0, answer.tokens)
        text = self._text(answer, span)
        content: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text}} if self.request.chat else {"text": text}
        )
        choice = _choice(index, finish_reason=answer.finish_reason, stop_reason=None, **content)
        return choice | {"logprobs": self._logprobs(answer, span)}

    def _text(self, answer: Answer, span: tuple[int, int]) -> str:
        return "" if "empty_tokens" in self.faults else answer.text(*span)

    def _head(self, choices: list[dict[str, Any]], chat_object: str = "chat.completion.chunk") -> dict[str, Any]:
        kind = chat_object if self.request.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _final_usage(self, answers: Sequence[Answer], cached_tokens: int) -> dict[str, Any]:
        usage = self._usage(sum(map(len, self.request.prompts)), sum(answer.tokens for answer in answers))
        if usage and self.details:
            usage["usage"]["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
        return usage

    def _usage(self, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
        if "missing_usage" in self.faults:
            return {}
        if "wrong_usage" in self.faults:
            prompt_tokens, output_tokens = prompt_tokens - 1, output_tokens * 2
        total = prompt_tokens + output_tokens
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": total, "completion_tokens": output_tokens}
        return {"usage": usage}

    def _logprobs(self, answer: Answer, span: tuple[int, int]) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        words = [answer.text(position, position + 1) for position in range(*span)]
        if self.request.chat:
            return {"content": [{"token": word, "logprob": _TOKEN_LOGPROB, "top_logprobs": []} for word in words]}
        top = [{word: _TOKEN_LOGPROB} for word in words]
        return {"tokens": words, "token_logprobs": [_TOKEN_LOGPROB] * len(words), "top_logprobs": top}


def _choice(index: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"index": index, "finish_reason": None, **fields}


def sse(body: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
