"""Studies of two engines for these tests: as records, and scripted engines that run them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.pipeline import run_study
from autotune.records.spec import (
    BudgetSpec,
    Choice,
    Direction,
    EngineEntry,
    EngineKind,
    EngineSpec,
    FixedLength,
    IntRange,
    LoadSpec,
    ObjectiveSpec,
    ParameterSpec,
    SamplerSpec,
    Slo,
    SpaceSpec,
    StudySpec,
    WorkloadSpec,
)
from autotune.records.summary import StudySummary
from autotune.study.engines_shape import joined_space
from autotune.trial.store import RunDirectory
from tests.fakes import ListView, ScriptedEngine

SPACE = SpaceSpec(
    name="small",
    engine=EngineKind.VLLM,
    parameters=(
        ParameterSpec(name="max_num_seqs", domain=IntRange(low=8, high=256, log=True)),
        ParameterSpec(name="enable_prefix_caching", domain=Choice(values=(True, False))),
        ParameterSpec(name="block_size", domain=Choice(values=(16, 32)), when="enable_prefix_caching"),
    ),
)
OTHER = SpaceSpec(
    name="other",
    engine=EngineKind.VLLM,
    parameters=(
        ParameterSpec(name="max_num_seqs", domain=IntRange(low=1, high=4)),  # a name of the first, another range
        ParameterSpec(name="kv_cache_config.dtype", domain=Choice(values=("auto", "fp8"))),
    ),
)


def entry(name: str, space: SpaceSpec = SPACE, **changes: Any) -> EngineEntry:
    """Return one of several engines."""
    return EngineEntry(engine=EngineSpec(kind=EngineKind.SIMULATED, name=name, **changes), search_space=space)


def study(*entries: EngineEntry, **changes: Any) -> StudySpec:
    """Return a study of `entries` (default: `a` and `b`) for throughput under a TTFT of 500 ms."""
    entries = entries or (entry("a"), entry("b", OTHER))
    known: dict[str, Any] = {
        "name": "two",
        "model": "autotune/tiny",
        "engine": entries[0].engine,
        "search_space": joined_space(entries),
        "engines": entries,
        "objective": ObjectiveSpec(
            name="chat",
            metric="output_tok_per_s",
            direction=Direction.MAXIMIZE,
            slos=(Slo(metric="ttft_ms.p50", limit=500.0),),
            workload=WorkloadSpec(input_tokens=FixedLength(tokens=8), output_tokens=FixedLength(tokens=4)),
            load=LoadSpec(concurrency=1, duration_s=60.0, warmup_s=0.0),
        ),
        "budget": BudgetSpec(trials=12),
        "sampler": SamplerSpec(kind="random"),
    }
    return StudySpec(**{**known, **changes})


def run(
    path: Path, spec: StudySpec, engines: Mapping[str | None, ScriptedEngine], *, resume: bool = False
) -> tuple[StudySummary, RunDirectory, ListView]:
    """Run `spec` with scripted engines."""
    directory, view = RunDirectory(path), ListView()
    return run_study(spec, engines, directory, view, resume=resume), directory, view
