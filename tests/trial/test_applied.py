"""What an engine was asked for is held against what it resolved; a difference can never win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.engines.base import engine_for
from autotune.records.spec import EngineKind, EngineSpec, FixedLength, LoadSpec, SimulateSpec, WorkloadSpec
from autotune.records.trial import Candidate, Outcome, Role, Ruling, TrialRecord
from autotune.search.summary import summarise
from autotune.search.winner import pick
from autotune.trial.applied import applied
from autotune.trial.run import TrialSetting, run_trial
from autotune.trial.store import RunDirectory
from tests.builders import objective, study_spec


@pytest.mark.parametrize(
    ("asked", "resolved"),
    [
        (64, 64),
        ("8k", 8000),
        ("8K", 8192),
        (0.9, "0.9"),
        (False, "False"),
        ("auto", 34736),
        (-1, 34736),
        ("None", "fp8"),  # the checkpoint's own quantisation
        ("bfloat16", "torch.bfloat16"),
        ("half", "torch.float16"),
        ("float", "torch.float32"),
        ("fp8", "fp8_e4m3"),
        ("awq", "awq_marlin"),
        ("dummy", "LoadFormat.DUMMY"),
        ("piecewise", "PIECEWISE"),
        (["m", "other"], "m"),
        ([4, 1, 2, 2, 512], [1, 2, 4]),
    ],
)
def test_spellings_that_mean_the_same_are_confirmed(asked: Any, resolved: Any) -> None:
    result = applied({"x": asked}, {"x": resolved})
    assert (result.confirmed, dict(result.differing), result.untold) == (("x",), {}, ())


@pytest.mark.parametrize(
    ("asked", "resolved", "words"),
    [
        (False, True, "asked x=false, the engine resolved true"),
        (True, False, "asked x=true, the engine resolved false"),
        (64, 128, "asked x=64, the engine resolved 128"),
        ("8k", 8192, "asked x=8k, the engine resolved 8192"),
        (0.9, 0.92, "asked x=0.9, the engine resolved 0.92"),
        ("fp8", "auto", "asked x=fp8, the engine resolved auto"),
        ("fp8", "fp8_e5m2", "asked x=fp8, the engine resolved fp8_e5m2"),
        ("bfloat16", "torch.float16", "asked x=bfloat16, the engine resolved torch.float16"),
        ([1, 2], [1, 2, 4], "asked x=[1, 2], the engine resolved [1, 2, 4]"),
        ([1, 2], [], "asked x=[1, 2], the engine resolved []"),
    ],
)
def test_differences_are_told_in_words(asked: Any, resolved: Any, words: str) -> None:
    assert applied({"x": asked}, {"x": resolved}).differing == {"x": words}


def test_what_the_engine_does_not_tell_is_listed_and_no_difference() -> None:
    asked = {
        "stream_interval": 4,
        "data_parallel_size": 2,
        "compilation_config": {"mode": 3, "cudagraph_mode": "NONE"},
        "speculative_config.method": "ngram",
        "seed": None,
    }
    resolved = {
        "data_parallel_size": 1,
        "compilation_config": {"mode": "VLLM_COMPILE", "cudagraph_mode": "NONE"},
        "speculative_config": "SpeculativeConfig(method='ngram')",
        "seed": 0,
    }
    result = applied(asked, resolved)
    assert result.untold == (
        "stream_interval",
        "data_parallel_size",
        "compilation_config.mode",
        "speculative_config.method",
    )
    assert (result.confirmed, dict(result.differing)) == (("compilation_config.cudagraph_mode",), {})


def trial_of(path: Path, faults: tuple[str, ...]) -> TrialRecord:
    """A whole trial on the simulated server, which has `faults`."""
    spec = study_spec(
        model="autotune/tiny",
        engine=EngineSpec(
            kind=EngineKind.SIMULATED, simulate=SimulateSpec(face="server", time_scale=20.0, faults=faults)
        ),
        objective=objective(
            workload=WorkloadSpec(input_tokens=FixedLength(tokens=16), output_tokens=FixedLength(tokens=4)),
            load=LoadSpec(concurrency=4, duration_s=1.0, warmup_s=0.2),
        ),
    )
    run = RunDirectory(path / "run")
    run.write_spec(spec)
    setting = TrialSetting(spec=spec, engine=engine_for(spec), run=run, gpus=())
    args = {"enable_prefix_caching": False, "max_model_len": 512, "max_num_seqs": 8, "stream_interval": 1}
    return run_trial(setting, Candidate(params={}, args=args, role=Role.SEARCH, fingerprint="f"), 0, lambda _: None)


@pytest.mark.integration
def test_a_dropped_flag_makes_a_trial_untrusted_so_that_it_cannot_win(tmp_path: Path) -> None:
    record = trial_of(tmp_path, ("drops_flag:enable_prefix_caching",))
    assert record.verdict is not None
    assert record.verdict.ruling is Ruling.PASS
    assert record.verdict.untrusted == ("asked enable_prefix_caching=false, the engine resolved true",)
    assert record.outcome is Outcome.UNSURE
    spec = study_spec()
    assert pick([record], spec.objective) is None
    assert summarise(spec, [record], stop_reason="", finished=True, wall_s=1.0).best is None


@pytest.mark.integration
def test_a_flag_that_was_applied_leaves_a_trial_trusted(tmp_path: Path) -> None:
    record = trial_of(tmp_path, ())
    assert record.verdict is not None
    assert record.verdict.untrusted == ()
    assert record.outcome is Outcome.OK
    assert set(applied(record.args, record.resolved).confirmed) >= {"enable_prefix_caching", "max_model_len"}
