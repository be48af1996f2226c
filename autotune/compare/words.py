"""The verdict of a comparison in words, each line with its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.compare.record import Contender, Difference
from autotune.report.words import figure, interval, metric_label


def verdict_lines(contenders: Sequence[Contender], differences: Sequence[Difference], objective: str) -> Iterator[str]:
    """Yield who has no result, who is better by the objective, then by what else."""
    yield from (
        f"{c.run}: nothing met the objective by figures that can be trusted" for c in contenders if c.best is None
    )
    for found in sorted(differences, key=lambda each: each.metric != objective):
        yield _line(found, objective)


def _line(found: Difference, objective: str) -> str:
    what = metric_label(found.metric) + (" (objective)" if found.metric == objective else "")
    span = interval(found.ratio.low, found.ratio.high)
    ratio = f"{found.first} has {figure(found.ratio.value)} times the {metric_label(found.metric)} of {found.second}"
    evidence = f"{ratio}" + (f" ({span})" if span else "")
    if found.winner is None:
        return f"{what}: a tie; {evidence}, inside the noise"
    surely = "is better" if found.freedom else "is ahead, to be confirmed by repeated launches"
    return f"{what}: {found.winner} {surely}; {evidence}"


def leaders(contenders: Sequence[Contender], objectives: Sequence[Difference]) -> str:
    """Return who is ahead of everyone by the objective, else who tie in front; `objectives` are its differences."""
    if not objectives:
        return "not decided"
    lost = {name for found in objectives for name in (found.first, found.second) if found.winner not in (None, name)}
    front = [c.run for c in contenders if c.best is not None and c.run not in lost]
    return front[0] if len(front) == 1 else f"a tie of {', '.join(front)}"
