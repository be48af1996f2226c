"""Telemetry is complete where a server tells, and never in the way where it doesn't."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.engines.net import MAX_PAGE_BYTES, get
from autotune.engines.telemetry import MAX_SAMPLES, OnGpus, Watch, watching
from autotune.engines.vllm.logs import MAX_METRICS, metric_sums
from tests.engines.children import wait_until
from tests.fakes import ScriptedServer
from tests.nvml_stub.stub import GIB, Driver, install

RUNNING, TOKENS = "vllm:num_requests_running", "vllm:generation_tokens_total"


class Page(ScriptedServer):
    """A server whose page is what a function of the number of askings says."""

    def __init__(self, page: Callable[[int], Mapping[str, float]]) -> None:
        super().__init__(1.0)
        self.page = page
        self.asked = 0

    def metrics(self) -> Mapping[str, float]:
        self.asked += 1
        return self.page(self.asked)


class OnOneGpu(Page):
    """The same, on GPU 0, with processes of its own; `knows`: whether it can tell which those are."""

    gpus: tuple[str, ...] = ("0",)
    others_bytes: Mapping[str, int] = {}

    def __init__(self, *, mine: Collection[int] = (), knows: bool = True) -> None:
        super().__init__(lambda asked: {TOKENS: float(asked)})
        self.mine, self.knows = mine, knows

    def owns(self, pid: int) -> bool | None:
        return pid in self.mine if self.knows else None


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    return install(monkeypatch, tmp_path)


def until(server: Page, asked: int) -> None:
    wait_until(lambda: server.asked >= asked, f"{asked} askings")


def values(watch: Watch, name: str) -> list[float]:
    return [sample.values[name] for sample in watch.telemetry().server]


# --- the engine's page ------------------------------------------------------------------------------------------------


def test_the_page_is_read_before_during_and_after() -> None:
    server = Page(lambda asked: {TOKENS: float(asked)})
    with watching(server, every_s=0.01) as watch:
        assert values(watch, TOKENS) == [1.0]  # before anything of the level happens
        until(server, 4)
        during = server.asked
    assert values(watch, TOKENS)[-1] > during
    times = [sample.at_s for sample in watch.telemetry().server]
    assert times == sorted(times)


def test_samples_stand_on_the_clock_of_the_level() -> None:
    """The client's report that came with the least delay tells best when the level began."""
    server = Page(lambda asked: {TOKENS: float(asked)})
    with watching(server, every_s=60) as watch:
        plain = watch.telemetry().server[0].at_s
        watch.mark(5.0)
        watch.mark(4.0)
    samples = watch.telemetry().server
    assert samples[0].at_s == pytest.approx(plain + 5.0, abs=0.5)
    assert samples[-1].at_s == pytest.approx(5.0, abs=0.5)


def test_the_last_sample_waits_for_the_counters_of_the_last_requests() -> None:
    server = Page(lambda asked: {TOKENS: 10.0 * min(asked, 5), RUNNING: 1.0 if 1 < asked < 5 else 0.0})
    with watching(server, every_s=60) as watch:
        pass
    assert values(watch, TOKENS) == [10.0, 50.0]


def test_a_server_that_is_never_idle_is_not_waited_for_long() -> None:
    server = Page(lambda asked: {TOKENS: float(asked), RUNNING: 1.0})
    with watching(server, every_s=60, patience_s=1.0) as watch:
        pass
    assert len(watch.telemetry().server) == 2


def test_what_every_python_server_tells_is_left_out() -> None:
    server = Page(lambda _: {TOKENS: 1.0, "python_gc_objects_collected_total": 5.0, "process_open_fds": 3.0})
    with watching(server, every_s=60) as watch:
        pass
    assert watch.telemetry().server[0].values == {TOKENS: 1.0}


def test_a_page_that_can_not_be_read_is_noted_and_no_sample() -> None:
    with watching(Page(lambda _: {}), every_s=0.01) as watch:
        pass
    assert watch.telemetry().server == ()
    assert watch.telemetry().notes == ("telemetry: the engine's metrics page could not be read",)


def test_a_page_that_hangs_holds_up_nobody() -> None:
    never = threading.Event()

    def hang(_asked: int) -> Mapping[str, float]:
        never.wait()
        return {}

    server = Page(hang)
    with watching(server, patience_s=0.05) as watch:
        pass
    assert len(watch.telemetry().notes) == 2
    never.set()


def test_a_fault_in_watching_ends_no_level() -> None:
    def broken(_asked: int) -> Mapping[str, float]:
        raise ZeroDivisionError("page")

    with watching(Page(broken), every_s=0.01) as watch:
        pass
    assert watch.telemetry().notes == ("telemetry: ZeroDivisionError: page",)


def test_hours_of_load_take_no_more_samples_than_minutes() -> None:
    server = Page(lambda asked: {TOKENS: float(asked)})
    with watching(server, every_s=0.0) as watch:
        until(server, 3 * MAX_SAMPLES)
    samples = values(watch, TOKENS)
    assert len(samples) <= MAX_SAMPLES + 1
    assert (samples[0], samples[-1]) == (1.0, float(server.asked))


# --- hostile pages ----------------------------------------------------------------------------------------------------


def test_garbage_on_a_page_is_left_out() -> None:
    page = 'a 1\nb NaN\nc +Inf\n{} 3\nd\n= 4\na{x="} 5"} 6 1700000000\né 7\n' + "x" * 100_000
    assert metric_sums(page) == {"a": 7.0}


def test_a_page_of_invented_names_fills_no_memory() -> None:
    page = "".join(f"name_{index} 1\n" for index in range(10 * MAX_METRICS))
    assert len(metric_sums(page)) == MAX_METRICS


def test_buckets_of_the_first_token_are_kept_and_summed_over_engines() -> None:
    name = "vllm:time_to_first_token_seconds_bucket"
    page = f'{name}{{engine="0",le="0.5"}} 2.0\n{name}{{engine="1",le="0.5"}} 3.0\nvllm:x_bucket{{le="1"}} 4.0\n'
    assert metric_sums(page) == {f'{name}{{le="0.5"}}': 5.0}


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on a port that answers one request so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                try:
                    answer(connection)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(20)
        assert not thread.is_alive()


def head(length: int) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()


def drip(connection: socket.socket) -> None:
    connection.sendall(head(10**9))
    pause = threading.Event()
    while not pause.wait(0.02):
        connection.sendall(b"a 1\n")


def flood(connection: socket.socket) -> None:
    connection.sendall(head(10**10))
    while True:
        connection.sendall(b"a 1\n" * 100_000)


def half(connection: socket.socket) -> None:
    connection.sendall(head(1000) + b"a 1\n")


def no_http(connection: socket.socket) -> None:
    connection.sendall(b"\x00\xff" * 1000)


@pytest.mark.integration
@pytest.mark.parametrize("answer", [drip, flood, half, no_http], ids=lambda answer: answer.__name__)
def test_a_page_that_does_not_come_whole_in_time_is_none(answer: Callable[[socket.socket], None]) -> None:
    with answering(answer) as port:
        assert get(port, "/metrics", timeout_s=0.5) is None


@pytest.mark.integration
def test_a_page_of_a_real_size_comes_whole() -> None:
    text = "a 1\n" * (MAX_PAGE_BYTES // 8)
    with answering(lambda connection: connection.sendall(head(len(text)) + text.encode())) as port:
        assert get(port, "/metrics") == (200, text)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def gpu_values(watch: Watch, name: str) -> Sequence[object]:
    return [getattr(sample, name) for sample in watch.telemetry().gpus]


def test_gpus_are_sampled_beside_the_page(driver: Driver) -> None:
    server = OnOneGpu()
    assert isinstance(server, OnGpus)
    with watching(server, every_s=60) as watch:
        driver.set(sm_clock_mhz=900, throttle=0x40, energy_mj=4_000_000)
    assert gpu_values(watch, "sm_clock_mhz") == [1980.0, 900.0]
    assert gpu_values(watch, "throttled") == [(), ("hw_thermal",)]
    assert gpu_values(watch, "energy_j") == [1000.0, 4000.0]


def test_a_server_that_is_on_no_gpu_has_none_sampled(driver: Driver) -> None:
    with watching(Page(lambda _: {TOKENS: 1.0}), every_s=60) as watch:
        pass
    assert watch.telemetry().gpus == ()


@pytest.mark.parametrize(("knows", "others"), [(True, [GIB, 3 * GIB]), (False, [0, 2 * GIB])])
def test_others_are_told_from_the_engines_own_processes(driver: Driver, knows: bool, others: list[int]) -> None:
    """Where nobody can tell whose a process is, those that were there when the engine was ready count as its own."""
    server = OnOneGpu(mine={10, 12}, knows=knows)
    driver.set(processes=f"10:{8 * GIB},11:{GIB}")
    with watching(server, every_s=60) as watch:
        driver.set(processes=f"10:{8 * GIB},11:{GIB}" + (f",12:{GIB}" if knows else "") + f",13:{2 * GIB}")
    assert gpu_values(watch, "others_bytes") == others


def test_a_driver_that_hangs_holds_up_nobody(driver: Driver) -> None:
    driver.hang(2)
    with watching(OnOneGpu(), patience_s=0.05) as watch:
        pass
    assert len(watch.telemetry().notes) == 2
    driver.hang(0)
