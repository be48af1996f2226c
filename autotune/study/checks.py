"""What one field's bounds can't say: checks over several fields, run by the forms.

Each raises one pydantic error that carries every fault found: our message, hint, and the key below the checked value.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import PydanticCustomError

from autotune.records.metrics import MetricKind, known_names, parse_metric
from autotune.records.spec import (
    NAMED_SAMPLERS,
    ContainerSpec,
    EngineKind,
    HardwareSpec,
    ParamValue,
    SamplerSpec,
    SimulateSpec,
)

T = TypeVar("T")
Key = str | int

OURS = "autotune"
"""The pydantic error type of everything raised here."""

_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|API_?KEY|ACCESS_KEY|CREDENTIALS?)$", re.IGNORECASE)
_ENV_OPTION = re.compile(r"(?:-e|--env)(?:[= ]\s*)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=.*", re.DOTALL)
_MOUNT = re.compile(r"[^:]+:/[^:]*(:[A-Za-z]+(,[A-Za-z]+)*)?")
_IMPORT_PATH = re.compile(r"(optunahub:[\w./-]+|[A-Za-z_][\w.]*):[A-Za-z_]\w*")
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong `at` a key path below the value that was checked."""

    message: str
    hint: str
    at: tuple[Key, ...] = ()


def _error(faults: Sequence[Fault]) -> PydanticCustomError:
    return PydanticCustomError(OURS, "{text}", {"text": faults[0].message, "faults": tuple(faults)})


def complain(faults: Sequence[Fault]) -> None:
    """Raise all `faults` as one error, when there are any."""
    if faults:
        raise _error(faults)


def wrong(message: str, hint: str = "", *at: Key) -> PydanticCustomError:
    """Return the error of one fault, to raise."""
    return _error([Fault(message, hint, at)])


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return `did you mean …`, or `otherwise` when nothing known is close to `word`."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else otherwise


def exactly_one(first: str, one: object, second: str, other: object) -> None:
    """Exactly one of two keys is given."""
    if (one is None) == (other is None):
        got = "neither" if one is None else "both"
        raise wrong(f"needs exactly one of {first} and {second}, got {got}", f"give {first} or {second}")


def known_metric(name: str) -> str:
    """The metric exists."""
    if parse_metric(name) is None:
        hint = did_you_mean(name, known_names(), f"known: {', '.join(known_names())}")
        raise wrong(f"there is no metric {name!r}", hint)
    return name


def no_nulls(args: dict[str, Any]) -> dict[str, Any]:
    """An engine default is expressed by leaving the name out."""
    hint = "give one, or leave the name out for the engine's default"
    complain([Fault("has no value", hint, (name,)) for name, value in args.items() if value is None])
    return args


def no_secrets(env: dict[str, str]) -> dict[str, str]:
    """Secrets enter by reference: the resolved study is written to disk and shared."""
    complain(
        [
            Fault("a secret must not stand in a study", f'write "${{{name}}}" and set it outside', (name,))
            for name, value in env.items()
            if _SECRET.search(name) and value and not _REFERENCE.fullmatch(value)
        ]
    )
    return env


def splits(command: str) -> str:
    """The command is one that a shell could split (no shell ever runs it)."""
    try:
        parts = shlex.split(command)
    except ValueError as error:
        raise wrong(f"can't be split into words: {error}", "close the quotes, or give a list") from None
    if not parts:
        raise wrong("is blank", "give the program, or leave the key out")
    return command


def simulates(kind: EngineKind, simulate: SimulateSpec | None) -> None:
    """`simulate` is for the simulated engine, a vLLM, and for the stand-ins of TensorRT-LLM and Triton, the last a
    server."""
    if simulate is None or kind is EngineKind.SIMULATED:
        return
    if kind not in (EngineKind.TENSORRT_LLM, EngineKind.TRITON):
        raise wrong(f"has no effect with kind {kind.value}", "remove it, or set kind: simulated", "simulate")
    if kind is EngineKind.TRITON and simulate.face != "server":
        raise wrong(f"{kind.value} is simulated by a server only", "set face: server", "simulate", "face")
    if simulate.face == "virtual" and simulate.faults:
        raise wrong("faults need a process to have them", "set simulate.face to server", "simulate", "faults")


def in_virtual_time(kind: EngineKind, simulate: SimulateSpec | None) -> bool:
    """Whether nothing is started and no time passes."""
    default = SimulateSpec() if kind is EngineKind.SIMULATED else None
    found = simulate or default
    return found is not None and found.face == "virtual"


def launches(kind: EngineKind, simulate: SimulateSpec | None, container: ContainerSpec | None) -> None:
    """A container is for engines that are started."""
    if container is not None and (in_virtual_time(kind, simulate) or kind is EngineKind.ENDPOINT):
        raise wrong("has no effect: nothing is launched", "remove it", "container")


def is_reached(kind: EngineKind, url: str | None, api_key_env: str | None) -> None:
    """An endpoint has an address, the others get theirs when they start."""
    if kind is EngineKind.ENDPOINT:
        if url is None:
            raise wrong("is missing", "add it: an endpoint runs already, as http://host:8000/v1", "url")
        return
    given = {"url": url, "api_key_env": api_key_env}
    hint = "remove it, or set kind: endpoint"
    complain([Fault(f"has no effect with kind {kind.value}", hint, (k,)) for k, v in given.items() if v is not None])


def starts_nothing(kind: EngineKind, *, given: Iterable[str]) -> None:
    """How an engine is started says nothing of one that runs already."""
    idle = ("command", "args", "env", "startup_timeout_s")
    if kind is EngineKind.ENDPOINT:
        complain([Fault("has no effect: nothing is launched", "remove it", (key,)) for key in idle if key in given])


SPACE_UNLESS_ENDPOINT: dict[str, Any] = {
    "if": {"properties": {"engine": {"properties": {"kind": {"const": "endpoint"}}}}},
    "else": {"required": ["search_space"]},
    "required": ["name", "model", "objective"],
    "oneOf": [{"required": ["engine"]}, {"required": ["engines"]}],
}
"""What the JSON Schema says of `measured_as_it_is` and of several engines; the reader reports a missing space beside
all other problems, and hands the forms one engine at a time."""


def measured_as_it_is(kind: EngineKind, *, given: Iterable[str]) -> None:
    """Nothing is tuned of an endpoint."""
    idle = ("search_space", "incumbent", "sampler", "quality", "finals")
    if kind is EngineKind.ENDPOINT:
        message, hint = "has no effect: an endpoint is measured as it is", "remove it"
        complain([Fault(message, hint, (key,)) for key in idle if key in given])


def answers_sessions(kind: EngineKind, simulate: SimulateSpec | None, sessions: object | None) -> None:
    """A turn waits for the answer before it, which virtual time, knowing every arrival beforehand, can't tell."""
    if sessions is not None and in_virtual_time(kind, simulate):
        at = ("objective", "workload", "sessions")
        raise wrong("a simulation in virtual time holds no sessions", "set engine.simulate.face: server", *at)


def container_is_sound(container: ContainerSpec) -> ContainerSpec:
    """There is an image; mounts are pairs; options carry no values of the environment, which every `ps` would show."""
    complain(list(_container_faults(container)))
    return container


def _container_faults(container: ContainerSpec) -> Iterator[Fault]:
    if not container.image.strip():
        yield Fault("is empty", "name the image, as vllm/vllm-openai:v0.11.0", ("image",))
    for index, mount in enumerate(container.mounts):
        if not _MOUNT.fullmatch(mount):
            yield Fault(f"{mount!r} is not a mount", "write host:/container or host:/container:ro", ("mounts", index))
    for index, option in enumerate(container.options):
        before = container.options[index - 1] if index else ""
        given = _ENV_OPTION.fullmatch(f"{before} {option}" if before in ("-e", "--env") else option)
        if given:
            name = given["name"]
            hint = f'set {name} under engine.env, a secret as "${{{name}}}"'
            yield Fault(f"a value of {name} must not stand on a command line", hint, ("options", index))


def gpus_are_sound(hardware: HardwareSpec) -> HardwareSpec:
    """GPU indices are not negative, ids not blank, none named twice."""
    complain(list(_gpu_faults(hardware.gpus or ())))
    return hardware


def _gpu_faults(gpus: tuple[int | str, ...]) -> Iterator[Fault]:
    for index, gpu in enumerate(gpus):
        if gpu in gpus[:index]:
            yield Fault(f"GPU {gpu} is named twice", "name each once", ("gpus", index))
        if gpu == "" or (isinstance(gpu, int) and gpu < 0):
            yield Fault(f"there is no GPU {gpu!r}", "give an index from 0, or a UUID", ("gpus", index))


def sampler_called(kind: str) -> str:
    """A sampler by its name or import path alone."""
    complain(list(_kind_faults(kind, ())))
    return kind


def sampler_is_sound(sampler: SamplerSpec) -> SamplerSpec:
    """The sampler is one of ours or has an import path, which alone takes arguments."""
    faults = list(_kind_faults(sampler.kind, ("kind",)))
    if sampler.kind in NAMED_SAMPLERS and sampler.kwargs:
        hint = "name the class by its path to set its arguments: optuna.samplers:TPESampler"
        faults.append(Fault(f"has no effect with kind {sampler.kind}", hint, ("kwargs",)))
    if sampler.kind != "auto" and sampler.stop_when_settled:
        faults.append(Fault("only auto can tell when it is settled", "remove it", ("stop_when_settled",)))
    complain(faults)
    return sampler


def _kind_faults(kind: str, at: tuple[Key, ...]) -> Iterator[Fault]:
    if kind in NAMED_SAMPLERS or _IMPORT_PATH.fullmatch(kind):
        return
    known = f"one of {', '.join(NAMED_SAMPLERS)}, or a path: optuna.samplers:CmaEsSampler"
    yield Fault(f'"{kind}" is not known here', did_you_mean(kind, NAMED_SAMPLERS, known), at)


def range_is_sound(bounds: tuple[float, float], key: str, *, log: bool, stepped: bool) -> None:
    """low <= high; a logarithmic range is above 0 and has no step."""
    low, high = bounds
    if low > high:
        raise wrong(f"lower bound {low} is above upper bound {high}", f"write [{high}, {low}]", key)
    if log and low <= 0:
        raise wrong(f"a logarithmic range must start above 0, got {low}", "raise it, or drop log", key)
    if log and stepped:
        raise wrong("log and step don't go together", "drop one of them", "step")


def all_different(values: list[ParamValue]) -> list[ParamValue]:
    """No two values are equal, as 1 and true are."""
    complain(
        [
            Fault(f"{value!r} equals an earlier value", "keep one of them", (index,))
            for index, value in enumerate(values)
            if value in values[:index]
        ]
    )
    return values


def ordered(bounds: tuple[int, int]) -> tuple[int, int]:
    """low <= high."""
    low, high = bounds
    if low > high:
        raise wrong(f"lower bound {low} is above upper bound {high}", f"write [{high}, {low}]")
    return bounds


def limits_are_sound(slos: dict[str, T]) -> dict[str, T]:
    """Limits are above 0, since a miss is told relative to them; shares of one lie in 0 to 1."""
    complain([fault for name, slo in slos.items() for fault in _limit_faults(name, slo)])
    return slos


def _limit_faults(name: str, slo: object) -> Iterator[Fault]:
    key = next((key for key in ("min", "max") if hasattr(slo, key)), None)
    limit = slo if key is None else getattr(slo, key)
    at = (name,) if key is None else (name, key)
    metric = parse_metric(name)
    if not isinstance(limit, int | float) or metric is None:
        return
    if metric.kind is MetricKind.RATIO:
        if not 0 <= limit <= 1:
            yield Fault(f"a ratio lies in 0 to 1, got {limit:g}", "0.01 is one in a hundred", at)
    elif limit <= 0:
        yield Fault(f"must be above 0, got {limit:g}", f"give it in the unit of {metric.base}", at)
