"""Whether the engines of one study would be treated alike: what differs is refused, or told before the first launch.

A comparison is no better than its weakest equality: other weights or tokenizers, another GPU, more room to be spread
over, and the figures speak of different things.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from autotune.records.spec import Args, Choice, EngineKind, IntRange, SimulateSpec, SpaceSpec, StudySpec
from autotune.study.checks import Fault

LEAST = 2  # engines, and launches of each: its reference and one more
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")

SAME_TEXT: Mapping[str, tuple[str, ...]] = {
    "tokenizers": ("tokenizer", "tokenizer_revision", "tokenizer_mode"),
    "weights": ("revision", "load_format"),
}
"""Arguments, alike in vLLM and TensorRT-LLM, that decide what is served: they must be fixed alike."""

NUMBER_FORMATS = ("quantization", "quant_config", "dtype", "kv_cache_dtype", "kv_cache_config")
"""Arguments that may change numbers, under names of each engine's own, so that only people can tell whether they are
alike; of `kv_cache_config` its `dtype` alone."""

LENGTHS = ("max_model_len", "max_seq_len")
SPREADS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def name_fault(name: str) -> str | None:
    """Return what names of engines are like, where `name` is none."""
    return None if _NAME.fullmatch(name) else "start with a letter, then letters, digits, '_' or '-', at most 40"


def unequal(spec: StudySpec) -> Iterator[Fault]:
    """Yield why engines can't be compared at all."""
    studies = _studies(spec)
    yield from _machine_faults(studies)
    for what, names in SAME_TEXT.items():
        fixed = {name: {n: one.engine.args[n] for n in names if n in one.engine.args} for name, one in studies.items()}
        yield from _differing(fixed, f"the engines would serve different {what}", "fix the same for each", "args")
    least = LEAST * len(studies)
    if spec.budget.trials < least:
        hint = f"at least {least}: a reference and one more of each"
        yield Fault(f"{spec.budget.trials} trials are too few for {len(studies)} engines", hint, ("budget", "trials"))
    if spec.variants:
        hint = "one engine loads what another can't: give each engine a study, then autotune compare RUN RUN"
        yield Fault("checkpoints can't be searched over several engines", hint, ("variants",))
    if spec.sampler.kind == "grid":
        hint = "use auto, tpe or random"
        yield Fault("a grid can't be laid over several engines", hint, ("sampler", "kind"))


def _machine_faults(studies: Mapping[str, StudySpec]) -> Iterator[Fault]:
    simulated = {name: "simulated" if one.simulated else "real" for name, one in studies.items()}
    yield from _differing(simulated, "a simulated engine can't be compared with a real one", "simulate all, or none")
    gpus = {name: (one.engine.simulate or SimulateSpec()).gpu for name, one in studies.items() if one.simulated}
    yield from _differing(gpus, "the engines are simulated on different GPUs", "give each the same", "simulate", "gpu")


def _differing(values: Mapping[str, Any], message: str, hint: str, *at: str) -> Iterator[Fault]:
    first, *others = values.items()
    for name, value in others:
        if value != first[1]:
            yield Fault(
                f"{message}: {first[0]} {_shown(first[1])}, {name} {_shown(value)}", hint, ("engines", name, *at)
            )


def uneven(spec: StudySpec, gpus: int) -> Iterator[str]:
    """Yield what a reader of the result should know: treatment that may favour one engine, yet may be meant.

    `gpus`: how many the study has. Nothing of a study of one engine.
    """
    if not spec.engines:
        return
    looks: Mapping[str, Callable[[StudySpec], object]] = {
        "an instance may be spread over other numbers of GPUs": lambda one: _spreads(one, gpus),
        "the longest request that is provided for is not fixed alike": _length,
        "number formats are fixed; are they the same?": _formats,
        "parameters that may change the output are searched of some only": _output_changing,
        "one is simulated in virtual time, another by a server on this machine": _face,
    }
    for what, look in looks.items():
        found = {name: look(one) for name, one in _studies(spec).items()}
        if len({str(value) for value in found.values()}) > 1:
            yield f"equal treatment: {what}: {', '.join(f'{name} {_shown(value)}' for name, value in found.items())}"


def _spreads(one: StudySpec, gpus: int) -> tuple[int, ...]:
    """The numbers of GPUs that one instance may take, over every kind of parallelism."""
    each = [_allowed(one.search_space, one.engine.args, name) for name in SPREADS]
    return tuple(sorted({math.prod(sizes) for sizes in product(*each) if math.prod(sizes) <= gpus}))


def _allowed(space: SpaceSpec, args: Args, name: str) -> tuple[int, ...]:
    if name in args:
        return (args[name],) if isinstance(args[name], int) else (1,)
    match next((parameter.domain for parameter in space.parameters if parameter.name == name), None):
        case Choice(values=values):
            return tuple(value for value in values if isinstance(value, int))
        case IntRange(low=low, high=high, step=step):
            return tuple(range(low, high + 1, step))
    return (1,)


def _length(one: StudySpec) -> object:
    return next((one.engine.args[name] for name in LENGTHS if name in one.engine.args), "by the workload or the model")


def _formats(one: StudySpec) -> tuple[str, ...]:
    args = one.engine.args
    cache = args.get("kv_cache_config")
    fixed = {name: args[name] for name in NUMBER_FORMATS if name in args and name != "kv_cache_config"}
    if isinstance(cache, Mapping) and "dtype" in cache:
        fixed["kv_cache_config.dtype"] = cache["dtype"]
    return tuple(f"{name} {value}" for name, value in fixed.items() if value != "auto")


def _output_changing(one: StudySpec) -> bool:
    searched = one.quality == "unchecked" or one.objective.quality is not None
    return searched and any(parameter.changes_output for parameter in one.search_space.parameters)


def _face(one: StudySpec) -> str | None:
    if not one.simulated:
        return None
    default = SimulateSpec() if one.engine.kind is EngineKind.SIMULATED else SimulateSpec(face="server")
    return (one.engine.simulate or default).face


def _studies(spec: StudySpec) -> dict[str, StudySpec]:
    return {str(name): spec.of_engine(name) for name in spec.engine_names}


def _shown(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case tuple():
            return f"[{'; '.join(map(str, value))}]" if value else "none"
        case dict():
            return ", ".join(f"{name} {given}" for name, given in value.items()) or "none"
    return str(value)
