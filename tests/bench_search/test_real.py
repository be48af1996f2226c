"""The real landscape replays a table: what was measured is told, and its mean is the truth."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from autotune.records.trial import Outcome
from benchmarks.search.measure_vllm_cpu import GRID, configurations
from benchmarks.search.protocol import run
from benchmarks.search.real import KNOBS, METRICS, evaluator_of, optimum, real_landscape
from benchmarks.search.strategies import STRATEGIES


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More sequences give more tokens a second, and longer steps; the smallest budget of tokens broke."""
    path = tmp_path_factory.mktemp("real") / "vllm_cpu.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*GRID, "repeat", *METRICS, "startup_s", "load_average"])
        for each in configurations():
            seqs, cached = each["max_num_seqs"], each["enable_prefix_caching"]
            rate = 100.0 * seqs**0.5 * (1.2 if cached else 1.0)
            broke = each["max_num_batched_tokens"] == 64
            for repeat, factor in enumerate((0.99, 1.01)):
                figures = [""] * 5 if broke else [rate * factor, 50, 1000 / seqs, 5, 5 + seqs]
                writer.writerow([*each.values(), repeat, *figures, "" if broke else 5.0, 1.0])
    return path


def test_the_script_measures_at_least_sixty_configurations_of_the_landscapes_own_space(table: Path) -> None:
    space = real_landscape(table).space
    assert len(configurations()) >= 60
    for each in configurations():
        assert space.broken_rule({**space.known, **each}) is None
    assert {p.name for p in space.dimensions} == set(GRID) == set(KNOBS)
    assert all(each in GRID[name] for name, each in KNOBS.items())


def test_a_launch_gives_one_of_the_repeats_and_the_truth_their_mean(table: Path) -> None:
    hill, evaluator = real_landscape(table), evaluator_of(table)
    args = {"max_num_seqs": 16, "max_num_batched_tokens": 192, "enable_prefix_caching": False}
    seen = {round(evaluator.measure(hill, args, seed).value or 0.0, 6) for seed in range(12)}
    assert seen == {396.0, 404.0}
    assert evaluator.truth(hill, args).value == pytest.approx(400.0)
    assert evaluator.measure(hill, {**args, "max_num_batched_tokens": 64}, 1).outcome is Outcome.LAUNCH_FAILED


def test_the_limits_bind_so_the_optimum_is_not_simply_the_largest_batch(table: Path) -> None:
    hill = real_landscape(table)
    limits = {slo.metric: slo.limit for slo in hill.spec.objective.slos}
    assert limits["tpot_ms.p90"] < 5 + 32
    assert optimum(table) == pytest.approx(100 * 16**0.5 * 1.2)


@pytest.mark.parametrize("name", ["random", "TPE, constrained", "TBA-TPE", "TPE of 7"])
def test_strategies_stay_inside_the_grid(name: str, table: Path) -> None:
    hill, evaluator = real_landscape(table), evaluator_of(table)
    found = run(name, STRATEGIES[name], hill, seed=2, launches=15, optimum=optimum(table), evaluator=evaluator)
    assert max(step.quality or 0.0 for step in found.steps) <= 1.0 + 1e-9
    assert len(found.steps) == 15
