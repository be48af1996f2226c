"""A price may change on resume, unless trials were judged by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.records.spec import Direction, PriceSpec, Slo
from autotune.trial.session import open_run
from autotune.trial.store import RunDirectory
from tests.builders import objective, study_spec

DEAR, CHEAP = PriceSpec(usd_per_gpu_hour=5), PriceSpec(usd_per_gpu_hour=2)
COST = "usd_per_million_output_tok"


def test_a_price_that_only_reports_use_may_change(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    open_run(study_spec(price=DEAR), run, resume=False)
    open_run(study_spec(price=CHEAP), run, resume=True)
    assert run.spec().price == CHEAP


@pytest.mark.parametrize(
    "goal",
    [
        objective(metric=COST, direction=Direction.MINIMIZE),
        objective(slos=(Slo(metric=COST, limit=1.0),)),
    ],
    ids=["objective", "SLO"],
)
def test_a_price_that_trials_were_judged_by_may_not(goal: object, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    spec = study_spec(price=DEAR, objective=goal)
    open_run(spec, run, resume=False)
    with pytest.raises(InputError, match="changed since it was started: price"):
        open_run(replace(spec, price=CHEAP), run, resume=True)
