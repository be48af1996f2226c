"""Answers for tests: a pretended model whose noise and damage are known."""

from __future__ import annotations

import random
from dataclasses import dataclass

from autotune.records.quality import Answers, AskedBy, PromptAnswer, QualitySpec, ReferenceAnswers

STRICT = QualitySpec(perplexity_ratio=1.0, token_agreement=1.0, length_ratio=1.0, repetition_ratio=0.0)
"""Limits that allow nothing: only the engine's own noise is let through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """`jitter`: nats (standard deviation) by which a pass moves a log-probability. `ties`: chance that an answer of a
    prompt with a near tie takes another way in a pass; a third of the prompts have one. `loss`: nats lost on each
    token; `broken`: answers that are another text from the start. `heavy`: jitter with the tails of Student's t of
    three degrees of freedom."""

    prompts: int = 24
    prompt_tokens: int = 2
    answer_tokens: int = 16
    jitter: float = 0.01
    ties: float = 0.2
    loss: float = 0.0
    broken: int = 0
    heavy: bool = False

    def answers(self, rng: random.Random) -> Answers:
        """One pass over the prompts."""
        return tuple(self._answer(place, rng) for place in range(self.prompts))

    def _answer(self, place: int, rng: random.Random) -> PromptAnswer:
        tokens = [f"{place}:{n}" for n in range(self.answer_tokens)]
        if place % 3 == 0 and rng.random() < self.ties:
            parts_at = rng.randrange(self.answer_tokens)
            tokens[parts_at:] = [f"other {n}" for n in range(parts_at, rng.randrange(parts_at, self.answer_tokens + 1))]
        if place < self.broken:
            tokens = [f"wrong {n}" for n in range(self.answer_tokens)]
        moved = rng.gauss(0, self.jitter)
        if self.heavy:
            moved /= (rng.gammavariate(1.5, 2) / 3) ** 0.5
        likely = tuple(-1.5 - self.loss + moved for _ in range(self.prompt_tokens))
        return PromptAnswer(text=" ".join(tokens), tokens=tuple(tokens), prompt_logprobs=likely)


def reference(model: Model, rng: random.Random) -> ReferenceAnswers:
    """What a model answered as the reference: four passes."""
    first, *repeats = (model.answers(rng) for _ in range(4))
    return ReferenceAnswers(
        trial=0,
        asked_by=AskedBy.PROMPT_LOGPROBS,
        answer_tokens=model.answer_tokens,
        prompts=tuple(f"prompt {place}" for place in range(model.prompts)),
        base=first,
        repeats=tuple(repeats),
    )
