"""Cost metrics of a level from its rates: by the hour, by the token, energy; and which levels of a record count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost import charged_per_million_output_tok, cost_values
from autotune.records.finals import FinalRun, FinalStage
from autotune.records.metrics import ENERGY
from autotune.records.spec import PriceSpec, TokenPrice
from autotune.records.trial import Capacity, Estimate, Measurement
from autotune.search.costs import occupied_s, study_cost
from autotune.trial.figures import figure_of, operating_limits_of
from tests.builders import objective, study_spec, trial

PER_TOKEN = "usd_per_million_output_tok"
BY_GPU = PriceSpec(usd_per_gpu_hour=3.6)
BY_TOKEN = PriceSpec(usd_per_million_input_tok=1, usd_per_million_output_tok=4)


def rate(value: float, spread: float = 0.1) -> Estimate:
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), n=100)


def level(tok_per_s: float, *, offered_rps: float = 10, **more: float) -> Measurement:
    values = {
        "output_tok_per_s": rate(tok_per_s),
        "total_tok_per_s": rate(3 * tok_per_s),
        "goodput_rps": rate(tok_per_s / 100),
        "request_rps": rate(tok_per_s / 100),
        **{name: rate(value) for name, value in more.items()},
    }
    return Measurement(offered_rps=offered_rps, concurrency=None, duration_s=60, requests=600, errors=0, values=values)


def test_gpus_are_paid_for_all_and_the_interval_is_the_rates() -> None:
    found = cost_values(level(1000).values, {}, price=BY_GPU, gpus=2)[PER_TOKEN]
    assert found.value == pytest.approx(2 * 3.6 / 3600 / 1000 * 1e6)
    assert [found.low, found.high] == pytest.approx([found.value / 1.1, found.value / 0.9])


def test_a_machine_is_paid_for_once_however_many_gpus() -> None:
    price = PriceSpec(usd_per_hour=3.6)
    one, four = (cost_values(level(1000).values, {}, price=price, gpus=gpus)[PER_TOKEN].value for gpus in (1, 4))
    assert one == four == pytest.approx(1.0)


def test_an_api_charges_for_prompts_too() -> None:
    found = cost_values(level(1000).values, {}, price=BY_TOKEN, gpus=1)
    assert found[PER_TOKEN].value == pytest.approx(4 + 1 * 2)
    assert found["usd_per_useful_response"].value == pytest.approx(6e-6 * 1000 / 10)


@given(st.floats(1, 1e5), st.floats(1, 10), st.floats(0, 0.3), st.floats(0, 50), st.floats(0.01, 50))
def test_a_bill_lies_in_its_interval(output: float, factor: float, spread: float, prompt: float, answer: float) -> None:
    price = TokenPrice(usd_per_million_input_tok=prompt, usd_per_million_output_tok=answer)
    found = charged_per_million_output_tok(rate(output, spread), rate(output * factor, spread), price)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert answer * (1 - 1e-9) <= found.low <= found.value * (1 + 1e-9) <= found.high * (1 + 1e-9) * (1 + 1e-9)


def test_energy_needs_no_price_but_gpus_that_tell_it() -> None:
    values = level(1000).values
    assert cost_values(values, {}, price=None, gpus=1) == {}
    found = cost_values(values, {"gpu_energy_per_output_token_j": 0.36}, price=None, gpus=1)
    assert found[ENERGY].value == pytest.approx(100)  # 0.36 MJ a million tokens
    assert found[ENERGY].high == pytest.approx(100 / 0.9)


def test_nothing_delivered_has_no_price() -> None:
    assert cost_values(level(0).values, {}, price=BY_GPU, gpus=1) == {}
    assert cost_values(level(0).values, {}, price=BY_TOKEN, gpus=1) == {}


def test_a_record_is_priced_anew_by_the_price_of_today() -> None:
    record = replace(trial(0, value=1.0), measurements=(level(1000, **{PER_TOKEN: 99.0}),), gpus=1)
    found = figure_of(record, PER_TOKEN, BY_GPU)
    assert found is not None
    assert found.value == pytest.approx(1.0)
    assert figure_of(record, PER_TOKEN) is None


def test_of_a_search_only_the_levels_beside_the_capacity_count() -> None:
    levels = (level(500, offered_rps=5), level(1000, offered_rps=10.1), level(3000, offered_rps=20))
    found = Capacity(of="rps", value=rate(10), method="levels", levels=3, load_s=180)
    record = replace(trial(0, value=1.0), measurements=levels, capacity=found, gpus=2)
    (beside, capacity, each) = (
        figure_of(record, name) for name in ("output_tok_per_s", "capacity_rps", "capacity_rps_per_gpu")
    )
    assert beside is not None
    assert capacity is not None
    assert each is not None
    assert (beside.value, capacity.value, each.value) == (1000, 10, 5)
    assert figure_of(record, "capacity_concurrency") is None


def test_limits_come_from_a_capacity_in_requests_a_second() -> None:
    found = Capacity(of="rps", value=rate(10), method="levels", levels=1, load_s=60)
    beside = level(1000, **{"e2e_ms.mean": 4000.0, "ttft_ms.p50": 100.0})
    record = replace(trial(0, value=1.0), measurements=(beside,), capacity=found)
    limits = operating_limits_of(record, objective())
    assert limits is not None
    assert limits.in_flight_mean == pytest.approx(40)
    assert limits.queue_max == 4
    clients = replace(record, capacity=replace(found, of="concurrency"))
    nothing = replace(record, capacity=replace(found, value=Estimate(value=0, low=0, high=0, n=1)))
    assert [operating_limits_of(r, objective()) for r in (clients, nothing, replace(record, capacity=None))] == [
        None
    ] * 3


def test_a_study_costs_what_its_launches_occupied() -> None:
    first = replace(trial(0, value=1.0), wall_s=1800, gpus=4, measurements=(level(1000),), startup_s=100)
    better = replace(trial(1, value=2.0), wall_s=1800, gpus=4, measurements=(level(2000),), startup_s=100)
    spent = study_cost([first, better], better, first, study_spec(price=PriceSpec(usd_per_gpu_hour=2)))
    assert spent is not None
    assert (spent.hours, spent.usd) == (4, 8)
    by_token = [4 * 2 / 3600 / tok_per_s * 1e6 for tok_per_s in (1000, 2000)]
    assert spent.payback_tok == pytest.approx(8 / (by_token[0] - by_token[1]) * 1e6)
    by_machine = study_cost([first, better], better, first, study_spec(price=PriceSpec(usd_per_hour=2)))
    assert by_machine is not None
    assert (by_machine.hours, by_machine.usd) == (1, 2)


def test_a_gain_inside_the_intervals_pays_nothing_back() -> None:
    first = replace(trial(0, value=1.0), measurements=(level(1000),), gpus=1)
    alike = replace(trial(1, value=1.0), measurements=(level(1100),), gpus=1)
    spent = study_cost([first, alike], alike, first, study_spec(price=BY_GPU))
    assert spent is not None
    assert spent.payback_tok is None
    for price in (None, BY_TOKEN):
        assert study_cost([first], first, first, study_spec(price=price)) is None


def test_what_the_finals_measured_decides_what_is_paid_back() -> None:
    first = replace(trial(0, value=1.0), measurements=(level(1000),), gpus=1)
    lucky = replace(trial(1, value=9.0), measurements=(level(9000),), gpus=1)
    final = FinalRun(of=1, stage=FinalStage.ROUND, round=1, after=1)
    again = [
        replace(lucky, number=2 + i, final=final, measurements=(level(rate),)) for i, rate in enumerate((990, 1010))
    ]
    spec = study_spec(price=BY_GPU)
    for records, paid in (([first, lucky], True), ([first, lucky, *again], False)):
        spent = study_cost(records, lucky, first, spec)
        assert spent is not None
        assert (spent.payback_tok is not None) is paid


def test_a_simulated_launch_occupies_its_own_clock() -> None:
    virtual = replace(trial(0, value=1.0), wall_s=0.1, startup_s=60, measurements=(level(1000),))
    assert occupied_s(virtual) == 120
    assert occupied_s(replace(virtual, wall_s=500)) == 500
