"""The model with a CPU in the place of its GPU: what `python -m benchmarks.simulator.vllm_cpu` fits and ranks by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from autotune.models.shapes import shape_of
from autotune.records.trial import Estimate, Measurement, Outcome, Role, TrialRecord
from benchmarks.simulator.vllm_cpu import Fit, correlations, predictions, ruled_pair, spearman, unfitted
from benchmarks.simulator.vllm_cpu_fit import CONSTANTS, MODEL, Floats, Load, fit, load_of, predict
from benchmarks.simulator.vllm_cpu_grid import (
    AGAIN,
    KNOBS,
    LAUNCHES,
    LAUNCHES_AGAIN,
    METRICS,
    TABLE,
    Bystanders,
    Measured,
    read,
    study,
    write,
)

TRUTH = np.array([60e9, 15e9, 8e-3, 0.6e-3, 1e-3, 0.1e-3])


@pytest.fixture(scope="module")
def load() -> Load:
    return load_of(study())


def launch(**knobs: int) -> Measured:
    return Measured(trial=0, knobs={**KNOBS, **knobs}, values={}, startup_s=25.0, other_cores=0.0)


def told(constants: Floats, one: Measured, load: Load) -> Measured:
    """The launch as a machine with these constants would have measured it."""
    return replace(one, values=dict(zip(METRICS, predict(constants, one, load).tolist(), strict=True)))


def test_a_lone_decode_takes_its_weights_its_head_and_the_host(load: Load) -> None:
    shape = shape_of(MODEL)
    assert shape is not None
    constants = np.array([1e15, 10e9, 5e-3, 1e-3, 0.0, 0.0])

    rate, _, _, tpot_ms, _ = predict(constants, launch(max_num_seqs=1), load)

    step_s = shape.parameters * 2 / 10e9 + 5e-3 + 1e-3
    assert tpot_ms == pytest.approx(1e3 * step_s, rel=0.02)
    assert rate == pytest.approx(1 / step_s, rel=0.02)


def test_each_request_and_each_token_cost_the_api_server_its_time(load: Load) -> None:
    rate = predict(np.array([1e15, 1e15, 0.0, 1e-6, 0.05, 0.01]), launch(), load)[0]

    tokens = 24.0  # of a mean answer, uniform in 16..32
    assert rate == pytest.approx(tokens / (0.05 + 0.01 * tokens), rel=0.05)


def test_two_launches_are_enough_to_predict_others(load: Load) -> None:
    fitted = fit(
        [told(TRUTH, launch(), load), told(TRUTH, launch(max_num_seqs=1, enable_prefix_caching=0), load)], load
    )

    guess = np.array(list(CONSTANTS.values()))
    assert predict(guess, launch(), load)[0] > 1.15 * predict(TRUTH, launch(), load)[0]
    for other in (
        launch(max_num_seqs=4, block_size=32),
        launch(max_num_seqs=64, max_num_batched_tokens=100),
        launch(max_num_seqs=9),
    ):
        assert predict(fitted, other, load)[0] == pytest.approx(predict(TRUTH, other, load)[0], rel=0.1)


def test_a_launch_that_says_nothing_of_a_constant_leaves_it_at_its_guess(load: Load) -> None:
    """One sequence at a time: the API server is idle nearly always, whatever a token costs it."""
    fitted = fit([told(TRUTH, launch(max_num_seqs=1), load)], load)

    api_token_s = fitted[list(CONSTANTS).index("api_token_s")]
    assert api_token_s == pytest.approx(CONSTANTS["api_token_s"], rel=0.2)


def test_ranks_leave_out_the_launches_fitted_to(load: Load) -> None:
    launches = [told(TRUTH, launch(max_num_seqs=seqs), load) for seqs in (128, 1, 2, 4, 8)]
    right = unfitted(launches, load)
    wrong = np.array(right.predicted)
    wrong[:2] = wrong[1::-1]
    swapped = replace(right, pair=(0, 1), predicted=wrong)

    assert correlations(launches, [swapped], "output_tok_per_s") == pytest.approx([1.0])
    assert correlations(launches, [replace(swapped, pair=())], "output_tok_per_s")[0] < 0.5


def test_a_constant_ranks_nothing() -> None:
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))
    assert spearman(np.array([1.0, 3.0, 2.0]), np.array([10.0, 30.0, 20.0])) == pytest.approx(1.0)


def test_the_pair_is_chosen_by_rule() -> None:
    """The defaults, and of the launches with the fewest sequences the one with the fewest tokens."""
    rows = [launch(), launch(max_num_seqs=2), launch(max_num_seqs=1, max_num_batched_tokens=500)]

    assert ruled_pair([*rows, launch(max_num_seqs=1, max_num_batched_tokens=90)]) == (0, 3)


def record(number: int, outcome: Outcome = Outcome.OK, **args: int) -> TrialRecord:
    values = {name: Estimate(value=10.0 + i, low=None, high=None, n=9) for i, name in enumerate(METRICS)}
    measurement = Measurement(offered_rps=None, concurrency=16, duration_s=20.0, requests=9, errors=0, values=values)
    return TrialRecord(
        study="s", number=number, role=Role.SEARCH, simulated=False, params={}, args=args, fingerprint="", model="m",
        outcome=outcome, measurements=(measurement,) if outcome is Outcome.OK else (), startup_s=25.0, wall_s=60.0,
        started_utc="2026-01-01T00:00:00+00:00", seed=1, versions={"vllm": "0.32.0"},
    )  # fmt: skip


def test_the_table_keeps_what_ranking_needs(tmp_path: Path) -> None:
    began = 1767225600.0
    watch = Bystanders(psutil.Process(), intervals=[(began + 10, 0.5), (began + 50, 1.0), (began + 90, 2.0)])
    records = [record(0), record(1, Outcome.RULED_OUT), record(2, max_num_seqs=4, enable_prefix_caching=False)]

    write(tmp_path / "table.csv", records, watch)

    first, second = read(tmp_path / "table.csv")
    assert "vllm 0.32.0" in (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()[0]
    assert first.knobs == {**KNOBS}
    assert (second.trial, second.knobs["max_num_seqs"], second.knobs["enable_prefix_caching"]) == (2, 4, 0)
    assert second.values == {name: 10.0 + i for i, name in enumerate(METRICS)}
    assert second.other_cores == pytest.approx(0.75)


def test_the_shipped_tables_are_of_the_study() -> None:
    launches, again = read(TABLE), read(AGAIN)

    assert (len(launches), len(again)) == (LAUNCHES, LAUNCHES_AGAIN)
    assert dict(launches[0].knobs) == KNOBS
    assert [one.knobs for one in again] == [one.knobs for one in launches[:LAUNCHES_AGAIN]]


def test_two_real_launches_rank_the_others(load: Load) -> None:
    """What docs/simulator.md claims of the pair that is chosen beforehand."""
    launches = read(TABLE)
    pair = ruled_pair(launches)
    fitted = fit([launches[i] for i in pair], load)
    found = Fit(pair=pair, constants=fitted, predicted=predictions(fitted, launches, load))

    assert correlations(launches, [found], "output_tok_per_s")[0] > 0.8
