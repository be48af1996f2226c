"""One level shared by several client processes: together they do what one would."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import EnvironmentFault
from autotune.load import Progress, build_level, run_level
from autotune.load.dealing import Deal, slots
from autotune.load.runner import clients_for
from autotune.records.spec import FixedLength, LoadSpec, WorkloadSpec
from autotune.records.trial import LevelPlan
from tests.load.levels import clients, errors, index_of, level, request, sessions, steps
from tests.load.scripted import HEAD, Fault, Received, ScriptedServer, Step, answer, chunk, token

SHORT = WorkloadSpec(input_tokens=FixedLength(tokens=16), output_tokens=FixedLength(tokens=3))


@pytest.fixture(autouse=True)
def _no_client_left() -> Iterator[None]:
    yield
    assert not clients()


def poisson(rate_rps: float, duration_s: float) -> LevelPlan:
    return build_level(SHORT, LoadSpec(poisson_rps=rate_rps, duration_s=duration_s, warmup_s=0.0), seed=5)


@given(
    st.lists(st.integers(1, 4), max_size=30),
    st.integers(1, 5),
    st.none() | st.integers(5, 9),
    st.randoms(use_true_random=False),
)
def test_the_hands_together_are_the_plan(turns: list[int], hands: int, concurrency: int | None, order: object) -> None:
    """Whichever thread asks first, each session is whole in one hand, and each hand is in the plan's order."""
    plan = sessions(turns)
    deal = Deal(level(plan, concurrency=concurrency), hands)
    drawn = {which: list(deal.hand(which)) for which in order.sample(range(hands), hands)}  # type: ignore[attr-defined]
    assert sorted((d.request for hand in drawn.values() for d in hand), key=lambda r: r.index) == plan
    for hand in drawn.values():
        assert [d.request.index for d in hand] == sorted(d.request.index for d in hand)
        followers = {d.request.after for d in hand}
        assert [d.more for d in hand] == [d.request.index in followers for d in hand]


@given(st.integers(1, 5), st.integers(1, 40))
def test_an_open_loop_is_dealt_in_turn(hands: int, count: int) -> None:
    plan = [request(index, at_s=float(index)) for index in range(count)]
    deal = Deal(level(plan), hands)
    for which in range(hands):
        assert [d.request.index for d in deal.hand(which)] == list(range(which, count, hands))


@given(st.integers(1, 600), st.integers(1, 8))
def test_slots_are_shared_evenly(concurrency: int, hands: int) -> None:
    shares = [share or 0 for share in slots(concurrency, hands)]
    assert sum(shares) == concurrency
    assert max(shares) - min(shares) <= 1


def test_a_turn_away_from_the_one_before_it_is_a_mistake_of_the_plan() -> None:
    plan = [request(0), request(1), request(2, after=0)]
    with pytest.raises(ValueError, match="request 2 of the plan doesn't follow"):
        list(Deal(level(plan, concurrency=1), 1).hand(0))


def test_how_many_clients_a_load_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is trusted with 40,000 events a second: with answers of three tokens, 13,333 requests."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert [clients_for(poisson(rate, 0.05)) for rate in (13_000.0, 14_000.0, 200_000.0)] == [1, 2, 8]
    assert clients_for(level([request(0)], concurrency=512)) == 1
    assert clients_for(level([])) == 1


@pytest.mark.integration
def test_the_union_of_three_clients_is_the_plan_of_one_on_one_clock() -> None:
    plan = poisson(120.0, 1.0)
    begun: dict[int, float] = {}
    seen: set[int] = set()

    def script(received: Received) -> Iterator[Step]:
        begun[index_of(received)] = time.perf_counter()
        return answer(received, pause_s=0.02)

    with ScriptedServer(script) as server:
        record = run_level(
            server.endpoint, plan, clients=3, on_progress=lambda _: seen.update(one.pid for one in clients())
        )
    assert len(seen) == 3
    assert errors(record) == {None}
    assert [(one.index, one.scheduled_s) for one in record.requests] == [(one.index, one.at_s) for one in plan.requests]
    # The server's clock minus each client's: the least over its requests is the time 0 of its level, and a little more.
    zeros = [
        min(begun[one.index] - one.sent_s for one in record.requests if one.index % 3 == hand) for hand in range(3)
    ]
    assert max(zeros) - min(zeros) < 0.03


@pytest.mark.integration
def test_the_slots_of_two_clients_are_the_concurrency_of_one() -> None:
    with ScriptedServer(lambda received: answer(received, pause_s=0.02)) as server:
        record = run_level(server.endpoint, level([request(i) for i in range(40)], concurrency=5), clients=2)
        assert server.most_in_flight == 5
        assert server.connections == 5
    assert [one.index for one in record.requests] == list(range(40))
    assert errors(record) == {None}


@pytest.mark.integration
def test_sessions_stay_whole_and_an_idle_client_holds_nothing_up() -> None:
    """One session for three slots: two of the clients have nothing to do."""
    plan = sessions([4], think_s=0.05)
    seen: list[Progress] = []
    with ScriptedServer(answer) as server:
        record = run_level(server.endpoint, level(plan, concurrency=3), clients=7, on_progress=seen.append)
    assert errors(record) == {None}
    assert len(record.requests) == 4
    assert seen


@pytest.mark.integration
def test_a_stop_reaches_all_clients_within_100_ms_and_loses_nothing() -> None:
    def script(received: Received) -> Iterator[Step]:
        return iter([HEAD, chunk(token()), Fault.HANG]) if index_of(received) % 4 == 3 else answer(received)

    asked_at: list[float] = []

    def should_stop(progress: Progress) -> str | None:
        asked_at.append(progress.elapsed_s)
        return "enough" if progress.done > 20 else None

    with ScriptedServer(script) as server:
        record = run_level(server.endpoint, poisson(80.0, 60.0), clients=3, should_stop=should_stop)
        sent = {index_of(received) for received in server.received}
    assert record.stopped == "enough"
    assert sent <= {one.index for one in record.requests}
    cut = [one for one in record.requests if one.error == "cut"]
    assert cut
    assert all(len(one.chunk_s) == 1 for one in cut if one.index % 4 == 3 and one.sent_s < asked_at[-1] - 0.2)
    assert record.window_s[1] - asked_at[-1] < 0.1 + 0.1  # by the oldest of the clients' reports, 100 ms apart


@pytest.mark.integration
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_one_of_two_clients_killed_ends_the_level(kill: signal.Signals) -> None:
    def on_progress(_: Progress) -> None:
        if running := clients():
            running[0].send_signal(kill)

    plan = level([request(i) for i in range(100)], concurrency=4)
    with ScriptedServer(steps(Fault.HANG)) as server, pytest.raises(EnvironmentFault, match="load client"):
        run_level(server.endpoint, plan, clients=2, on_progress=on_progress)
