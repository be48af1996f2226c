"""Levels that end once their verdict is settled: what stopped a level is what is then ruled."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.engines.vllm.engine import VllmEngine
from autotune.records.spec import (
    Bound,
    EngineKind,
    EngineSpec,
    FixedLength,
    LoadSpec,
    ObjectiveSpec,
    SessionSpec,
    Slo,
    WorkloadSpec,
)
from autotune.records.trial import Candidate, Outcome, Role, Ruling
from autotune.slo import judge, settled_by
from autotune.trial.deciding import Deciding, ended
from autotune.trial.judging import measured, pooled
from autotune.trial.run import TrialSetting, run_trial
from autotune.trial.store import RunDirectory
from tests.builders import objective, study_spec
from tests.trial.replaying import level, replay

OPEN = LoadSpec(poisson_rps=20, duration_s=40, warmup_s=2)


E2E = Slo(metric="e2e_ms.mean", limit=1800)
"""Missed for sure: the mean is about 2.1 s. The guard says nothing of E2E."""


def asking(*slos: Slo, metric: str = "capacity_rps") -> ObjectiveSpec:
    """An objective whose figure holds no pass back."""
    return objective(slos=slos, metric=metric, load=OPEN, confidence=0.8)


SLOS = st.one_of(
    st.builds(Slo, metric=st.sampled_from(["ttft_ms.p50", "ttft_ms.p90", "e2e_ms.p75"]), limit=st.floats(30, 4000)),
    st.builds(Slo, metric=st.just("error_ratio"), limit=st.floats(0.002, 0.3)),
    st.builds(Slo, metric=st.sampled_from(["ttft_ms.mean", "tpot_ms.mean"]), limit=st.floats(30, 1000)),
    st.builds(Slo, metric=st.just("request_rps"), limit=st.floats(5, 30), bound=st.just(Bound.MIN)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 10_000),
    st.lists(SLOS, min_size=1, max_size=2, unique_by=lambda slo: slo.metric),
    st.integers(0, 1),
    st.sampled_from(["capacity_rps", "request_rps"]),
)
def test_what_stopped_a_level_is_what_is_ruled(seed: int, slos: list[Slo], before: int, metric: str) -> None:
    """With an earlier level of the same launch or without."""
    asked = asking(*slos, metric=metric)
    earlier = [ended(*level(seed + 1 + i)) for i in range(before)]
    whole, plan = level(seed)
    stopper = Deciding(objective=asked).stopper(plan, earlier)
    found = ended(replay(whole, plan, stopper), plan, stopper)
    levels = [(one, measured(one, asked, 1, None)) for one in (*earlier, found)]
    verdict = judge(asked, levels)
    if settled_by(found.stopped):
        assert found.stopped is not None
        assert verdict.ruling is (Ruling.PASS if "every SLO holds" in found.stopped else Ruling.FAIL)
        assert found.window_s[1] < whole.window_s[1]
        assert not [r for r in found.requests if r.error == "cut" and r.start_s < found.window_s[1]]
    figure = pooled(metric, [measurement for _, measurement in levels])
    if verdict.ruling is Ruling.PASS and settled_by(found.stopped) and metric == "request_rps":
        assert figure is not None
        assert figure.high is not None
        assert figure.high / figure.value <= 1.021


def test_hopeless_and_easy_limits_are_settled_early_and_close_ones_never() -> None:
    """The mean E2E is about 2.1 s."""

    def lasted(limit: float) -> tuple[float, str | None]:
        whole, plan = level(3, duration_s=60.0)
        asked = asking(replace(E2E, limit=limit))
        stopper = Deciding(objective=asked).stopper(plan)
        found = ended(replay(whole, plan, stopper), plan, stopper)
        return found.window_s[1], found.stopped

    hopeless, close, easy = lasted(1500), lasted(2115), lasted(2800)
    assert hopeless[0] < 30
    assert "e2e_ms.mean fails" in (hopeless[1] or "")
    assert easy[1] == "settled: every SLO holds"
    assert easy[0] < 30
    assert close == (62.0, None)


def test_a_pass_waits_for_the_objective_to_be_known() -> None:
    """Poisson arrivals at 20 a second: their rate is known to 2 % after minutes only."""
    whole, plan = level(3)
    for metric, stops in (("capacity_rps", True), ("request_rps", False)):
        asked = asking(Slo(metric="error_ratio", limit=0.3), metric=metric)
        assert settled_by(replay(whole, plan, Deciding(objective=asked).stopper(plan)).stopped) is stops


def test_a_fail_is_judged_with_the_levels_before() -> None:
    """Three good levels before it: one bad beginning is not enough any more."""
    asked = asking(E2E)
    whole, plan = level(3)
    good = replace(whole, requests=tuple(replace(r, done_s=r.start_s + 0.3) for r in whole.requests))
    alone, fourth = (Deciding(objective=asked).stopper(plan, before) for before in ([], [good] * 3))
    assert "fails" in (replay(whole, plan, alone).stopped or "")
    assert "fails" not in (replay(whole, plan, fourth).stopped or "")


def test_conversations_are_never_settled_early() -> None:
    """Their later turns have low numbers and late times: what is resolved has no end in time."""
    asked = asking(E2E)
    turns = SessionSpec(turns=FixedLength(tokens=3))
    whole, plan = level(3)
    talk = replace(asked, workload=replace(asked.workload, sessions=turns))
    assert replay(whole, plan, Deciding(objective=talk).stopper(plan)).stopped is None
    assert replay(whole, plan, Deciding(objective=asked).stopper(plan)).stopped is not None


@pytest.mark.integration
def test_a_real_level_ends_when_its_slo_is_missed_for_sure(tmp_path: Path) -> None:
    spec = study_spec(
        engine=EngineSpec(kind=EngineKind.VLLM, command=(sys.executable, "-m", "autotune.engines.simulated")),
        objective=objective(
            slos=(Slo(metric="ttft_ms.p90", limit=1e-3),),
            workload=WorkloadSpec(input_tokens=FixedLength(tokens=64), output_tokens=FixedLength(tokens=8)),
            load=LoadSpec(concurrency=8, duration_s=120, warmup_s=0.2, repeats=3),
        ),
    )
    setting = TrialSetting(spec=spec, engine=VllmEngine(spec), run=RunDirectory(tmp_path / "run"), gpus=())
    candidate = Candidate(params={}, args={"max_model_len": 512}, role=Role.SEARCH, fingerprint="f")
    record = run_trial(setting, candidate, 1, lambda _: None)
    assert record.failure is None, record.failure
    assert record.outcome in (Outcome.SLO_MISS, Outcome.CLIENT_LIMITED)  # the latter on a machine that is busy
    (measurement,) = record.measurements
    assert measurement.stopped is not None
    assert measurement.stopped.startswith("settled: ttft_ms.p90 fails: ")
    assert measurement.duration_s < 60
    assert record.verdict is not None
    assert record.verdict.ruling is Ruling.FAIL
