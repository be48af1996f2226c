"""What a run's result costs, in words: by the token, the study itself, a month of it, and how much to take on."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune import cost
from autotune.records.spec import PriceSpec
from autotune.records.trial import Estimate, TrialRecord
from autotune.report.view import RunView
from autotune.report.words import figure, with_interval
from autotune.trial.figures import figure_of, operating_limits_of
from autotune.trial.launches import figure_over, launches_of

_TOKEN, _ANSWER, _ENERGY = (
    "usd_per_million_output_tok",
    "usd_per_useful_response",
    "energy_wh_per_million_output_tok",
)
_S_PER_MONTH = cost.HOURS_PER_MONTH * 3600


def cost_lines(view: RunView) -> list[str]:
    """Return the lines; none without a price, but for the limits, which need only a capacity."""
    chosen, price = view.best or view.nearest, view.spec.price
    if chosen is None:
        return []
    lines = [] if price is None else [*_serving(view, chosen, price), *_study(view, price), *_month(chosen, price)]
    return [*lines, *_limits(view, chosen, price)]


def _serving(view: RunView, chosen: TrialRecord, price: PriceSpec) -> Iterator[str]:
    by_token, by_answer, energy = (_figure(view, chosen, name) for name in (_TOKEN, _ANSWER, _ENERGY))
    if by_token is None:
        return
    text = f"Costs ${with_interval(by_token)} per million output tokens"
    if by_answer is not None:
        text += f", ${figure(by_answer.value)} per useful response"
    if energy is not None:
        text += f", {with_interval(energy)} Wh per million output tokens"
    yield f"{text}, {_at(chosen, price)}"
    before = None if view.reference is None or view.reference is chosen else _figure(view, view.reference, _TOKEN)
    if before is not None:
        yield f"The reference costs ${with_interval(before)} per million output tokens"


def _figure(view: RunView, trial: TrialRecord, metric: str) -> Estimate | None:
    launches = launches_of(view.trials, trial) or [trial]
    return figure_over(launches, metric, price=view.spec.price, confidence=view.spec.objective.confidence)


def _at(trial: TrialRecord, price: PriceSpec) -> str:
    if price.usd_per_gpu_hour is not None:
        return (
            f"at ${figure(price.usd_per_gpu_hour)} per GPU-hour, {trial.gpus or 1} GPU{'s' * ((trial.gpus or 1) > 1)}"
        )
    return "as its API charges, prompts included" if price.tokens else f"at ${figure(price.usd_per_hour)} an hour"


def _study(view: RunView, price: PriceSpec) -> Iterator[str]:
    spent = view.summary.cost if view.summary else None
    if spent is None:
        return
    unit = "GPU-hours" if price.usd_per_gpu_hour is not None else "hours"
    simulated = " would have" if view.simulated else ""
    text = f"The study{simulated} cost ${figure(spent.usd)} ({figure(spent.hours)} {unit})"
    if spent.payback_tok is not None:
        text += f", paid back after {_tokens(spent.payback_tok)} output tokens"
    yield text


def _month(chosen: TrialRecord, price: PriceSpec) -> Iterator[str]:
    """At the traffic that the user gave; capacity, else what the trial delivered, is what one replica holds."""
    output, served = (figure_of(chosen, name) for name in ("output_tok_per_s", "request_rps"))
    holds = figure_of(chosen, "capacity_rps") or served
    if price.rate_rps is None or holds is None or holds.value <= 0 or output is None or served is None:
        return
    tok_per_month = price.rate_rps * output.value / served.value * _S_PER_MONTH
    if price.tokens is not None:
        by_token = figure_of(chosen, _TOKEN, price)
        if by_token is not None:
            charged = by_token.value * tok_per_month / cost.MILLION
            volume = f"{_tokens(tok_per_month)} output tokens"
            yield f"A month of {figure(price.rate_rps)} requests/s: {volume}, ${figure(charged)}"
        return
    bill, replicas = monthly(chosen, price, holds.value)
    yield (
        f"A month of {figure(price.rate_rps)} requests/s: {replicas} replica{'s' * (replicas > 1)} that hold "
        f"{figure(holds.value)} each with {price.headroom_ratio:.0%} kept free, ${figure(bill.total_usd)}; "
        f"{_tokens(tok_per_month)} output tokens, so ${figure(bill.usd_per_million_tok(tok_per_month))} a million"
    )
    yield from _against_api(chosen, price, bill, tok_per_month)


def monthly(chosen: TrialRecord, price: PriceSpec, capacity_rps: float) -> tuple[cost.MonthlyCost, int]:
    """Return what a month of a configuration costs at the price's rate, and its replicas."""
    replicas = cost.replicas_for(price.rate_rps or 0.0, capacity_rps, price.headroom_ratio)
    overheads = price.overheads
    deployment = cost.Deployment(
        replicas=replicas,
        gpus_per_replica=1,
        usd_per_gpu_hour=price.hourly_usd(chosen.gpus or 1) or 0.0,
        startup_s=chosen.startup_s or 0.0,
        preparation_s=(chosen.checkpoint.prepare_s or 0.0) if chosen.checkpoint is not None else 0.0,
        starts_per_month=price.starts_per_month,
        overheads_usd=overheads.network_usd + overheads.engineering_usd + overheads.operations_usd,
        downtime_hours_per_month=overheads.downtime_hours,
        downtime_usd_per_hour=overheads.downtime_usd_per_hour,
    )
    return cost.monthly_cost(deployment), replicas


def _against_api(chosen: TrialRecord, price: PriceSpec, bill: cost.MonthlyCost, tok_per_month: float) -> Iterator[str]:
    output, total = (figure_of(chosen, name) for name in ("output_tok_per_s", "total_tok_per_s"))
    if price.api is None or output is None or total is None:
        return
    charged = cost.charged_per_million_output_tok(output, total, price.api)
    if charged is None:
        return
    volume = cost.break_even_tok_per_month(bill.total_usd, charged.value)
    cheaper = "below" if tok_per_month > volume else "above"
    yield (
        f"The API charges ${figure(charged.value)} per million output tokens, prompts included: these replicas "
        f"break even at {_tokens(volume)} output tokens a month, and are {cheaper} its price at this traffic"
    )


def _limits(view: RunView, chosen: TrialRecord, price: PriceSpec | None) -> Iterator[str]:
    limits = operating_limits_of(chosen, view.spec.objective)
    if limits is None:
        return
    yield (
        f"Safe limits of a replica (by a model of queueing): {limits.in_flight_max} requests in flight, "
        f"{limits.queue_max} more waiting, the rest refused at once"
    )
    if price is not None and price.rate_rps is not None:
        share = limits.reject_ratio(price.rate_rps)
        yield f"One replica alone would refuse about {share:.2%} of {figure(price.rate_rps)} requests/s"


def _tokens(count: float) -> str:
    if math.isinf(count):
        return "endlessly many"
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{figure(count / size)} {word}"
    return figure(count)
