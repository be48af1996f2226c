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
from autotune.engines.simulated.speech import Damage, logprob, prompt_logprobs
from autotune.engines.simulated.tokens import decode, word


@dataclass(slots=True)
class Writer:
    """Builds the answers to one request, whole or in chunks."""

    request: Generation
    model: str
    faults: Faults
    details: bool = False  # report cached tokens (`--enable-prompt-tokens-details`)
    damage: Damage = Damage.NONE
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
        choice["logprobs"] = self._logprobs(answer, span)
        return choice | self._of_prompt(choice, self.request.prompts[index], answer)

    def _of_prompt(self, choice: Mapping[str, Any], prompt: Sequence[int], answer: Answer) -> dict[str, Any]:
        """What a request may ask of its own prompt, vLLM's way (`prompt_logprobs`) and OpenAI's older one (`echo`)."""
        told: dict[str, Any] = {}
        likely = [None, *prompt_logprobs(self.damage, prompt)]
        if self.request.token_ids:
            told |= {"prompt_token_ids": list(prompt), "token_ids": answer.ids(0, answer.tokens)}
        if self.request.prompt_logprobs:
            told["prompt_logprobs"] = [
                None if value is None else {str(token): {"logprob": value, "rank": 1, "decoded_token": word(token)}}
                for token, value in zip(prompt, likely, strict=True)
            ]
        if self.request.echo and not self.request.chat:
            told["text"] = decode(prompt) + choice["text"]
        if self.request.echo and self.request.logprobs and not self.request.chat:
            before, after = _token_logprobs([word(token) for token in prompt], likely), choice["logprobs"]
            told["logprobs"] = {key: [*before[key], *after[key]] for key in before}
        return told

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
        likely = [logprob(self.damage, answer.seed, position) for position in range(*span)]
        if self.request.chat:
            pairs = zip(words, likely, strict=True)
            return {"content": [{"token": text, "logprob": value, "top_logprobs": []} for text, value in pairs]}
        return _token_logprobs(words, likely)


def _token_logprobs(words: Sequence[str], likely: Sequence[float | None]) -> dict[str, list[Any]]:
    top = [None if value is None else {text: value} for text, value in zip(words, likely, strict=True)]
    return {"tokens": list(words), "token_logprobs": list(likely), "top_logprobs": top}


def _choice(index: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"index": index, "finish_reason": None, **fields}


def sse(body: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
