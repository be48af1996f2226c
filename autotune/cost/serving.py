"""What a token and a useful answer cost while a configuration serves at its measured rate."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.records.metrics import ENERGY
from autotune.records.spec import PriceSpec, TokenPrice
from autotune.records.trial import Estimate

MILLION = 1e6
SECONDS_PER_HOUR = 3600.0
JOULES_PER_WH = 3600.0

OUTPUT, TOTAL, GOODPUT = "output_tok_per_s", "total_tok_per_s", "goodput_rps"
NEEDED = (OUTPUT, TOTAL, GOODPUT)
"""Rates that costs are made of."""

ENERGY_COUNTER = "gpu_energy_per_output_token_j"


def cost_values(
    values: Mapping[str, Estimate], counters: Mapping[str, float], *, price: PriceSpec | None, gpus: int
) -> dict[str, Estimate]:
    """Return the cost metrics of a level, or of levels taken together, that its rates and its price tell.

    `gpus` is what served them. Intervals are the rates' own; what a price costs is taken as exact.
    """
    found = {ENERGY: _energy(values.get(OUTPUT), counters.get(ENERGY_COUNTER))}
    if price is not None:
        found |= _by_token(values, price.tokens) if price.tokens else _by_hour(values, price.hourly_usd(gpus) or 0.0)
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def usd_per_million_tok(tok_per_s: Estimate, usd_per_hour: float) -> Estimate | None:
    """Return dollars per million tokens: usd_per_hour / (tokens an hour) x 1e6.

    `usd_per_hour` is the price of all GPUs that gave `tok_per_s`. None when nothing was delivered: there is no price
    at which nothing is worth it.
    """
    return _per(tok_per_s, usd_per_hour / SECONDS_PER_HOUR * MILLION)


def usd_per_useful_response(goodput_rps: Estimate, usd_per_hour: float) -> Estimate | None:
    """Return dollars per answer that met every SLO: errors and misses earn nothing, yet their time was paid for.

    None when no answer was useful.
    """
    return _per(goodput_rps, usd_per_hour / SECONDS_PER_HOUR)


def charged_per_million_output_tok(output: Estimate, total: Estimate, price: TokenPrice) -> Estimate | None:
    """Return an API's bill, prompts included, by a million output tokens, from the rates of output and of all tokens.

    Its interval sets the worst of one rate against the best of the other, so it is wider than stated; exact where
    prompts are free. None when nothing was delivered.
    """
    if output.value <= 0:
        return None

    def bill(all_tokens: float, answers: float) -> float:
        prompts = max(0.0, all_tokens / answers - 1)
        return price.usd_per_million_output_tok + price.usd_per_million_input_tok * prompts

    known = total.low is not None and output.high is not None
    bounded = total.high is not None and output.low is not None and output.low > 0
    return Estimate(
        value=bill(total.value, output.value),
        low=bill(total.low or 0.0, output.high or output.value) if known else None,
        high=bill(total.high or 0.0, output.low or output.value) if bounded else None,
        n=output.n,
    )


def wh_per_million_tok(energy_j: float, tokens: float) -> float | None:
    """Return watt-hours per million tokens from the energy that GPUs used for `tokens`; None for no tokens."""
    return energy_j / JOULES_PER_WH / tokens * MILLION if tokens > 0 else None


def _by_hour(values: Mapping[str, Estimate], usd_per_hour: float) -> dict[str, Estimate | None]:
    output, useful = values.get(OUTPUT), values.get(GOODPUT)
    return {
        "usd_per_million_output_tok": None if output is None else usd_per_million_tok(output, usd_per_hour),
        "usd_per_useful_response": None if useful is None else usd_per_useful_response(useful, usd_per_hour),
    }


def _by_token(values: Mapping[str, Estimate], price: TokenPrice) -> dict[str, Estimate | None]:
    output, total, useful = (values.get(name) for name in (OUTPUT, TOTAL, GOODPUT))
    if output is None or total is None:
        return {}
    cost = charged_per_million_output_tok(output, total, price)
    usd_per_s = 0.0 if cost is None else cost.value * output.value / MILLION
    return {
        "usd_per_million_output_tok": cost,
        "usd_per_useful_response": None if useful is None else _per(useful, usd_per_s),
    }


def _energy(output: Estimate | None, j_per_tok: float | None) -> Estimate | None:
    """Spread as the output's rate is: at a steady power a slower second costs more by the token."""
    if output is None or j_per_tok is None:
        return None
    return _per(output, j_per_tok / JOULES_PER_WH * MILLION * output.value)


def _per(rate: Estimate, amount_per_s: float) -> Estimate | None:
    """Amount per unit delivered. The dearer end comes from the rate's low end; open where that reaches 0."""
    if rate.value <= 0:
        return None
    return Estimate(
        value=amount_per_s / rate.value,
        low=None if rate.high is None else amount_per_s / rate.high,
        high=None if rate.low is None or rate.low <= 0 else amount_per_s / rate.low,
        n=rate.n,
    )
