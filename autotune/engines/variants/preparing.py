"""One variant made ready: found in the cache, or made there once, whoever else asks for it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.engines.command import resolved_model
from autotune.engines.variants.cache import GIB, Manifest, Place, free_bytes, no_room, place_of, size_bytes
from autotune.engines.variants.making import Attempt, OnPhase, make
from autotune.engines.variants.recipe import Recipe, recipe_of
from autotune.errors import EnvironmentFault
from autotune.records.spec import StudySpec
from autotune.records.trial import Failure, Fault
from autotune.records.variants import Checkpoint, VariantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What came of a variant: a checkpoint that can be loaded, or one without a path and the `failure` to learn."""

    checkpoint: Checkpoint
    failure: Failure | None = None


def prepare_variant(
    spec: StudySpec, variant: VariantSpec, *, gpus: Sequence[str], log: Path | None, on_phase: OnPhase
) -> Preparation:
    """Return the variant, ready to be loaded; make it when it isn't there.

    `log` (None: beside the checkpoint) is written when a command runs. Raises EnvironmentFault when the machine keeps
    it from being made (a full disk, a signal from outside), which another try may mend; a command that `resumes` then
    finds its partial folder.
    """
    if variant.model is not None:
        return Preparation(checkpoint=Checkpoint(name=variant.name, path=resolved_model(variant.model)))
    began = time.monotonic()
    recipe = recipe_of(spec, variant)
    place = place_of(spec, recipe.digest)
    if (there := place.manifest()) is not None:
        return _prepared(recipe, place, there, waited_s=0.0)
    with place.held(on_phase) as lock:
        attempt = Attempt(place=place, gpus=gpus, log=log or place.log, lock=lock)
        made = place.manifest() or _make(recipe, attempt, on_phase)
    return _prepared(recipe, place, made, waited_s=time.monotonic() - began)


def _make(recipe: Recipe, attempt: Attempt, on_phase: OnPhase) -> Manifest | Failure:
    variant, place, began = recipe.variant, attempt.place, time.monotonic()
    place.start(keep=variant.resumes)
    needed, free = needs_gib(variant, place), free_bytes(place.folder) / GIB
    if needed > free:
        raise no_room(place.folder, variant.name, needed, free)
    failure = make(recipe, attempt, on_phase)
    if failure is None:
        on_phase(f"writing {variant.name} to disk")
        return place.seal(name=variant.name, command=recipe.argv(place.whole), prepare_s=time.monotonic() - began)
    if not variant.resumes:
        place.drop()  # which also makes room again on a disk that is full
    advice = f"{failure.remedy}; whole log: {attempt.log}"
    if failure.fault is Fault.ENVIRONMENT:
        raise EnvironmentFault(failure.cause, f"{advice}; finished trials are kept: go on with --resume")
    return replace(failure, remedy=advice)


def needs_gib(variant: VariantSpec, place: Place) -> float:
    """Return what making the variant still takes of the disk, by the study's word; 0 where it says nothing."""
    there = size_bytes(place.partial) / GIB if variant.resumes else 0.0
    return max(0.0, (variant.needs_disk_gib or 0.0) - there)


def _prepared(recipe: Recipe, place: Place, made: Manifest | Failure, *, waited_s: float) -> Preparation:
    failure = made if isinstance(made, Failure) else None
    checkpoint = Checkpoint(
        name=recipe.variant.name,
        path=None if failure else str(place.whole),
        command=recipe.argv(place.whole),
        env=recipe.variant.env,
        digest=recipe.digest,
        prepare_s=None if isinstance(made, Failure) else made.prepare_s,
        waited_s=waited_s,
    )
    return Preparation(checkpoint=checkpoint, failure=failure)
