"""Traces: recorded times and lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InputError
from autotune.load import build_level
from autotune.records.spec import LoadSpec, TraceArrivals, WorkloadSpec
from autotune.records.trial import LevelPlan

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:13.9799600,110,27
"""


def mooncake(at_ms: float, prompt: int, answer: int, blocks: list[int] | None = None, **more: Any) -> str:
    row = {"timestamp": at_ms, "input_length": prompt, "output_length": answer, **more}
    return json.dumps(row if blocks is None else {**row, "hash_ids": blocks}) + "\n"


def write(folder: Path, text: str) -> str:
    file = folder / "trace"
    file.write_text(text)
    return str(file)


def replayed(path: str, seed: int = 1, *, duration_s: float = 60.0, warmup_s: float = 0.0, **trace: Any) -> LevelPlan:
    load = LoadSpec(trace=TraceArrivals(file=path, **trace), duration_s=duration_s, warmup_s=warmup_s)
    return build_level(WorkloadSpec(shape="trace"), load, seed=seed)


def told(plan: LevelPlan) -> list[tuple[float | None, int | None, int]]:
    return [(r.at_s and round(r.at_s, 6), r.prompt_tokens, r.output_tokens) for r in plan.requests]


def test_azure_s_csv_is_read(tmp_path: Path) -> None:
    plan = replayed(write(tmp_path, AZURE), duration_s=11)
    assert told(plan) == [(0.0, 4808, 10), (0.052, 3180, 8), (10.0, 110, 27)]
    assert all(len(request.prompt_ids or ()) == request.prompt_tokens for request in plan.requests)
    assert plan.offered_rps == pytest.approx(3 / 11)


def test_azure_s_later_csv_has_a_time_zone(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n"
    plan = replayed(write(tmp_path, AZURE.splitlines()[0] + "\n" + rows), duration_s=1.5)
    assert told(plan) == [(0.0, 2162, 5), (0.99007, 2399, 6)]


def test_mooncake_s_hash_ids_are_shared_blocks_of_512_tokens(tmp_path: Path) -> None:
    rows = [
        mooncake(0, 1300, 5, [0, 1, 2]),
        mooncake(1000, 1500, 6, [0, 1, 3]),
        mooncake(2500, 700, 7, [0, 4], session="kept by others"),
        mooncake(3000, 600, 8, [9, 5]),
    ]
    requests = replayed(write(tmp_path, "".join(rows)), duration_s=3.5).requests[:]
    one, two, three, four = (request.prompt_ids or () for request in requests)
    assert [request.at_s for request in requests] == [0.0, 1.0, 2.5, 3.0]
    assert [len(ids) for ids in (one, two, three, four)] == [1300, 1500, 700, 600]
    assert one[:1024] == two[:1024]
    assert one[1024:] != two[1024:1300]
    assert one[:512] == three[:512]
    assert one[512:700] != three[512:]
    assert not set(zip(one, four, strict=False)) >= set(zip(four, four, strict=True))
    assert [request.prefix_tokens for request in requests] == [1024, 1024, 512, 0]
    assert requests[0].prefix_group == requests[1].prefix_group
    assert requests[3].prefix_group == -1


def test_other_levels_have_other_prompts_at_the_same_times(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(0, 600, 5, [0, 1]) + mooncake(1000, 600, 6, [0, 2]))
    one, same, other = (replayed(path, seed, duration_s=2) for seed in (1, 1, 2))
    assert one.requests[:] == same.requests[:]
    assert told(one) == told(other)
    assert (one.requests[0].prompt_ids or ())[:512] != (other.requests[0].prompt_ids or ())[:512]


def test_a_trace_is_cut_and_scaled(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(mooncake(1000 * at_s, 10 + at_s, 5) for at_s in range(20)))
    plan = replayed(path, start_s=4, speed=2, duration_s=3)
    assert told(plan) == [(at_s / 2, 14 + at_s, 5) for at_s in range(6)]
    assert (plan.duration_s, plan.notes) == (3.0, ())


def test_a_short_trace_ends_its_level_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(mooncake(1000 * at_s, 10, 5) for at_s in range(5)))
    plan = replayed(path, duration_s=55, warmup_s=2)
    assert (len(plan.requests), plan.warmup_s + plan.duration_s) == (5, 5.0)
    assert plan.notes == ("the trace ends after 5 s of 57: so does the level",)
    assert plan.offered_rps == 1.0


def test_a_repeated_trace_has_new_prompts_each_time_round(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(0, 600, 5, [0, 1]) + mooncake(1000, 600, 6, [0, 2]))
    plan = replayed(path, repeat=True, duration_s=5)
    assert told(plan) == [(float(at_s), 600, 5 + at_s % 2) for at_s in range(5)]
    heads = [(request.prompt_ids or ())[:512] for request in plan.requests]
    assert heads[0] == heads[1] != heads[2] == heads[3] != heads[4]
    assert [request.prefix_tokens for request in plan.requests] == [512, 512, 512, 512, 0]


def test_max_requests_ends_a_replay(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(mooncake(1000 * at_s, 10, 5) for at_s in range(9)))
    load = LoadSpec(trace=TraceArrivals(file=path), duration_s=8, warmup_s=1, max_requests=4)
    plan = build_level(WorkloadSpec(), load, seed=1)
    assert (len(plan.requests), plan.duration_s) == (4, 3.0)


def test_rows_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(2000, 12, 5) + mooncake(0, 10, 5) + mooncake(1000, 11, 5))
    assert [prompt for _, prompt, _ in told(replayed(path, duration_s=3))] == [10, 11, 12]


def test_a_long_trace_is_read_no_further_than_it_is_needed(tmp_path: Path) -> None:
    """What comes later is not even looked at: a week of requests is hundreds of megabytes."""
    path = write(tmp_path, "".join(mooncake(1000 * at_s, 10, 5) for at_s in range(200)) + "no JSON\n" * 200)
    assert len(replayed(path, duration_s=30).requests) == 30
    with pytest.raises(InputError, match="201: not JSON"):
        replayed(path, duration_s=300)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("[]", "a list where an object belongs"),
        (mooncake(-1, 5, 5), "`timestamp` must be milliseconds from 0 to 1e+15, not -1"),
        (mooncake(10**400, 5, 5), f"`timestamp` must be milliseconds from 0 to 1e+15, not {10**39}"),
        (mooncake(float("nan"), 5, 5), "`timestamp` must be milliseconds from 0 to 1e+15, not nan"),
        (mooncake(5, 5, 0), "`output_length` must be a whole number from 1 to 10000000, not 0"),
        (mooncake(5, 5, 5, [1, 2]), "2 hash_ids for 5 tokens: in blocks of 512 it is 1"),
        (mooncake(5, 521, 5, list(range(33))), "33 hash_ids for 521 tokens: in blocks of 512 it is 2"),
        (mooncake(5, 5, 5, [-1]), "`hash_ids` must be a list of whole numbers, not [-1]"),
    ],
)
def test_a_bad_row_is_told_by_its_line_and_a_few_are_skipped(tmp_path: Path, row: str, problem: str) -> None:
    good = "".join(mooncake(1000 * at_s, 10, 5) for at_s in range(10))
    path = write(tmp_path, good + row)
    plan = replayed(path, duration_s=10)
    assert len(plan.requests) == 10
    assert plan.notes[0] == f"1 of 11 rows (0.091) were skipped, the first: {path}:11: {problem}"
    with pytest.raises(InputError, match=r":2: "):
        replayed(write(tmp_path, mooncake(0, 5, 5) + row))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not the header of a trace"),
        ("a,b,c\n1,2,3\n", "not the header of a trace: a,b,c"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,5,5\n", "2: not a time: now"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,5\n", "2: 2 columns, 3 are needed"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        replayed(write(tmp_path, text))


def test_what_can_t_be_replayed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(0, 500, 5) + mooncake(2000, 600, 6))
    with pytest.raises(InputError, match="the last request is at 2 s"):
        replayed(path, start_s=3)
    with pytest.raises(InputError, match="the trace would be repeated"):
        replayed(path, repeat=True, speed=1e9)
    with pytest.raises(InputError, match="no request would arrive after the warm-up of 5 s"):
        replayed(path, warmup_s=5)
    with pytest.raises(InputError, match="can't read the trace: No such file"):
        replayed(f"{path}.gone")
    load = LoadSpec(trace=TraceArrivals(file=path), duration_s=3, warmup_s=0)
    with pytest.raises(InputError, match=r"1 of 2 requests need more than the 600 tokens .* the longest 606"):
        build_level(WorkloadSpec(), load, seed=1, max_total_tokens=600)
