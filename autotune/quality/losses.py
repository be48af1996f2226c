"""What answers have lost against others, prompt by prompt: two passes over the prompt set in, a number for each out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from statistics import fmean

from autotune.records.quality import Answers, PromptAnswer

Loss = Callable[[Answers, Answers], Sequence[float] | None]
"""(base, other) -> a figure for each prompt, whose mean is judged; None where the servers don't tell enough."""

LONGEST_LOOP_TOK = 8
FEWEST_ROUNDS = 3


def nats(base: Answers, other: Answers) -> list[float] | None:
    """Log-probability lost on each prompt, scaled so that the mean is nats per token of all: ln of the ratio of
    perplexities. Of the prompts where both tell them, else of the answers up to where they part."""
    pairs = [(_prompt_pair(a, b) or _answer_pair(a, b)) for a, b in zip(base, other, strict=True)]
    known = [pair for pair in pairs if pair is not None]
    tokens = sum(len(pair[0]) for pair in known)
    if len(known) < len(pairs) or not tokens:
        return None
    return [(sum(ours) - sum(theirs)) * len(pairs) / tokens for ours, theirs in known]


def on_prompts(base: Answers, other: Answers) -> bool:
    """Whether `nats` are those of the prompts."""
    return all(_prompt_pair(a, b) is not None for a, b in zip(base, other, strict=True))


def same_prompt_tokens(base: Answers, other: Answers) -> bool:
    """Whether both split every prompt into as many tokens, as far as they tell."""
    told = [
        (a.prompt_logprobs, b.prompt_logprobs)
        for a, b in zip(base, other, strict=True)
        if a.prompt_logprobs is not None and b.prompt_logprobs is not None
    ]
    return all(len(a) == len(b) for a, b in told)


def _prompt_pair(a: PromptAnswer, b: PromptAnswer) -> tuple[Sequence[float], Sequence[float]] | None:
    if a.prompt_logprobs is None or b.prompt_logprobs is None or len(a.prompt_logprobs) != len(b.prompt_logprobs):
        return None
    return a.prompt_logprobs, b.prompt_logprobs


def _answer_pair(a: PromptAnswer, b: PromptAnswer) -> tuple[Sequence[float], Sequence[float]] | None:
    """Up to where they part both stand in the same text, so that their log-probabilities compare."""
    if a.logprobs is None or b.logprobs is None:
        return None
    agreed = agreed_tok(a, b)
    return a.logprobs[:agreed], b.logprobs[:agreed]


def agreed_tok(a: PromptAnswer, b: PromptAnswer) -> int:
    """How many tokens two answers have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.tokens, b.tokens, strict=False)))


def parted(base: Answers, other: Answers) -> list[float]:
    """Share of each answer that lies behind the first token that differs; after it two answers are two texts."""
    return [_parted(a, b) for a, b in zip(base, other, strict=True)]


def _parted(a: PromptAnswer, b: PromptAnswer) -> float:
    longer = max(len(a.tokens), len(b.tokens))
    return 1 - agreed_tok(a, b) / longer if longer else 0.0


def lengthened(base: Answers, other: Answers) -> list[float]:
    """How much longer each answer is, in mean lengths of the base's: the mean is the ratio of mean lengths less 1."""
    mean = fmean(len(answer.tokens) for answer in base) or 1.0
    return [(len(b.tokens) - len(a.tokens)) / mean for a, b in zip(base, other, strict=True)]


def looping(base: Answers, other: Answers) -> list[float]:
    """1 where an answer ends in a loop and the base's does not, -1 the other way round."""
    return [float(loops(b.tokens)) - float(loops(a.tokens)) for a, b in zip(base, other, strict=True)]


def loops(tokens: Sequence[str]) -> bool:
    """Whether at least half of an answer, at its end, is the same few tokens three times or more."""
    return any(_rounds(tokens, period) for period in range(1, LONGEST_LOOP_TOK + 1))


def _rounds(tokens: Sequence[str], period: int) -> bool:
    repeated = 0
    for place in range(len(tokens) - 1, period - 1, -1):
        if tokens[place] != tokens[place - period]:
            break
        repeated += 1
    length = repeated + period
    return length >= FEWEST_ROUNDS * period and 2 * length >= len(tokens) and repeated > 0
