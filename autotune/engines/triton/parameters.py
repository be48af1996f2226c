"""What may be set of Triton itself, beside TensorRT-LLM's options: names, types and bounds, and rules over several.

After ModelDynamicBatching and ModelInstanceGroup of Triton's model_config.proto, and the checks of core's
model_config_utils.cc (2.60 to 2.73); not run.
"""

# ruff: noqa: ANN401  the value of an engine argument may be anything

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.engines.triton.repository import GROUPS, batch_size, instances, preferred, split, world_size
from autotune.records.spec import Args

FIELDS: Mapping[str, int] = {
    "dynamic_batching.max_queue_delay_microseconds": 0,
    "dynamic_batching.preferred_batch_size": 1,
    "instance_group.count": 1,
    "triton_config.max_batch_size": 1,
    "triton_config.cancellation_check_period_ms": 1,
}
"""By name, the least that each may be: all are whole numbers, and the batch sizes may be several."""

DEFAULTS: Args = {"instance_group.count": 1}

TUNER_OWNED = frozenset({"triton_config.decoupled"})
"""Nothing streams without it."""


def is_own(name: str) -> bool:
    """Whether an argument is Triton's, by its group."""
    return name.partition(".")[0] in GROUPS


def similar(name: str) -> str:
    """A "did you mean" for an unknown name."""
    close = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.4)
    return f"did you mean `{close[0]}`?" if close else f"Triton's are {', '.join(FIELDS)}"


def complaint(name: str, value: Any) -> str | None:
    """Why Triton would refuse this value of a known name, or None."""
    several = name == "dynamic_batching.preferred_batch_size" and isinstance(value, list | tuple) and value
    values = value if several else (value,)
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in values):
        return f"{value!r} is not a whole number"
    least = FIELDS[name]
    return next((f"{item} is below {least}" for item in values if item < least), None)


def own_leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """An argument of Triton's by dotted names: a group may be given as a mapping."""
    if isinstance(value, Mapping):
        yield from ((f"{name}.{key}", item) for key, item in value.items())
    else:
        yield name, value


def broken_rules(args: Args, gpus: int | None) -> Iterator[tuple[str, str]]:
    """Yield (name, why) of each rule over several arguments that does not hold; `gpus` None or 0: not known."""
    own, engine = split(args)
    batch, count, size = batch_size(own), instances(own), world_size(engine)
    if too_large := [each for each in preferred(own) if each > batch]:
        yield (
            "dynamic_batching.preferred_batch_size",
            f"preferred_batch_size {max(too_large)} is above triton_config.max_batch_size {batch}",
        )
    if gpus and count * size > gpus:
        each = "" if size == 1 else f" of {size} GPUs each"
        yield "instance_group.count", f"{count} instances{each} take {count * size} GPUs; the engine is given {gpus}"
