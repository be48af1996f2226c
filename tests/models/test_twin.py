"""The capacity twin: fitted to levels of an engine that is known, since it is the same model at another pace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.models.observed import ObservedLevel, timeline_of
from autotune.models.simulation import Trace
from autotune.models.stationary import Stationary, pooled, root
from autotune.models.twin import Fitter, Twin, modelled
from autotune.records.spec import Bound, Slo
from tests.models.setups import chat, config

SLOS = (Slo(metric="ttft_ms.p99", limit=300.0), Slo(metric="tpot_ms.p99", limit=30.0))
BLOCKS = 20_000


def twin(pace: float = 1.0, compute: float = 1.0, blocks: int = BLOCKS) -> Twin:
    return Twin(config=config(max_num_seqs=128), blocks=blocks, pace=pace, compute=compute)


def level(engine: Twin, rate: float, seed: int = 1, end_s: float = 1e18, count: int = 600) -> ObservedLevel:
    """What `engine` shows at a rate; cut at `end_s`."""
    trace = chat(count, rate, seed)
    result = engine.run(trace, end_s=end_s)
    counted = trace.arrival_s < min(end_s, 1e18)
    return ObservedLevel(
        rate=rate,
        concurrency=None,
        trace=trace,
        counted=counted,
        window_s=(0.0, end_s),
        end_s=end_s,
        seen=timeline_of(result).latencies(counted, end_s),
        failed_ratio=0.0,
    )


def fitted(*levels: ObservedLevel) -> Fitter:
    fitter = Fitter(twin=twin(), slos=SLOS)
    for each in levels:
        fitter.add(each)
    return fitter


@pytest.mark.parametrize("pace", [0.2, 0.8, 1.0, 1.3, 6.0])
def test_the_pace_of_an_engine_is_found_whatever_it_is(pace: float) -> None:
    found = fitted(level(twin(pace), 30.0 / pace)).fit()
    assert found.twin.pace == pytest.approx(pace, rel=0.015)
    assert found.residual < 0.05


def test_a_level_cut_in_the_middle_of_a_growing_queue_tells_the_pace_as_well() -> None:
    cut = level(twin(1.3), 80.0, end_s=6.0)
    assert np.isfinite(cut.seen.ttft_ms).all()
    assert fitted(cut).fit().twin.pace == pytest.approx(1.3, rel=0.03)


def test_an_engine_that_never_answers_is_not_mistaken_for_one_that_fits() -> None:
    """The slowest pace leaves nothing to compare: that must cost the most, not nothing."""
    fitter = fitted(level(twin(), 30.0, end_s=4.0))
    costs = [fitter._cost(z, 1.0, (1, 2, 3), [0]) for z in (0.0, 1.0, 3.2)]
    assert costs == sorted(costs)


def test_dearer_tokens_need_the_second_factor() -> None:
    fitter = fitted(level(twin(1.0, 2.7), 15.0), level(twin(1.0, 2.7), 25.0, seed=2))
    one, both = fitter.fit(), fitter.fit_both()
    assert both.twin.compute == pytest.approx(2.7, rel=0.05)
    assert both.cost < one.cost / 3


def test_with_all_times_and_limits_longer_the_capacity_is_lower_by_as_much() -> None:
    population, pace = chat(300), float(np.exp(0.4))  # a knot: nothing is interpolated
    here = Stationary(twin=twin(), population=population, slos=SLOS, requests=3000).capacity(1.0)
    scaled = tuple(replace(slo, limit=slo.limit * pace) for slo in SLOS)
    there = Stationary(twin=twin(), population=population, slos=scaled, requests=3000).capacity(pace)
    assert there == pytest.approx(here / pace, rel=0.01)


def test_at_the_capacity_the_limits_are_just_used_up() -> None:
    long = Stationary(twin=twin(), population=chat(300), slos=SLOS, requests=4000)
    at = long.capacity(1.0)
    assert long.strain(twin(), at * 0.93) < 1 < long.strain(twin(), at * 1.07)


def test_clients_of_a_closed_loop_have_a_capacity_too() -> None:
    slos = (Slo(metric="tpot_ms.p90", limit=12.0),)
    closed = Stationary(twin=twin(), population=chat(300), slos=slos, closed=True, guess=8.0, requests=2000)
    at = closed.capacity(1.0)
    assert closed.strain(twin(), np.floor(at) - 1) <= 1 <= closed.strain(twin(), np.ceil(at) + 1)


def test_a_cache_that_holds_less_lowers_the_capacity() -> None:
    slos = (Slo(metric="ttft_ms.p99", limit=300.0),)
    ample, short = (
        Stationary(twin=twin(blocks=blocks), population=chat(300), slos=slos, requests=3000).capacity(1.0)
        for blocks in (BLOCKS, 300)
    )
    assert short < 0.8 * ample


@given(capacity=st.floats(0.01, 2000), exponent=st.floats(0.5, 40), guess=st.floats(0.001, 1e5))
def test_the_root_is_where_a_rising_strain_is_one(capacity: float, exponent: float, guess: float) -> None:
    found = root(lambda load: (load / capacity) ** exponent, guess)
    assert found == pytest.approx(capacity, rel=0.02)


def test_the_root_of_what_never_holds_is_0_and_of_what_always_does_the_most() -> None:
    assert root(lambda _: 2.0, 1.0) == 0.0
    assert root(lambda _: 0.5, 1.0, most=100.0) == 100.0


@pytest.mark.parametrize(
    ("slo", "known"),
    [
        (Slo(metric="ttft_ms.p99", limit=1.0), True),
        (Slo(metric="e2e_ms.mean", limit=1.0), True),
        (Slo(metric="itl_ms.p99", limit=1.0), False),
        (Slo(metric="error_ratio", limit=0.1), False),
        (Slo(metric="ttft_ms.p99", limit=1.0, bound=Bound.MIN), False),
    ],
)
def test_only_upper_bounds_on_latencies_of_requests_are_modelled(slo: Slo, known: bool) -> None:
    assert modelled(slo) is known


def test_a_population_of_several_levels_has_all_their_requests() -> None:
    both: Trace = pooled([chat(10), chat(20)])
    assert len(both.prompt_tokens) == len(both.prefix_tokens) == 30
