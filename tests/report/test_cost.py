"""What reports say of costs: nothing without a price, the month at the given traffic, the API it is held against."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.deploy import write_best
from autotune.records.spec import OverheadSpec, PriceSpec, TokenPrice
from autotune.records.summary import StudyCost
from autotune.records.trial import Capacity, Measurement, TrialRecord
from autotune.report.cost import cost_lines
from autotune.report.view import RunView, make_view
from autotune.trial.store import RunDirectory
from tests.runs import dozen, estimate, study, summary, write_run


def priced(price: PriceSpec | None, *, spent: StudyCost | None = None, capacity: bool = False) -> RunView:
    return make_view(Path("runs/x"), replace(study(), price=price), _records(capacity), replace(summary(), cost=spent))


def _records(capacity: bool) -> list[TrialRecord]:
    """All serve 100 tokens an answer, with 3 times as many tokens in all."""
    found = Capacity(of="rps", value=estimate(8.0), method="levels", levels=1, load_s=60)
    return [
        replace(record, measurements=tuple(_whole(record)), capacity=found if capacity else None, gpus=1)
        for record in dozen()
    ]


def _whole(record: TrialRecord) -> list[Measurement]:
    more = {"e2e_ms.mean": estimate(4000), "ttft_ms.p50": estimate(100)}
    return [
        replace(
            level,
            values={
                **level.values,
                "total_tok_per_s": estimate(level.values["output_tok_per_s"].value * 3),
                "request_rps": estimate(level.values["output_tok_per_s"].value / 100),
                "goodput_rps": estimate(level.values["output_tok_per_s"].value / 100),
                **more,
            },
        )
        for level in record.measurements
    ]


def test_without_a_price_nothing_is_said() -> None:
    assert cost_lines(priced(None)) == []


def test_best_and_reference_are_priced() -> None:
    best, reference = cost_lines(priced(PriceSpec(usd_per_gpu_hour=3.6)))
    assert best.startswith("Costs $3.21 (3.02…3.41) per million output tokens, $0.000321 per useful response")
    assert best.endswith("at $3.6 per GPU-hour, 1 GPU")
    assert reference == "The reference costs $4.2 (3.96…4.47) per million output tokens"


def test_what_the_study_cost_and_when_it_has_paid_back() -> None:
    spent = StudyCost(hours=1.5, usd=5.4, payback_tok=5.4e6)
    lines = cost_lines(priced(PriceSpec(usd_per_gpu_hour=3.6), spent=spent))
    assert lines[-1] == "The study cost $5.4 (1.5 GPU-hours), paid back after 5.4 million output tokens"


def test_a_month_of_the_users_traffic_against_an_api() -> None:
    """3.12 requests/s a replica, 30 % free: 10 take 5 replicas. 730 h x 5 x 3.6 + 1000 = 14,140 dollars."""
    api = TokenPrice(usd_per_million_input_tok=0.5, usd_per_million_output_tok=3.2)
    overheads = OverheadSpec(network_usd=400, operations_usd=600)
    *_, month, against = cost_lines(priced(PriceSpec(usd_per_gpu_hour=3.6, rate_rps=10, overheads=overheads, api=api)))
    assert "5 replicas that hold 3.12 each with 30% kept free, $14140; 2.63 billion output tokens" in month
    assert "charges $4.2 per million output tokens" in against
    assert "break even at 3.37 billion output tokens a month, and are above its price" in against


def test_an_apis_month_is_its_bill() -> None:
    price = PriceSpec(usd_per_million_input_tok=0.5, usd_per_million_output_tok=3.2, rate_rps=10)
    assert cost_lines(priced(price))[-1] == "A month of 10 requests/s: 2.63 billion output tokens, $11038"


def test_limits_are_told_where_a_capacity_was_measured() -> None:
    (line,) = cost_lines(priced(None, capacity=True))
    assert line.startswith("Safe limits of a replica (by a model of queueing): 44 requests in flight, 3 more waiting")
    with_rate = cost_lines(priced(PriceSpec(usd_per_hour=1, rate_rps=16), capacity=True))
    assert with_rate[-1] == "One replica alone would refuse about 50.00% of 16 requests/s"


@pytest.mark.parametrize("capacity", [True, False])
def test_limits_are_a_suggestion_beside_the_arguments_that_were_measured(capacity: bool, tmp_path: Path) -> None:
    view = priced(PriceSpec(usd_per_gpu_hour=3.6), capacity=capacity)
    write_run(tmp_path, view.trials, view.summary, view.spec)
    assert view.best is not None
    assert view.summary is not None
    write_best(RunDirectory(tmp_path), view.spec, view.best, view.reference, view.summary)
    best = json.loads((tmp_path / "best/best.json").read_text())
    assert best["engine"]["args"] == dict(view.best.args)
    assert "max_num_queued_reqs" not in (tmp_path / "best/vllm.yaml").read_text()
    assert best["cost"]["usd_per_million_output_tok"]["value"] == pytest.approx(3.205, abs=0.001)
    if capacity:
        assert best["suggested_limits"]["args"]["max_num_queued_reqs"] == 44 + 3
    else:
        assert best["suggested_limits"] is None
