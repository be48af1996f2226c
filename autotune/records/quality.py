"""Whether a candidate still says what the reference says: the limits asked for, the answers kept, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from annotated_types import Ge, Le

DEFAULT_ANSWER_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySpec:
    """How far the answers of a candidate may be from the reference's; None: that figure is shown, not judged.

    `perplexity_ratio`: perplexity of the prompts over the reference's, at most. `token_agreement`: share of an answer
    up to where it parts from the reference's, on average at least so much of what the reference has with itself.
    `length_ratio`: mean length of the answers over the reference's, or the other way round, at most.
    `repetition_ratio`: share of answers that end in a loop, at most so much above the reference's.
    `prompts` is a file of the user's own, absolute; None: the shipped ones.
    """

    perplexity_ratio: Annotated[float, Ge(1)] | None = 1.02
    token_agreement: Annotated[float, Ge(0), Le(1)] | None = 0.25
    length_ratio: Annotated[float, Ge(1)] | None = 1.5
    repetition_ratio: Annotated[float, Ge(0), Le(1)] | None = 0.1
    prompts: str | None = None
    answer_tokens: Annotated[int, Ge(1)] = DEFAULT_ANSWER_TOKENS


class AskedBy(StrEnum):
    """How a server is asked, from the fullest answer to the barest."""

    PROMPT_LOGPROBS = "prompt_logprobs"  # vLLM's own field
    ECHO = "echo"  # OpenAI's older way to the same
    ANSWER_LOGPROBS = "answer_logprobs"  # of the answer's tokens alone (TensorRT-LLM)
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAnswer:
    """The greedy answer to one prompt. `tokens` are ids or texts as the server tells them, characters where it tells
    neither; log-probabilities (nats) are those of these tokens, and of the prompt's from its second on."""

    text: str
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...] | None = None
    prompt_logprobs: tuple[float, ...] | None = None
    finish_reason: str | None = None


Answers = tuple[PromptAnswer, ...]
"""One pass over the prompt set, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceAnswers:
    """What the reference (`trial`) answered: alone (`base`), then in batches, alone and in batches again (`repeats`).

    `prompts` are those asked; candidates are asked the same, whatever has become of the file. `settings` are the values
    that the reference ran with of the parameters that may change the output.
    """

    schema_version: int = 2
    trial: int
    asked_by: AskedBy
    answer_tokens: int
    prompts: tuple[str, ...]
    base: Answers
    repeats: tuple[Answers, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class QualityStatus(StrEnum):
    REFERENCE = "reference"  # its answers are what others are held against
    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "unchecked"  # it should have been, and could not be


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityFigure:
    """One figure of a candidate against the reference. `own` is what the reference has against itself, `noise` by how
    much the figure may differ from that with nothing changed, `chance` at most how often it differs as much as here
    (None: not asked). `excess` is what is left beyond noise, relative to what the limit allows (at most 0: inside);
    None without a limit."""

    name: str
    value: float
    own: float
    noise: float
    chance: float | None = None
    limit: float | None = None
    excess: float | None = None

    @property
    def missed(self) -> bool:
        """Whether the limit is exceeded by more than noise."""
        return self.excess is not None and self.excess > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What a trial's check came to. `changed` are the parameters for which it was made; `why` is the one line of a miss
    or of what kept it from being made; `notes` are what lowers trust in it. `first_divergence_tok` is the median length
    of agreement among the answers that part from the reference's, None when none does."""

    status: QualityStatus
    why: str = ""
    changed: tuple[str, ...] = ()
    asked_by: AskedBy | None = None
    prompts: int = 0
    prompt_tokens: int | None = None
    figures: tuple[QualityFigure, ...] = ()
    equal_ratio: float | None = None
    first_divergence_tok: float | None = None
    mean_logprob_difference: float | None = None
    asked_s: float = 0.0
    notes: tuple[str, ...] = ()
