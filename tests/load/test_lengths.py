"""Lengths of prompts and answers: distributions, correlation, files of pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autotune.errors import InputError
from autotune.load import build_level
from autotune.load.lengths import DrawnPairs, at_normal, mean
from autotune.load.pairs_file import read_pairs
from autotune.records.spec import (
    FixedLength,
    Length,
    LoadSpec,
    LogNormalLength,
    PrefixSpec,
    UniformLength,
    WorkloadSpec,
)

PROMPT = LogNormalLength(median=500, sigma=0.8, low=1, high=100_000)
ANSWER = UniformLength(low=1, high=2000)

lengths: st.SearchStrategy[Length] = st.one_of(
    st.builds(FixedLength, tokens=st.integers(1, 9999)),
    st.tuples(st.integers(1, 50), st.integers(50, 999)).map(lambda b: UniformLength(low=b[0], high=b[1])),
    st.builds(LogNormalLength, median=st.floats(10, 90), sigma=st.floats(0.01, 50), low=st.just(5), high=st.just(99)),
)


@pytest.mark.parametrize("rho", [-0.9, -0.4, 0.3, 0.6, 0.95])
def test_correlated_lengths_have_the_rank_correlation_asked_for(rho: float) -> None:
    pairs = DrawnPairs(prompt=PROMPT, answer=ANSWER, correlation=rho)
    rng = np.random.default_rng(3)
    drawn = np.array([pairs.draw(rng) for _ in range(20_000)])
    assert stats.spearmanr(drawn).statistic == pytest.approx(rho, abs=0.01)


def test_correlation_leaves_each_length_its_distribution() -> None:
    pairs = DrawnPairs(prompt=PROMPT, answer=ANSWER, correlation=0.7)
    rng = np.random.default_rng(4)
    prompts, answers = np.array([pairs.draw(rng) for _ in range(5_000)]).T
    assert stats.kstest(prompts, stats.lognorm(0.8, scale=500).cdf).pvalue > 0.01
    assert stats.kstest(answers, stats.uniform(0.5, 2000).cdf).pvalue > 0.01


@given(lengths, st.floats(-40, 40), st.floats(-40, 40))
def test_quantiles_are_ordered_and_inside_the_bounds(length: Length, one: float, other: float) -> None:
    low, high = (at_normal(length, z) for z in sorted((one, other)))
    assert length.low <= low <= high <= length.high


def test_means_are_those_of_draws() -> None:
    for length in (FixedLength(tokens=7), ANSWER, LogNormalLength(median=5, sigma=1.0, low=2, high=9)):
        rng = np.random.default_rng(5)
        drawn = [at_normal(length, z) for z in rng.standard_normal(20_000)]
        assert mean(length) == pytest.approx(np.mean(drawn), rel=0.02)


def write(folder: Path, text: str) -> str:
    file = folder / "lengths"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    "text",
    [
        "[10, 1]\n[20, 2]\n",
        '{"input_tokens": 10, "output_tokens": 1, "id": "a"}\n\n{"input_tokens": 20, "output_tokens": 2}\n',
        '{"prompt_tokens": 10, "completion_tokens": 1}\n{"input_length": 20, "output_length": 2}\n',
        "10,1\n20,2\n",
        "input_tokens,output_tokens\n10,1\n20,2\n",
        "\ufeffmodel,output_tokens,input_tokens\r\nm,1,10\r\nm,2,20\r\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\nx,10,1\nx,20,2\n",
    ],
)
def test_every_form_of_pairs_is_read(tmp_path: Path, text: str) -> None:
    pairs, notes = read_pairs(write(tmp_path, text))
    assert pairs.pairs == ((10, 1), (20, 2))
    assert (pairs.longest, pairs.shortest_prompt, notes) == ((20, 2), 10, ())


def test_requests_have_the_pairs_of_the_file_together(tmp_path: Path) -> None:
    spec = WorkloadSpec(lengths=write(tmp_path, "10,1\n20,2\n30,3\n"), prefix=PrefixSpec(tokens=4))
    requests = build_level(spec, LoadSpec(concurrency=1), seed=1).requests[:300]
    assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(10, 1), (20, 2), (30, 3)}
    assert all(len(request.prompt_ids or ()) == request.prompt_tokens for request in requests)
    with pytest.raises(InputError, match="prefix of 11 tokens exceeds the shortest prompt, 10"):
        build_level(WorkloadSpec(lengths=spec.lengths, prefix=PrefixSpec(tokens=11)), LoadSpec(concurrency=1), seed=1)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("0,3", "`prompt` must be a whole number from 1 to 10000000, not 0"),
        ("3,-1", "`answer` must be a whole number from 1 to 10000000, not '-1'"),
        ("3", "1 columns, 2 are needed"),
        ("3,4.5", "`answer` must be a whole number from 1 to 10000000, not '4.5'"),
    ],
)
def test_a_few_bad_rows_are_skipped_and_told(tmp_path: Path, row: str, problem: str) -> None:
    path = write(tmp_path, "5,6\n" * 19 + f"{row}\n")
    pairs, notes = read_pairs(path)
    assert len(pairs.pairs) == 19
    assert notes == (f"1 of 20 rows (0.05) were skipped, the first: {path}:20: {problem}",)
    plan = build_level(WorkloadSpec(lengths=path), LoadSpec(concurrency=1), seed=1)
    assert plan.notes == notes


def test_many_bad_rows_refuse_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[5, 6]\n" * 8 + "[5]\n")
    with pytest.raises(InputError) as caught:
        read_pairs(path)
    assert caught.value.message == f"{path}:9: not a pair of lengths: [5]"
