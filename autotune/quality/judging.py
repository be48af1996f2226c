"""The verdict on a candidate's answers: its figures against limits, by a test that knows the engine's own noise.

A figure is a mean over prompts of a loss x_i against the reference's first pass (`losses`). The reference's K later
passes give the same loss y_ik with nothing changed. What counts is D = mean(x_i - mean_k y_ik). With nothing changed it
is noise of standard deviation s * sqrt((1 + 1/K) / N), where s² is the variance of y_ik within prompts. The prompts are
fixed, so how they differ among themselves is no part of it. A candidate misses when |D| exceeds what the limit allows
by more than `noise_margin`, and for figures that few answers decide, when `chance_of` says so too. A second launch of
the reference then misses at most FALSE_ALARM_RATIO of the time, even under limits that allow nothing; docs/quality.md
has what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist, fmean, median

from autotune.quality.losses import (
    Loss,
    agreed_tok,
    lengthened,
    looping,
    nats,
    on_prompts,
    parted,
    same_prompt_tokens,
)
from autotune.records.quality import (
    Answers,
    AskedBy,
    PromptAnswer,
    Quality,
    QualityFigure,
    QualitySpec,
    QualityStatus,
    ReferenceAnswers,
)

FALSE_ALARM_RATIO = 0.001
"""Of launches with nothing changed: the most that are called wrong, over all limits together."""

_SIDES = 5  # four limits, of which one has two sides
_SIDE_RATIO = FALSE_ALARM_RATIO / _SIDES
_TILTS = tuple(0.1 * 1.3**n for n in range(28))  # up to 120, where only the largest value of each prompt counts
_LEAST_ALLOWANCE = 0.01  # what a miss is told relative to, where the limit allows nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A figure: its loss, how the mean of that reads, what a limit allows of it (up, down) beyond the reference's own
    loss. `few_decide`: most answers have no part in it, so that its noise is that of a few large ones."""

    name: str
    loss: Loss
    reads: Callable[[float], float]
    allows: Callable[[float, float], tuple[float, float]]
    few_decide: bool = True


_KINDS = (
    _Kind(
        name="perplexity_ratio",
        loss=nats,
        reads=math.exp,
        allows=lambda limit, _: (math.log(limit), math.inf),
        few_decide=False,
    ),
    _Kind(
        name="token_agreement",
        loss=parted,
        reads=lambda mean: 1 - mean,
        allows=lambda limit, own: ((1 - limit) * (1 - own), math.inf),
    ),
    _Kind(
        name="length_ratio",
        loss=lengthened,
        reads=lambda mean: 1 + mean,
        allows=lambda limit, _: (limit - 1, 1 - 1 / limit),
    ),
    _Kind(
        name="repetition_ratio",
        loss=looping,
        reads=lambda mean: mean,
        allows=lambda limit, _: (limit, math.inf),
    ),
)


def judge(reference: ReferenceAnswers, answers: Answers, asked_by: AskedBy, limits: QualitySpec) -> Quality:
    """Return whether `answers` are as good as the reference's, with every figure that both sides tell enough for."""
    notes = [*reference.notes, *_notes(reference, asked_by)]
    if asked_by is not reference.asked_by:
        reference, answers = _as_texts(reference), tuple(_as_text(answer) for answer in answers)
    figures = _figures(reference, answers, limits)
    missed = [figure for figure in figures if figure.missed]
    why = "; ".join(_miss_text(figure) for figure in missed)
    if not same_prompt_tokens(reference.base, answers):
        why = "it splits the prompts into other tokens than the reference"
    elif not on_prompts(reference.base, answers):
        notes.append("log-probabilities of the prompts are not told: judged by the answers alone")
    status = QualityStatus.FAILED if why else QualityStatus.PASSED
    return replace(
        _described(reference, answers, figures), status=status, why=why, asked_by=asked_by, notes=tuple(notes)
    )


def own_noise(reference: ReferenceAnswers, limits: QualitySpec) -> Quality:
    """Return how far the reference's own last pass, in batches, is from its first: nothing changed but the batch."""
    figures = _figures(reference, reference.repeats[-1], limits)
    found = _described(reference, reference.repeats[-1], [replace(figure, excess=None) for figure in figures])
    return replace(found, status=QualityStatus.REFERENCE, asked_by=reference.asked_by, notes=reference.notes)


def _notes(reference: ReferenceAnswers, asked_by: AskedBy) -> list[str]:
    if asked_by is reference.asked_by:
        return []
    return [f"asked by {asked_by.value}, the reference by {reference.asked_by.value}: only their texts are compared"]


def _as_text(answer: PromptAnswer) -> PromptAnswer:
    return PromptAnswer(text=answer.text, tokens=tuple(answer.text), finish_reason=answer.finish_reason)


def _as_texts(reference: ReferenceAnswers) -> ReferenceAnswers:
    base = tuple(_as_text(answer) for answer in reference.base)
    return replace(
        reference, base=base, repeats=tuple(tuple(_as_text(a) for a in answers) for answers in reference.repeats)
    )


def _figures(reference: ReferenceAnswers, answers: Answers, limits: QualitySpec) -> list[QualityFigure]:
    found = (_figure(kind, reference, answers, getattr(limits, kind.name)) for kind in _KINDS)
    return [figure for figure in found if figure is not None]


def _figure(kind: _Kind, reference: ReferenceAnswers, answers: Answers, limit: float | None) -> QualityFigure | None:
    ours = kind.loss(reference.base, answers)
    own = [kind.loss(reference.base, repeat) for repeat in reference.repeats]
    known = [losses for losses in own if losses is not None]
    if ours is None or len(known) < len(own):
        return None
    mean, own_mean = fmean(ours), fmean(fmean(losses) for losses in known)
    margin = noise_margin(known)
    chance = chance_of(ours, known) if kind.few_decide else None
    luck = chance is not None and chance > _SIDE_RATIO
    return QualityFigure(
        name=kind.name,
        value=kind.reads(mean),
        own=kind.reads(own_mean),
        noise=abs(kind.reads(own_mean + margin) - kind.reads(own_mean)),
        chance=chance,
        limit=limit,
        excess=None if limit is None else _excess(mean - own_mean, margin, kind.allows(limit, own_mean), luck=luck),
    )


def _excess(difference: float, margin: float, allowed: tuple[float, float], *, luck: bool) -> float:
    allowance = allowed[0] if difference > 0 else allowed[1]
    if math.isinf(allowance):
        return -1.0
    excess = (abs(difference) - margin - allowance) / max(allowance, _LEAST_ALLOWANCE)
    return min(0.0, excess) if luck else excess


def noise_margin(own: Sequence[Sequence[float]]) -> float:
    """Return how large D may be with nothing changed, from the reference's K passes over N prompts: Student's quantile
    of N * (K - 1) degrees of freedom, times D's standard deviation."""
    passes, prompts = len(own), len(own[0])
    residuals = 0.0
    for of_prompt in zip(*own, strict=True):
        mean = fmean(of_prompt)
        residuals += sum((loss - mean) ** 2 for loss in of_prompt)
    freedom = prompts * (passes - 1)
    return _student(freedom) * math.sqrt(residuals / freedom * (1 + 1 / passes) / prompts)


@cache
def _student(freedom: int) -> float:
    """The quantile of one side, by Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5): 1 % high at 8."""
    z = NormalDist().inv_cdf(1 - _SIDE_RATIO)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def chance_of(ours: Sequence[float], own: Sequence[Sequence[float]]) -> float:
    """Return at most how often a pass drawn for each prompt from all K + 1 of them lies as far out as `ours`.

    With nothing changed every pass of a prompt is as likely to be the candidate's, whatever its noise. Chernoff's bound
    on that permutation test: the least over t of the product over prompts of mean_j exp(t (v_ij - x_i)).
    """
    sign = 1.0 if fmean(ours) >= fmean(map(fmean, own)) else -1.0
    prompts = [
        [sign * (v - x) for v in (x, *theirs)] for x, *theirs in zip(ours, *own, strict=True) if {x} != {*theirs}
    ]
    return min(1.0, *(math.exp(min(0.0, sum(_log_mean_exp(t, steps) for steps in prompts))) for t in _TILTS))


def _log_mean_exp(t: float, values: Sequence[float]) -> float:
    top = max(values)
    return t * top + math.log(fmean(math.exp(t * (value - top)) for value in values))


def _described(reference: ReferenceAnswers, answers: Answers, figures: Sequence[QualityFigure]) -> Quality:
    """What is the same of every check: how many prompts, and where answers part."""
    pairs = list(zip(reference.base, answers, strict=True))
    equal = [a.tokens == b.tokens for a, b in pairs]
    parts = [agreed_tok(a, b) for (a, b), same in zip(pairs, equal, strict=True) if not same]
    told = [len(a.prompt_logprobs) for a, _ in pairs if a.prompt_logprobs is not None]
    ratio = next((figure.value for figure in figures if figure.name == "perplexity_ratio"), None)
    return Quality(
        status=QualityStatus.PASSED,
        prompts=len(pairs),
        prompt_tokens=sum(told) if told else None,
        figures=tuple(figures),
        equal_ratio=fmean(equal),
        first_divergence_tok=median(parts) if parts else None,
        mean_logprob_difference=None if ratio is None else -math.log(ratio),
    )


def _miss_text(figure: QualityFigure) -> str:
    """`perplexity_ratio 1.35, limit 1.02 (the reference against itself: 1, noise 0.002)`."""
    return (
        f"{figure.name} {figure.value:.4g}, limit {figure.limit:g} "
        f"(the reference against itself: {figure.own:.4g}, noise {figure.noise:.2g})"
    )
