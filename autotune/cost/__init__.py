"""Cost: measured rates and prices come in, what serving costs goes out. Formulas and examples: docs/cost.md.

`serving` is what a token or a useful answer costs while a configuration serves, `monthly` what a deployment of it costs
and when it beats a managed API, `payback` when a study has earned what it cost, `limits` how much a deployment should
take on. Everything is in US dollars; any other currency works as long as all prices are in it.
"""

from autotune.cost.limits import OperatingLimits, operating_limits, reject_ratio
from autotune.cost.monthly import (
    HOURS_PER_MONTH,
    MILLION,
    Deployment,
    MonthlyCost,
    break_even_tok_per_month,
    monthly_cost,
    replicas_for,
)
from autotune.cost.payback import payback_tok
from autotune.cost.serving import (
    ENERGY_COUNTER,
    NEEDED,
    charged_per_million_output_tok,
    cost_values,
    usd_per_million_tok,
    usd_per_useful_response,
    wh_per_million_tok,
)

__all__ = [
    "ENERGY_COUNTER",
    "HOURS_PER_MONTH",
    "MILLION",
    "NEEDED",
    "Deployment",
    "MonthlyCost",
    "OperatingLimits",
    "break_even_tok_per_month",
    "charged_per_million_output_tok",
    "cost_values",
    "monthly_cost",
    "operating_limits",
    "payback_tok",
    "reject_ratio",
    "replicas_for",
    "usd_per_million_tok",
    "usd_per_useful_response",
    "wh_per_million_tok",
]
