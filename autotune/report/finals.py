"""What the launches after the search showed, in lines: who won and by how much, who tied, how the soak went."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.records.finals import Shifted, Soak
from autotune.records.summary import FinalsSummary
from autotune.records.trial import Outcome
from autotune.report.view import RunView
from autotune.report.words import OUTCOME_MEANING, TIMES, duration, figure, interval, number_list, plain, value_text
from autotune.search.sensitivity import Neighbour, neighbours

SHOWN_NEIGHBOURS = 4


def finals_lines(view: RunView) -> list[str]:
    """Return the lines on the finals; none while they are not over, or where there were none."""
    found = view.summary.finals if view.summary else None
    if found is None:
        return []
    return [*_decision(found), *_optimism(view, found), *_soak(found)]


def neighbour_lines(view: RunView) -> list[str]:
    """Return what the trials nearest to the best gave, by the search's own launches: what each change costs."""
    if view.best is None or view.summary is None or not view.summary.finished:
        return []
    found = neighbours(view.trials, view.best, view.spec.objective, SHOWN_NEIGHBOURS)
    return [f"Near it: {_changed(each)}: {_cost(each)} (trial {each.trial})" for each in found]


def _changed(each: Neighbour) -> str:
    shown = (("default" if value is None else value_text(value)) for value in each.changed.values())
    return ", ".join(f"{plain(name)}={text}" for name, text in zip(each.changed, shown, strict=True))


def _cost(each: Neighbour) -> str:
    if each.ratio is None or each.outcome is not Outcome.OK:
        return OUTCOME_MEANING[each.outcome]
    return f"{each.ratio - 1:+.1%} of the objective, measured once"


def _decision(found: FinalsSummary) -> Iterator[str]:
    scatter = f"launches of one configuration differ by {found.launch_sd:.1%} (one standard deviation)"
    yield f"Finals: {found.launches} launches, {found.rounds} rounds; {plain(found.why)}; {scatter}"
    if found.ties:
        told = "the reference" if found.winner == found.reference else "the nearest to the reference"
        yield f"Ties with it: trial {number_list(sorted(found.ties))}; {told} was taken"
    behind = [each.trial for each in found.finalists if each.behind]
    if behind:
        yield f"Known to be behind: trial {number_list(behind)}"
    for each in found.finalists:
        if each.out is not None:
            yield f"Out: trial {each.trial}, {plain(each.out)}"


def _optimism(view: RunView, found: FinalsSummary) -> Iterator[str]:
    claimed, gain = found.search_gain, view.summary.gain if view.summary else None
    if claimed is None or found.search_best is None:
        return
    by_itself = f"the search by itself would have claimed {figure(claimed.value)}{TIMES} for trial {found.search_best}"
    if gain is not None:
        span = interval(gain.low, gain.high)
        yield f"Gain by these launches alone, {1 - found.error_rate:.0%} sure: {span}{TIMES}; {by_itself}, optimistic"
    elif found.search_best != found.reference:  # which has no gain over itself
        yield f"For comparison: {by_itself}, which is optimistic"


def _soak(found: FinalsSummary) -> Iterator[str]:
    soak = found.soak
    if soak is None:
        return
    how = "SLOs held through it" if soak.failed is None else plain(soak.failed)
    yield f"Soak: trial {found.soak_trial}, {duration(soak.duration_s)} at {soak.load}; {how}; {_drift(soak)}"
    yield from (_shift(each) for each in soak.shifted)


def _drift(soak: Soak) -> str:
    if not soak.trends:
        return "drift can't be told of this load"
    moved = [f"{plain(name)} {trend.change_ratio:+.1%}" for name, trend in soak.trends.items() if trend.sure]
    return f"begin to end: {', '.join(moved)}" if moved else "no drift beyond its scatter"


def _shift(each: Shifted) -> str:
    if each.ruling is None:
        return f"With {plain(each.name)}: not measured ({plain(each.why)})"
    missed = f", misses {', '.join(map(plain, each.missed))}" if each.missed else ""
    return f"With {plain(each.name)}: {figure(each.objective)}, SLOs {each.ruling}{missed}"
