"""The variants of a running study: each is prepared when a candidate first needs it, and one that can't be made is
learned once for all candidates that would load it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from autotune.engines.variants import Preparation, prepare_variant, variant_digest
from autotune.errors import EnvironmentFault, InputError
from autotune.records.spec import StudySpec
from autotune.records.trial import Failure, TrialRecord
from autotune.records.variants import Checkpoint
from autotune.search.gate import Source
from autotune.trial.store import RunDirectory


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """Made by `checkpoints_of`; `_failed` are those that can't be made."""

    spec: StudySpec
    run: RunDirectory
    gpus: Sequence[str]
    _failed: dict[str, Preparation] = field(default_factory=dict)

    def prepare(self, name: str, on_phase: Callable[[str], None]) -> Preparation:
        """Return a variant ready to be loaded, or why it can't be made, which a second call knows without a try.

        Raises EnvironmentFault when the machine keeps it from being made.
        """
        if name in self._failed:
            known = self._failed[name]
            return replace(known, checkpoint=replace(known.checkpoint, waited_s=0.0))
        log = self.run.variant_log(name)
        found = prepare_variant(self.spec, self.spec.variant(name), gpus=self.gpus, log=log, on_phase=on_phase)
        if found.failure is not None:
            self._failed[name] = found
        return found

    def learn(self, record: TrialRecord) -> None:
        """Learn from a trial of an earlier run of the study. Raises InputError when what it ran has changed since."""
        checkpoint = record.checkpoint
        if checkpoint is None:
            return
        if record.failure is not None and record.ruled_out_by == Source.CHECKPOINT:
            self._failed[checkpoint.name] = Preparation(checkpoint=checkpoint, failure=record.failure)
        elif checkpoint.digest != variant_digest(self.spec, self.spec.variant(checkpoint.name)):
            raise InputError(
                f"variant {checkpoint.name} is not what earlier trials ran: its model, command or inputs have changed",
                "put them back, or give this study another name",
            )


def checkpoints_of(
    spec: StudySpec, run: RunDirectory, gpus: Sequence[str], records: Sequence[TrialRecord]
) -> Checkpoints:
    """Return what a study knows of its variants after `records`. Raises InputError when one of them has changed."""
    checkpoints = Checkpoints(spec=spec, run=run, gpus=gpus)
    for record in records:
        checkpoints.learn(record)
    return checkpoints


def name_of(checkpoint: Checkpoint | None) -> str | None:
    """The variant that a trial ran, None for the study's own model."""
    return None if checkpoint is None else checkpoint.name


# --- ahead of a study -------------------------------------------------------------------------------------------------

TELL_EVERY_S = 10.0


def prepare_ahead(spec: StudySpec, gpus: Sequence[str], tell: Callable[[str], None]) -> Iterator[str]:
    """Make every variant of a study that isn't there; yield a line for each that is ready then.

    `tell` is given a sign of life now and then. Raises EnvironmentFault when one can't be made, after all the others.
    """
    failed: list[Failure] = []
    for variant in spec.variants:
        found = prepare_variant(spec, variant, gpus=gpus, log=None, on_phase=_now_and_then(tell))
        if found.failure is None:
            yield f"variant {variant.name}: {found.checkpoint.path}{_how(found.checkpoint)}"
        else:
            failed.append(found.failure)
    if failed:
        raise EnvironmentFault("\n".join(each.cause for each in failed), failed[0].remedy)


def _how(checkpoint: Checkpoint) -> str:
    if checkpoint.prepare_s is None:
        return ""
    return f", made in {checkpoint.prepare_s:.0f} s" + ("" if checkpoint.waited_s else " before")


def _now_and_then(tell: Callable[[str], None]) -> Callable[[str], None]:
    last_s = -math.inf

    def say(text: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= TELL_EVERY_S:
            last_s = time.monotonic()
            tell(text)

    return say
