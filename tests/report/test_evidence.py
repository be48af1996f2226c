"""What the engine changed by itself, what it is silent on, and which trials are not trusted, is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.records.trial import Verdict
from tests.report.test_show import run_of, text_of
from tests.runs import dozen, summary

GRAPHS = "CUDAGraphMode.FULL is not supported with X backend; setting cudagraph_mode=PIECEWISE"


def test_downgrades_of_the_best_stand_out_among_its_warnings(tmp_path: Path) -> None:
    trials = dozen()
    trials[5] = replace(trials[5], warnings=("Triton is not installed.", GRAPHS, GRAPHS.replace("X", "Y")))
    text = text_of(run_of(tmp_path, trials, summary()), width=300)
    assert text.count("Downgraded by the engine: CUDA graphs off or fewer") == 1
    assert GRAPHS in text
    assert "Triton" not in text


def test_arguments_that_the_engine_is_silent_on_are_listed_once_it_has_told_anything(tmp_path: Path) -> None:
    trials = dozen()
    assert "neither confirmed nor denied" not in text_of(run_of(tmp_path / "a", trials, summary()))
    told = {name: value for name, value in trials[5].args.items() if name != "long_prefill_token_threshold"}
    trials[5] = replace(trials[5], resolved=told)
    text = text_of(run_of(tmp_path / "b", trials, summary()), width=300)
    assert (
        "neither confirmed nor denied by the engine: long_prefill_token_threshold\n"
        in "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    )


def test_trials_that_are_not_trusted_are_named_with_the_reason(tmp_path: Path) -> None:
    trials = dozen()
    verdict = trials[3].verdict
    assert isinstance(verdict, Verdict)
    why = "asked enable_chunked_prefill=false, the engine resolved true"
    trials[3] = replace(trials[3], verdict=replace(verdict, untrusted=(why,)))
    lines = [line.strip() for line in text_of(run_of(tmp_path, trials, summary())).splitlines()]
    assert lines[lines.index("Not trusted, so never handed over") + 1] == f"trial 3: {why}"
