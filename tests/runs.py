"""A realistic run on disk for tests of what comes after a study: a dozen trials, many endings, hostile names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.records.spec import (
    Bound,
    BudgetSpec,
    Choice,
    Direction,
    EngineKind,
    EngineSpec,
    FixedLength,
    IntRange,
    LoadSpec,
    ObjectiveSpec,
    ParameterSpec,
    Slo,
    SpaceSpec,
    StudySpec,
    WorkloadSpec,
)
from autotune.records.summary import Gain, StudySummary
from autotune.records.trial import (
    Estimate,
    Failure,
    Fault,
    Measurement,
    Outcome,
    Phase,
    Role,
    Ruling,
    SloRuling,
    TrialRecord,
    Verdict,
    fingerprint,
)
from autotune.trial.store import RunDirectory

HOSTILE = (
    "evil </script><script>alert(1)</script> <img src=x onerror=alert(2)> \x1b[2J\u202e\nnext 'q' \"d\" `id` $(id)"
)
"""Everything that a name or a log line could try: markup, terminal controls, bidi, quotes, command substitution."""

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
FIXED: Mapping[str, Any] = {"max_model_len": 8192}
REFERENCE_ARGS: Mapping[str, Any] = {**FIXED, "max_num_seqs": 256, "enable_chunked_prefill": True}


def study(**changes: Any) -> StudySpec:
    """Return a study of vLLM for throughput under a p99 TTFT of 500 ms."""
    spec = StudySpec(
        name="llama-8b-chat",
        model=MODEL,
        engine=EngineSpec(
            kind=EngineKind.VLLM, args=FIXED, env={"HF_HOME": "/models with space", "HF_TOKEN": "${HF_TOKEN}"}
        ),
        search_space=SpaceSpec(
            name="vllm/test",
            engine=EngineKind.VLLM,
            parameters=(
                ParameterSpec(name="max_num_seqs", domain=IntRange(low=8, high=1024, log=True)),
                ParameterSpec(name="max_num_batched_tokens", domain=IntRange(low=512, high=16384, log=True)),
                ParameterSpec(name="enable_chunked_prefill", domain=Choice(values=(True, False))),
                ParameterSpec(name="long_prefill_token_threshold", domain=IntRange(low=0, high=4096)),
            ),
        ),
        objective=ObjectiveSpec(
            name="chat",
            metric="output_tok_per_s",
            direction=Direction.MAXIMIZE,
            slos=(Slo(metric="ttft_ms.p99", limit=500.0), Slo(metric="error_ratio", limit=0.01)),
            workload=WorkloadSpec(
                shape="chat", input_tokens=FixedLength(tokens=512), output_tokens=FixedLength(tokens=128)
            ),
            load=LoadSpec(poisson_rps=8.0),
        ),
        incumbent={"max_num_seqs": 256, "enable_chunked_prefill": True},
        budget=BudgetSpec(trials=16, hours=2.0),
    )
    return replace(spec, **changes)


def estimate(value: float, spread: float = 0.06, n: int = 480) -> Estimate:
    """Return a figure whose interval is ± `spread` of it."""
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), n=n)


def trial(
    number: int,
    outcome: Outcome,
    params: Mapping[str, Any] | None = None,
    *,
    tok_per_s: float | None = None,
    ttft_ms: float | None = None,
    cause: str = "",
    remedy: str = "",
    role: Role = Role.SEARCH,
    **changes: Any,
) -> TrialRecord:
    """Return a trial's record; one with figures has a verdict on them, one without has a failure."""
    args = {**(REFERENCE_ARGS if role is Role.REFERENCE else FIXED), **(params or {})}
    fault = Fault.ENVIRONMENT if outcome in (Outcome.ENVIRONMENT, Outcome.INTERRUPTED) else Fault.CANDIDATE
    measured = tok_per_s is not None and ttft_ms is not None
    record = TrialRecord(
        study="llama-8b-chat",
        number=number,
        role=role,
        simulated=False,
        params=params or {},
        args=args,
        fingerprint=fingerprint("vllm", MODEL, args),
        model=MODEL,
        argv=("vllm", "serve", MODEL, "--max-num-seqs", str(args.get("max_num_seqs", "")), "--port", "41234"),
        outcome=outcome,
        failure=None
        if measured
        else Failure(outcome=outcome, fault=fault, phase=Phase.LAUNCH, cause=cause, remedy=remedy),
        objective=estimate(tok_per_s) if tok_per_s is not None else None,
        verdict=verdict(outcome, ttft_ms) if ttft_ms is not None else None,
        measurements=(level(tok_per_s, ttft_ms),) if tok_per_s is not None and ttft_ms is not None else (),
        startup_s=None if outcome is Outcome.RULED_OUT else 41.0 + number,
        wall_s=0.0 if outcome is Outcome.RULED_OUT else 120.0,
        started_utc=f"2026-05-01T10:{number % 60:02d}:00Z",
        seed=1000 + number,
        versions={"autotune": "0.1.0", "vllm": "0.11.2", "gpu": "NVIDIA H100 80GB HBM3", "cuda": None},
    )
    return replace(record, **changes)


def verdict(outcome: Outcome, ttft_ms: float) -> Verdict:
    """Return the verdict of a measured trial whose p99 TTFT is `ttft_ms`."""
    ruling = {Outcome.OK: Ruling.PASS, Outcome.UNSURE: Ruling.UNSURE}.get(outcome, Ruling.FAIL)
    figure = Estimate(value=ttft_ms, low=ttft_ms * 0.9, high=None if ruling is Ruling.UNSURE else ttft_ms * 1.1, n=480)
    ttft = SloRuling(
        metric="ttft_ms.p99", bound=Bound.MAX, limit=500.0, estimate=figure, excess=ttft_ms / 500 - 1, ruling=ruling
    )
    errors = SloRuling(
        metric="error_ratio",
        bound=ttft.bound,
        limit=0.01,
        estimate=Estimate(value=0.0, low=0.0, high=0.008, n=480),
        excess=-1.0,
        ruling=Ruling.PASS,
    )
    return Verdict(slos=(ttft, errors), ruling=ruling)


def level(tok_per_s: float, ttft_ms: float) -> Measurement:
    """Return one measured level."""
    return Measurement(
        offered_rps=8.0,
        concurrency=None,
        duration_s=60.0,
        requests=480,
        errors=0,
        values={"output_tok_per_s": estimate(tok_per_s), "ttft_ms.p99": estimate(ttft_ms)},
    )


def params(seqs: int, tokens: int, chunked: bool = True, threshold: int = 0) -> dict[str, Any]:
    """Return a point of the space."""
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": threshold,
    }


def dozen() -> list[TrialRecord]:
    """Return the trials of the example run: 0 is the reference, 5 the best."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    return [
        trial(0, Outcome.OK, role=Role.REFERENCE, tok_per_s=238.0, ttft_ms=310.0),
        trial(1, Outcome.SLO_MISS, params(512, 16384), tok_per_s=331.0, ttft_ms=1240.0),
        trial(2, Outcome.OOM_STARTUP, params(1024, 16384), cause=oom, remedy="lower max_num_seqs"),
        trial(3, Outcome.OK, params(64, 2048, False), tok_per_s=205.0, ttft_ms=180.0),
        trial(4, Outcome.BAD_CONFIG, params(8, 512, False), cause=HOSTILE, remedy="use <b>another</b>\nvalue"),
        trial(5, Outcome.OK, params(192, 4096, True, 2048), tok_per_s=312.0, ttft_ms=412.0),
        trial(6, Outcome.UNSURE, params(224, 4096), tok_per_s=318.0, ttft_ms=488.0),
        trial(7, Outcome.OOM_STARTUP, params(1000, 16000), cause=oom, remedy="lower max_num_seqs"),
        trial(8, Outcome.RULED_OUT, params(900, 512), cause="rule max_num_batched_tokens >= max_num_seqs"),
        trial(9, Outcome.CRASHED_UNDER_LOAD, params(700, 8192), cause="EngineDeadError", remedy="see engine.log"),
        trial(10, Outcome.SLO_MISS, params(256, 8192), tok_per_s=322.0, ttft_ms=560.0),
        trial(11, Outcome.INTERRUPTED, params(128, 4096), cause="stopped by Ctrl-C"),
    ]


def summary(**changes: Any) -> StudySummary:
    """Return the summary that belongs to `dozen()`."""
    whole = StudySummary(
        study="llama-8b-chat",
        simulated=False,
        finished=True,
        stop_reason="the budget of 16 trials is spent",
        updated_utc="2026-05-01T12:00:00Z",
        best=5,
        nearest=None,
        reference=0,
        gain=Gain(value=1.31, low=1.18, high=1.45),
        objective=estimate(312.0),
        settled=True,
        confirmed=True,
        quality="not_applicable",
        launched=11,
        ruled_out=1,
        outcomes={"ok": 3, "slo_miss": 2, "oom_startup": 2},
        wall_s=3723.0,
        warnings=("the noise between launches was not measured",),
        versions={"autotune": "0.1.0", "optuna": "5.0.0", "cuda": None},
    )
    return replace(whole, **changes)


def write_run(
    path: Path, trials: Sequence[TrialRecord], summarised: StudySummary | None, spec: StudySpec | None = None
) -> RunDirectory:
    """Write a run as a study leaves it."""
    run = RunDirectory(path)
    run.write_spec(spec or study())
    for record in trials:
        run.write_trial(record)
    if summarised is not None:
        run.write_summary(summarised)
    return run


def simulated(record: TrialRecord) -> TrialRecord:
    """Return the record as the simulated engine would have left it."""
    return replace(record, simulated=True)
