"""The command that makes a variant, under a keeper: nothing of it outlives the tuner, and its log is kept."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.engines.command import activated, resolved_env
from autotune.engines.launching import kernel_words
from autotune.engines.logfile import read_log, tail
from autotune.engines.process import GRACE_S, EngineProcess, engine_process
from autotune.engines.secrets import secrets_of
from autotune.engines.variants.cache import GIB, Place, kept, size_bytes
from autotune.engines.variants.diagnosis import failed, not_started, not_whole, too_slow
from autotune.engines.variants.recipe import Recipe
from autotune.engines.variants.whole import faults_in
from autotune.records.trial import Failure
from autotune.records.variants import VariantSpec

SIGN_OF_LIFE_S = 15.0  # where there is no terminal each sign is a line, and some preparations take hours

OnPhase = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to make a variant: where, on which of the study's GPUs, the command's log, and the lock that whatever is
    left of the command still holds."""

    place: Place
    gpus: Sequence[str]
    log: Path
    lock: int


def make(recipe: Recipe, attempt: Attempt, on_phase: OnPhase) -> Failure | None:
    """Run the command until `place.partial` holds the checkpoint; None when it does, else why it doesn't.

    The log is written anew. Raises EnvironmentFault when `env` refers to a variable that isn't set, KeyboardInterrupt
    when the user interrupts; the command is stopped by then.
    """
    variant, log, partial = recipe.variant, attempt.log, attempt.place.partial
    argv = recipe.argv(partial)
    with kept(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"$ {shlex.join(argv)}\n", encoding="utf-8")
    secrets, env = secrets_of(variant.env), _environment(variant, attempt.gpus)
    with engine_process(argv, env=env, log=log, secrets=secrets, locks=(attempt.lock,)) as process:
        process.grace_s = GRACE_S  # it may save what it has
        if process.error is not None:
            return not_started(variant.name, process.error)
        ended = _until_it_ends(process, variant, partial, on_phase)
        text = f"{read_log(log, secrets)}{kernel_words(process.oom_kills)}"
    if not ended:
        return too_slow(variant.name, variant.timeout_s, "".join(tail(text, 1)).strip())
    if process.exit_code() != 0:
        return failed(variant.name, process.exit_code(), text.partition("\n")[2])
    faults = list(faults_in(partial))
    return not_whole(variant.name, faults) if faults else None


def _environment(variant: VariantSpec, gpus: Sequence[str]) -> dict[str, str]:
    env = resolved_env(variant.env)
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus else {}
    return {**os.environ, **activated(variant.command, env), **devices, **env}


def _until_it_ends(process: EngineProcess, variant: VariantSpec, partial: Path, on_phase: OnPhase) -> bool:
    """Whether it ended by itself, in time; says now and then how far it is."""
    began = time.monotonic()
    while process.exit_code() is None:
        spent_s = time.monotonic() - began
        if spent_s > variant.timeout_s:
            return False
        on_phase(f"preparing {variant.name}: {spent_s:.0f} s, {size_bytes(partial) / GIB:.2f} GiB written")
        process.wait(min(SIGN_OF_LIFE_S, variant.timeout_s))
    return True
