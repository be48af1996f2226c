"""What engine and GPUs tell of a level: figures, contradictions that make it untrusted, no alarm where all is well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.measure import measure
from autotune.records import counters
from autotune.records.trial import LevelRecord, Measurement, ServerSample, Telemetry
from tests.measure.making import level, request, steady
from tests.measure.telling import GIB, gpu, gpus, histogram, page, told

RUNNING, HITS, QUERIES = counters.RUNNING[0], counters.PREFIX_HITS[0], counters.PREFIX_QUERIES[0]
FINISHED, OUTPUT, PROMPT = counters.FINISHED[0], counters.OUTPUT_TOKENS[0], counters.PROMPT_TOKENS[0]


def measured(record: LevelRecord) -> Measurement:
    return measure(record, metrics=(), slos=(), gpus=1, confidence=0.95)


def doubt(record: LevelRecord) -> str:
    (reason,) = measured(record).untrusted
    return reason


def fresh(**fields: Any) -> Any:
    """Requests that share nothing."""
    return steady(shared_tokens=0, **fields)


# --- a healthy level --------------------------------------------------------------------------------------------------


def test_a_healthy_level_has_figures_and_no_doubt() -> None:
    result = measured(told(fresh(), samples=gpus(), end=histogram("QUEUE_S", 240, 2.4)))
    assert (result.untrusted, result.notes) == ((), ())
    found = result.counters
    assert found["server_requests"] == 240
    assert found["server_output_tokens"] == 720
    assert found["server_kv_use_max_ratio"] == 0.3
    assert found["server_running_mean"] == 2
    assert found["server_queue_mean_ms"] == pytest.approx(10)
    assert found["server_ttft_mean_ms"] == pytest.approx(98)
    assert found["gpu_memory_max_bytes"] == 70 * GIB
    assert found["gpu_temperature_max_c"] == 55
    assert found["gpu_energy_j"] == 500 * 71
    assert found["gpu_energy_per_output_token_j"] == pytest.approx(500 * 71 / 720)


def test_a_level_without_telemetry_has_neither() -> None:
    result = measured(level(fresh()))
    assert (result.untrusted, result.notes) == ((), ())
    assert not any(name.startswith(("server_", "gpu_")) for name in result.counters)


def test_what_telemetry_could_not_ask_is_a_note() -> None:
    assert measured(told(fresh(), notes=["telemetry: odd"])).notes == ("telemetry: odd",)


def test_a_page_that_lacks_everything_raises_no_doubt() -> None:
    samples = tuple(ServerSample(at_s=at, values={"other": 1.0}) for at in (-1.0, 80.0))
    result = measured(level(fresh(), telemetry=Telemetry(server=samples)))
    assert (result.untrusted, result.notes) == ((), ())


def test_counters_of_earlier_levels_do_not_matter() -> None:
    requests = fresh()
    idle = {RUNNING: 0.0, counters.WAITING[0]: 0.0}
    before = dict.fromkeys(page(requests), 1000.0) | idle
    after = {name: value + 1000.0 for name, value in page(requests).items()} | idle
    assert measured(told(requests, begin=before, end=after)).untrusted == ()


def test_answers_that_were_cut_or_failed_may_have_had_any_part_of_their_tokens() -> None:
    rest = [
        request(900 + i, 30.0 + i, error=error, output_tokens=None, shared_tokens=0)
        for i, error in enumerate(("cut", "boom"))
    ]
    for tokens in (720, 726):
        end = {OUTPUT: tokens, FINISHED: 242, PROMPT: 240 * 8 + 8}
        assert measured(told([*fresh(), *rest], end=end, stopped="x")).untrusted == ()


# --- the prefix cache -------------------------------------------------------------------------------------------------


def test_repeated_prompts_are_found_by_the_engines_hits() -> None:
    assert doubt(told(fresh(), end={HITS: 1500})).startswith("repeated prompts: 1500 of 1920 prompt tokens")


@pytest.mark.parametrize(("hits", "doubted"), [(19, False), (20, True)])
def test_a_hundredth_of_the_prompts_may_be_cached_by_chance(hits: int, doubted: bool) -> None:
    assert bool(measured(told(fresh(), end={HITS: hits})).untrusted) == doubted


def test_a_shared_prefix_may_be_cached_and_no_more_than_it() -> None:
    shared = steady(shared_tokens=4)
    assert measured(told(shared, end={HITS: 240 * 4})).untrusted == ()
    assert "repeated prompts: 240 of" in doubt(told(shared, end={HITS: 240 * 5}))


def test_a_shared_prefix_that_is_not_found_is_worth_a_word() -> None:
    (note,) = measured(told(steady(shared_tokens=4), end={HITS: 400})).notes
    assert "gave 400 of at most 960 tokens" in note


def test_prompts_of_a_data_set_may_share_what_they_will() -> None:
    assert measured(told(steady(shared_tokens=None), end={HITS: 1900})).untrusted == ()


def test_usage_tells_of_cached_tokens_where_the_page_does_not() -> None:
    cached = fresh(cached_tokens=6)
    assert "by the usage of its answers" in doubt(level(cached))
    assert measured(level(steady(shared_tokens=6, cached_tokens=6))).untrusted == ()


# --- contradictions ---------------------------------------------------------------------------------------------------


def test_requests_of_others_are_counted() -> None:
    assert (
        doubt(told(fresh(), end={FINISHED: 280})) == "others use the server: it ended 280 requests, this level sent 240"
    )


def test_one_request_more_is_let_pass() -> None:
    assert measured(told(fresh(), end={FINISHED: 241})).untrusted == ()


def test_requests_that_were_there_before_are_doubted() -> None:
    assert "3 requests were in the engine before" in doubt(told(fresh(), begin={RUNNING: 3.0}))


@pytest.mark.parametrize(("name", "what"), [(OUTPUT, "output"), (PROMPT, "prompt")])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_server_whose_usage_is_not_what_it_counts_is_not_believed(name: str, what: str, factor: float) -> None:
    requests = fresh()
    reason = doubt(told(requests, end={name: page(requests)[name] * factor}))
    assert reason.startswith("the server contradicts itself")
    assert f"{what} tokens by usage" in reason


def test_a_page_of_a_part_of_the_server_is_a_note_and_compared_with_nothing() -> None:
    half = {name: value / 2 for name, value in page(fresh()).items()}
    result = measured(told(fresh(), end=half))
    assert result.untrusted == ()
    assert "counts 120 of 240 answers" in result.notes[0]


def test_a_server_started_anew_in_between_is_doubted() -> None:
    begin = dict.fromkeys(page(fresh()), 10_000.0) | {RUNNING: 0.0}
    assert "started anew" in doubt(told(fresh(), begin=begin))


def test_a_server_can_not_have_been_slower_than_what_we_saw() -> None:
    assert "mean TTFT of 200 ms, more than the 100 ms" in doubt(told(fresh(), end=histogram("TTFT_S", 240, 48.0)))


def test_nor_may_its_histogram_lie_behind_ours() -> None:
    """The mean fits, but half of the requests are said to have taken longer than any of ours."""
    name = counters.TTFT_S[0]
    buckets = {
        counters.bucket(name, bound): count for bound, count in (("0.15", 120.0), ("0.5", 240.0), ("+Inf", 240.0))
    }
    begin = dict.fromkeys(buckets, 0.0)
    assert "within 150 ms it has 50% fewer" in doubt(told(fresh(), begin=begin, end=buckets))
    fitting = buckets | {counters.bucket(name, "0.15"): 240.0}
    assert measured(told(fresh(), begin=begin, end=fitting)).untrusted == ()


def test_time_that_passes_outside_the_server_is_a_note() -> None:
    (note,) = measured(told(fresh(), end=histogram("TTFT_S", 240, 12.0))).notes
    assert note == "of the mean TTFT of 100 ms only 50 ms passed in the server by its own account"


def test_preemptions_are_a_note() -> None:
    (note,) = measured(told(fresh(), end={counters.PREEMPTIONS[0]: 7.0})).notes
    assert note.startswith("7 preemptions among 240 requests")


def test_speculation_is_told_by_its_length() -> None:
    end = {counters.DRAFTS[0]: 100.0, counters.DRAFTED[0]: 300.0, counters.ACCEPTED[0]: 150.0}
    found = measured(told(fresh(), begin=dict.fromkeys(end, 0.0), end=end)).counters
    assert (found["server_acceptance_length"], found["server_acceptance_ratio"]) == (2.5, 0.5)


# --- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["hw_thermal", "sw_thermal", "hw_slowdown", "power_brake"])
def test_a_clock_that_is_held_down_is_doubted(reason: str) -> None:
    samples = [replace(s, throttled=(reason,)) if s.at_s > 50 else s for s in gpus()]
    assert doubt(told(fresh(), samples=samples)) == f"GPU clocks were held down in 25% of the window: {reason}"


def test_a_moment_of_it_is_let_pass() -> None:
    samples = [replace(s, throttled=("hw_thermal",)) if s.at_s == 30 else s for s in gpus()]
    assert measured(told(fresh(), samples=samples)).untrusted == ()


@pytest.mark.parametrize("reason", ["hw_thermal", "power_cap"])
def test_what_happens_outside_the_window_is_not_the_levels(reason: str) -> None:
    inside = gpus()
    outside = [gpu(at_s, throttled=(reason,)) for at_s in (*range(-30, 0), *range(70, 100))]
    result = measured(told(fresh(), samples=[*outside[:30], *inside, *outside[30:]]))
    assert (result.untrusted, result.notes) == ((), ())


@pytest.mark.parametrize(("reason", "word"), [("power_cap", "power cap"), ("clock_setting", "pinned")])
def test_a_working_point_is_a_note(reason: str, word: str) -> None:
    result = measured(told(fresh(), samples=gpus(throttled=(reason,))))
    assert result.untrusted == ()
    assert word in result.notes[0]


def test_a_clock_that_sags_is_doubted_whatever_the_driver_says() -> None:
    samples = [gpu(s.at_s, sm_clock_mhz=1500.0 if s.at_s > 40 else 1980.0) for s in gpus()]
    assert "the clock of GPU 0 fell from" in doubt(told(fresh(), samples=samples))
    idle = [replace(s, utilisation_ratio=0.1) for s in samples]
    assert measured(told(fresh(), samples=idle)).untrusted == ()


@pytest.mark.parametrize("sizes", [(0, 5 * GIB), (5 * GIB, 0)])
def test_a_tenant_that_comes_or_goes_is_doubted(sizes: tuple[int, int]) -> None:
    samples = [gpu(s.at_s, others_bytes=sizes[s.at_s > 40]) for s in gpus()]
    assert "another program came to the GPU or left it" in doubt(told(fresh(), samples=samples))


def test_a_tenant_that_stays_is_a_note() -> None:
    result = measured(told(fresh(), samples=gpus(others_bytes=5 * GIB)))
    assert (result.untrusted, result.notes) == ((), ("other programs held 5.0 GiB of a GPU all the time",))


def test_the_figures_of_several_gpus_are_sums_and_means() -> None:
    samples = [*gpus(), *gpus(gpu="1", sm_clock_mhz=1000.0)]
    found = measured(told(fresh(), samples=samples)).counters
    assert found["gpu_power_mean_w"] == 1000
    assert found["gpu_energy_j"] == 2 * 500 * 71
    assert found["gpu_memory_max_bytes"] == 140 * GIB
    assert found["gpu_sm_clock_mean_mhz"] == 1490


def test_energy_is_integrated_where_the_gpu_does_not_count_it() -> None:
    assert measured(told(fresh(), samples=gpus(energy_j=None))).counters["gpu_energy_j"] == pytest.approx(500 * 71)


def test_what_nvml_does_not_tell_is_absent() -> None:
    nothing = dict.fromkeys(
        (
            "memory_used_bytes",
            "others_bytes",
            "utilisation_ratio",
            "sm_clock_mhz",
            "temperature_c",
            "power_w",
            "energy_j",
        )
    )
    result = measured(told(fresh(), samples=gpus(**nothing)))
    assert (result.untrusted, result.notes) == ((), ())
    assert [name for name in result.counters if name.startswith("gpu_")] == ["gpu_throttled_ratio"]


def test_memory_under_load_is_a_metric() -> None:
    result = measured(told(fresh(), samples=[*gpus(others_bytes=10 * GIB), *gpus(gpu="1")]))
    assert result.values["gpu_memory_bytes"].value == 130 * GIB
