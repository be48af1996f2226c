"""Which variants a study has, whether each is there already, and whether the disk can hold those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.engines.variants.cache import GIB, free_bytes, no_room, place_of, variants_folder
from autotune.engines.variants.preparing import needs_gib
from autotune.engines.variants.recipe import recipe_of
from autotune.errors import EnvironmentFault
from autotune.records.spec import StudySpec
from autotune.records.variants import VariantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantState:
    """One variant: `path` is where it lies or will, `ready` whether it does. `made_by` is its command, () of one that
    is only named; `prepare_s` how long making it took, None of one that is not made."""

    name: str
    path: str
    ready: bool
    made_by: tuple[str, ...] = ()
    prepare_s: float | None = None
    needs_disk_gib: float | None = None
    free_disk_gib: float | None = None


def variant_states(spec: StudySpec) -> tuple[VariantState, ...]:
    """Return the state of each variant. Raises EnvironmentFault when an input of one can't be read."""
    return tuple(_state(spec, variant) for variant in spec.variants)


def _state(spec: StudySpec, variant: VariantSpec) -> VariantState:
    if variant.model is not None:
        return VariantState(name=variant.name, path=variant.model, ready=True)
    recipe = recipe_of(spec, variant)
    place = place_of(spec, recipe.digest)
    manifest = place.manifest()
    return VariantState(
        name=variant.name,
        path=str(place.whole),
        ready=manifest is not None,
        made_by=recipe.argv(place.whole),
        prepare_s=None if manifest is None else manifest.prepare_s,
        needs_disk_gib=variant.needs_disk_gib,
        free_disk_gib=free_bytes(place.folder) / GIB,
    )


def missing_room(spec: StudySpec) -> EnvironmentFault | None:
    """Return why the disk can't hold the variants that are not made yet, all together; None when it can.

    Asked before the first launch: found out after hours, it would be found out too late.
    """
    needed = dict(_needed(spec))
    total, folder = sum(needed.values()), variants_folder(spec)
    free_gib = free_bytes(folder) / GIB
    return no_room(folder, ", ".join(needed), total, free_gib) if total > free_gib else None


def _needed(spec: StudySpec) -> Iterator[tuple[str, float]]:
    for variant in spec.variants:
        if variant.command:
            place = place_of(spec, recipe_of(spec, variant).digest)
            if place.manifest() is None:
                yield variant.name, needs_gib(variant, place)
