"""The simulator as a prior: what it predicts, how launches correct it, and when it says that it knows nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest

from autotune.records.spec import (
    CapacitySpec,
    Direction,
    EngineKind,
    EngineSpec,
    LoadSpec,
    SamplerSpec,
    Slo,
    StudySpec,
    WorkloadSpec,
)
from autotune.records.trial import Measurement, TrialRecord
from autotune.search.auto.calibration import SIGNALS
from autotune.search.auto.constants import DEVIATIONS, NAMES
from autotune.search.auto.prior import Prediction
from autotune.search.auto.sampler import GAIN
from autotune.search.auto.settled import LEAST_LAUNCHES
from autotune.search.auto.simulated import SimulatorPrior, simulator_prior
from autotune.search.samplers import make_auto
from autotune.space import build_space
from tests.builders import estimate, objective, study_spec, trial

ARGS = {"max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 2048}


def _study(**changes: Any) -> StudySpec:
    load = LoadSpec(concurrency=32, duration_s=10, warmup_s=1)
    return study_spec(objective=objective(load=load, **changes))


def _prior(spec: StudySpec) -> SimulatorPrior:
    found = simulator_prior(spec)
    assert isinstance(found, SimulatorPrior), found
    return found


def _told(prior: SimulatorPrior, args: dict[str, Any]) -> Prediction:
    found = prior.predict(args)
    assert found is not None
    return found


def _launched(prior: SimulatorPrior, number: int, args: dict[str, Any], logs: np.ndarray) -> TrialRecord:
    """What a machine whose constants differ by `logs` would have measured."""
    config = prior.read(args, prior.shape, prior.gpu)
    figures = prior._again(trial(number, args=args), _level({}), logs)
    assert figures is not None
    assert config is not None
    values = {name: estimate(figures.value(name) or 0.0) for name in SIGNALS}
    return replace(trial(number, value=1.0, args=args), measurements=(_level(values),))


def _level(values: dict[str, Any]) -> Measurement:
    return Measurement(offered_rps=None, concurrency=32, duration_s=10.0, requests=100, errors=0, values=values)


def test_more_room_for_requests_gives_more_tokens_and_longer_steps() -> None:
    prior = _prior(_study())
    few, many = (_told(prior, ARGS | {"max_num_seqs": seqs}) for seqs in (4, 64))
    assert few.objective is not None
    assert many.objective is not None
    assert many.objective > 2 * few.objective
    assert few.excess["ttft_ms.p90"] > many.excess["ttft_ms.p90"]


def test_constants_that_are_off_are_found_again_and_predictions_with_them() -> None:
    prior = _prior(_study())
    logs = np.where(np.isin(NAMES, ["compute", "bandwidth", "host"]), 0.4, 0.0)
    configs = [ARGS | {"max_num_seqs": seqs} for seqs in (4, 64)]
    before = _told(prior, ARGS | {"max_num_seqs": 24}).objective or 0.0
    for number, args in enumerate(configs):
        prior.learn(_launched(prior, number, args, logs))
    assert prior.version == 2
    truth = _prior(_study())._again(trial(9, args=ARGS | {"max_num_seqs": 24}), _level({}), logs)
    assert truth is not None
    after = _told(prior, ARGS | {"max_num_seqs": 24}).objective or 0.0
    off_before, off_after = (abs(np.log(each / truth.output_tok_per_s)) for each in (before, after))
    assert off_after < off_before / 3
    assert (np.abs(prior.logs) < 3 * DEVIATIONS).all()


def test_a_level_that_makes_no_sense_bends_the_constants_little() -> None:
    prior, wild = _prior(_study()), _prior(_study())
    zeros = np.zeros(len(NAMES))
    for number, seqs in enumerate((4, 64)):
        for each in (prior, wild):
            each.learn(_launched(each, number, ARGS | {"max_num_seqs": seqs}, zeros))
    odd = {"tpot_ms.p50": estimate(4000.0), "output_tok_per_s": estimate(1.0), "ttft_ms.p50": estimate(60_000.0)}
    for number in (2, 3, 4):
        prior.learn(_launched(prior, number, ARGS, zeros))
        wild.learn(replace(trial(number, value=1.0, args=ARGS), measurements=(_level(odd),)) if number == 2
                   else _launched(wild, number, ARGS, zeros))  # fmt: skip
    assert np.abs(prior.logs).max() < 0.05
    one, other = (_told(each, ARGS).objective or 0.0 for each in (prior, wild))
    assert abs(np.log(one / other)) < 0.5


def test_a_cache_that_is_smaller_than_thought_moves_the_margin() -> None:
    prior = _prior(_study())
    before = _told(prior, ARGS).margins
    record = replace(_launched(prior, 0, ARGS, np.zeros(len(NAMES))), resolved={"kv_cache_tokens": 300_000})
    prior.learn(record)
    after = _told(prior, ARGS).margins
    assert before is not None
    assert after is not None
    assert after[0] < before[0]


def test_a_capacity_is_where_the_limits_stop_to_hold() -> None:
    load = LoadSpec(capacity=CapacitySpec(of="rps", low=0.5, high=400.0))
    asked = objective(metric="capacity_rps", load=load, slos=(Slo(metric="ttft_ms.p90", limit=300.0),))
    strict = replace(asked, slos=(Slo(metric="ttft_ms.p90", limit=60.0),))
    loose_rps, strict_rps = (_told(_prior(study_spec(objective=o)), ARGS).objective or 0.0 for o in (asked, strict))
    assert 0.5 < strict_rps < loose_rps <= 400


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"engine": EngineSpec(kind=EngineKind.ENDPOINT)}, "endpoint is not simulated"),
        ({"model": "nobody/knows-this"}, "does not know the shape of nobody/knows-this"),
        ({"objective": objective(metric="gpu_memory_bytes", direction=Direction.MINIMIZE)}, "is not simulated"),
        ({"objective": objective(workload=WorkloadSpec(dataset="/nowhere.jsonl"))}, "before a server counts them"),
    ],
)
def test_where_nothing_can_be_simulated_the_search_says_so_and_goes_on(changes: dict[str, Any], why: str) -> None:
    spec = study_spec(**changes)
    sampler = make_auto(spec, build_space(spec, gpus=1))
    assert any(why in note for note in sampler.notes), sampler.notes


@pytest.mark.parametrize(("asked", "stops"), [(None, True), (True, True), (False, False)])
def test_a_study_may_forbid_that_it_ends_early(asked: bool | None, stops: bool) -> None:
    spec = study_spec(sampler=SamplerSpec(kind="auto", stop_when_settled=asked))
    made = make_auto(spec, build_space(spec, gpus=1))
    of = optuna.create_study(sampler=made.sampler)
    for number in range(LEAST_LAUNCHES):
        settled = optuna.trial.create_trial(value=1.0, system_attrs={GAIN: 0.0}, user_attrs={"number": number})
        of.add_trial(settled)
    assert (made.why_settled(of) is not None) is stops
