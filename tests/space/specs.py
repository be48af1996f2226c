"""Studies for tests of the space stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from autotune.records.spec import (
    Choice,
    Direction,
    Domain,
    EngineKind,
    EngineSpec,
    FixedLength,
    HardwareSpec,
    LoadSpec,
    ObjectiveSpec,
    ParameterSpec,
    SpaceSpec,
    StudySpec,
    WorkloadSpec,
)

ON_OFF = Choice(values=(True, False))


def parameter(name: str, domain: Domain, when: str | None = None, *, changes_output: bool = False) -> ParameterSpec:
    """Return a parameter."""
    return ParameterSpec(name=name, domain=domain, when=when, changes_output=changes_output)


def study(
    *parameters: ParameterSpec,
    rules: tuple[str, ...] = (),
    derived: Mapping[str, str] | None = None,
    args: Mapping[str, Any] | None = None,
    gpus: tuple[int | str, ...] | None = None,
    quality: Literal["unchecked"] | None = None,
    dataset: str | None = None,
) -> StudySpec:
    """Return a study with these parameters; its longest request has 128 + 32 tokens."""
    lengths = WorkloadSpec(input_tokens=FixedLength(tokens=128), output_tokens=FixedLength(tokens=32))
    return StudySpec(
        name="test",
        model="m",
        engine=EngineSpec(kind=EngineKind.VLLM, args=args or {}),
        search_space=SpaceSpec(
            name="test", engine=EngineKind.VLLM, parameters=parameters, derived=derived or {}, rules=rules
        ),
        objective=ObjectiveSpec(
            name="test",
            metric="output_tok_per_s",
            direction=Direction.MAXIMIZE,
            slos=(),
            workload=WorkloadSpec(dataset=dataset) if dataset else lengths,
            load=LoadSpec(concurrency=8),
        ),
        hardware=HardwareSpec(gpus=gpus),
        quality=quality,
    )
