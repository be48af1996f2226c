"""Variants between file and record, and the parameter that chooses one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.records.spec import Choice, ParameterSpec, SpaceSpec
from autotune.records.variants import BASE, CHECKPOINT, DEFAULT_TIMEOUT_S, VariantSpec
from autotune.study.objective_shape import without_none
from autotune.study.variant_forms import VariantForm

WHY = "A checkpoint that was quantised or built beforehand takes less memory and other kernels than the model as it is."


def variants_of(forms: Mapping[str, VariantForm]) -> tuple[VariantSpec, ...]:
    """Return the records of a study's variants, in the file's order."""
    return tuple(_variant(name, form) for name, form in forms.items())


def _variant(name: str, form: VariantForm) -> VariantSpec:
    command = shlex.split(form.command) if isinstance(form.command, str) else form.command or ()
    return VariantSpec(
        name=name,
        model=form.model,
        command=tuple(command),
        inputs=tuple(form.inputs),
        env=form.env,
        versions=form.versions,
        needs_disk_gib=form.needs_disk_gib,
        timeout_s=form.timeout_s,
        resumes=form.resumes,
    )


def with_checkpoint(space: SpaceSpec, variants: Sequence[VariantSpec]) -> SpaceSpec:
    """Return the space with the parameter that chooses among `variants`, which may always change what the model says.

    A space may have it already, with fewer choices. The same space where there is none to choose.
    """
    if any(parameter.name == CHECKPOINT for parameter in space.parameters):
        parameters = [replace(p, changes_output=True) if p.name == CHECKPOINT else p for p in space.parameters]
        return replace(space, parameters=tuple(parameters))
    if not variants:
        return space
    names = (BASE, *(variant.name for variant in variants))
    chosen = ParameterSpec(name=CHECKPOINT, domain=Choice(values=names), why=WHY, changes_output=True)
    return replace(space, parameters=(chosen, *space.parameters))


def variants_data(variants: Sequence[VariantSpec]) -> dict[str, Any] | None:
    """Return the file form of variants; None of none."""
    return {variant.name: _data(variant) for variant in variants} or None


def _data(variant: VariantSpec) -> dict[str, Any]:
    return without_none(
        model=variant.model,
        command=list(variant.command) or None,
        inputs=list(variant.inputs) or None,
        env=dict(variant.env) or None,
        versions=dict(variant.versions) or None,
        needs_disk_gib=variant.needs_disk_gib,
        timeout_s=variant.timeout_s if variant.timeout_s != DEFAULT_TIMEOUT_S else None,
        resumes=variant.resumes or None,
    )
