"""The landscapes of `benchmarks/search`: what is legal, what breaks, and that nobody is told where the best lies."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from autotune.models.config import from_vllm_args
from autotune.models.simulation import simulate, trace_of
from autotune.models.steptime import costs_of
from autotune.records.spec import SamplerSpec
from autotune.records.trial import Candidate, Outcome
from benchmarks.search.evaluation import launch_of, machine_of, measure, truth
from benchmarks.search.landscapes import NAMES, Landscape, landscape
from benchmarks.search.memo import Memo
from benchmarks.search.optima import optimum_of
from benchmarks.search.physics import Extras, true_costs, true_kernel
from benchmarks.search.product import Product
from benchmarks.search.protocol import Study, run
from benchmarks.search.strategies import STRATEGIES
from benchmarks.search.truth import world

HILL = "batch-32b-h100@structural"
FAST = ("random", "qmc", "auto_tune grid+pf", "TPE, crash=FAIL", "TPE, constrained+pf", "TBA-TPE+pf", "TPE of 7+pf")
RUNS = {"max_model_len": 9500, "quantization": "fp8", "max_num_seqs": 64, "max_num_batched_tokens": 4096}


@pytest.fixture(scope="module", autouse=True)
def _kernel(tmp_path_factory: pytest.TempPathFactory) -> None:
    true_kernel()


@pytest.mark.parametrize("name", NAMES)
def test_each_landscape_has_a_dozen_parameters_and_a_stored_optimum_far_above_its_defaults(name: str) -> None:
    hill = landscape(f"{name}@structural")
    assert 8 <= len(hill.space.dimensions) <= 12
    reference = list(hill.space.references(None))[-1]
    found = truth(hill, reference.args)
    default = found.value if found.outcome is Outcome.OK else 0.0
    assert default is not None
    assert optimum_of(hill) > 1.15 * default


def test_neutral_extras_give_the_simulators_own_times() -> None:
    config = from_vllm_args(RUNS, *machine_of(landscape(HILL).spec))
    trace = trace_of([800, 300, 1200] * 5, [40, 90, 10] * 5, [0.01 * i for i in range(15)])
    own = simulate(trace, config)
    ours = simulate(trace, config, physics=(true_kernel(), true_costs(costs_of(config), Extras())))
    assert ours.finish_s == pytest.approx(own.finish_s)
    slower = simulate(trace, config, physics=(true_kernel(), true_costs(costs_of(config), Extras(mixed_s=0.01))))
    assert slower.finish_s[-1] > own.finish_s[-1]


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({"kv_cache_dtype": "fp8", "block_size": 128}, Outcome.CRASHED_UNDER_LOAD),
        ({"gpu_memory_utilization": 0.97, "max_num_batched_tokens": 20_000}, Outcome.OOM_LOAD),
        ({"quantization": None, "gpu_memory_utilization": 0.8}, Outcome.OOM_STARTUP),
        ({"max_num_batched_tokens": 32}, Outcome.BAD_CONFIG),
    ],
)
def test_a_crash_region_crashes_whatever_the_seed(changed: dict[str, object], outcome: Outcome) -> None:
    found = [measure(landscape(HILL), {**RUNS, **changed}, seed) for seed in (1, 2)]
    assert [f.outcome for f in found] == [outcome] * 2
    assert [f.value for f in found] == [None] * 2


def test_launches_of_one_study_repeat_and_those_of_another_differ_by_a_few_per_cent() -> None:
    hill = landscape(HILL)
    one, again, other = (measure(hill, RUNS, seed) for seed in (1, 1, 2))
    assert one == again
    assert one.value is not None
    assert other.value is not None
    assert one.value != other.value
    assert other.value == pytest.approx(one.value, rel=0.35)


def test_the_speed_of_launches_scatters_by_three_per_cent() -> None:
    hill = landscape(HILL)
    config = from_vllm_args(RUNS, *machine_of(hill.spec))
    plan = world(hill).memory(config)
    launches = [launch_of(hill, world(hill), config, plan, seed) for seed in range(1, 201)]
    speeds = np.log([launch.costs.gemm_per_token for launch in launches])
    assert np.std(speeds) == pytest.approx(0.03, rel=0.2)
    assert launches[0].costs.host == launches[1].costs.host  # the host's work is not the GPU's


@pytest.mark.parametrize("name", FAST)
def test_a_strategy_launches_only_what_the_rules_allow_and_never_more_than_it_may(name: str) -> None:
    hill = landscape(HILL)
    found = run(name, STRATEGIES[name], hill, seed=3, launches=8, optimum=1.0)
    assert len(found.steps) == 8
    for step in found.steps[2:]:  # the reference may be outside of the space
        assert hill.space.broken_rule({**hill.space.known, **step.args}) is None
        assert "max_num_seqs" in step.args


def test_the_products_own_search_is_driven_as_a_study_drives_it() -> None:
    hill = landscape(HILL)
    found = run("random", Product(sampler=SamplerSpec(kind="random")), hill, seed=3, launches=9, optimum=1.0)
    assert len(found.steps) == 9
    assert len({str(step.args) for step in found.steps}) == 9  # it never launches the same twice
    assert all(hill.space.broken_rule({**hill.space.known, **step.args}) is None for step in found.steps[2:])


def test_strategies_meet_the_same_noise() -> None:
    hill = landscape(HILL)
    first = {n: run(n, STRATEGIES[n], hill, seed=5, launches=2, optimum=1.0).steps for n in ("random", "TPE of 7")}
    assert first["random"][1].value == first["TPE of 7"][1].value


def test_a_strategy_is_told_nothing_of_the_truth() -> None:
    """What a session is made of, and what it is told, is what a study has: neither optimum nor machine is in it."""
    hill = landscape(HILL)
    seen: list[object] = []

    class Spy:
        def __init__(self, study: Study) -> None:
            seen.append(study)

        def ask(self) -> Candidate | None:
            found = hill.space.sample(random.Random(len(seen)))
            return found if isinstance(found, Candidate) else None

        def tell(self, record: object) -> None:
            seen.append(record)

    quality = 0.123456
    found = run("spy", Spy, hill, seed=1, launches=4, optimum=truth_of(hill) / quality)
    assert any(step.quality == pytest.approx(quality) for step in found.steps)
    assert {field.name for field in dataclasses.fields(Study)} == {"spec", "space", "gpus", "launches"}
    told = repr(seen)
    assert "0.12345" not in told
    assert "structural" not in told


def truth_of(hill: Landscape) -> float:
    reference = list(hill.space.references(None))[-2]
    value = truth(hill, reference.args).value
    assert value is not None
    return value


def test_a_memo_that_is_opened_again_gives_the_same_run_and_evaluates_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("memo") / "memo.sqlite"
    hill = landscape(HILL)
    runs, fresh = [], []
    for _ in range(2):
        memo = Memo.at(path)
        found = run("random", STRATEGIES["random"], hill, seed=7, launches=6, optimum=1.0, evaluator=memo.evaluator())
        runs.append([(s.args, s.outcome, s.value, s.quality, s.engine_s) for s in found.steps])
        fresh.append(memo.fresh)
        memo.connection.close()
    assert runs[0] == runs[1]
    assert fresh[0] > 0
    assert fresh[1] == 0
