"""What one field's bounds can't say of requests and their arrival: checks over several fields, run by the forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from autotune.records.spec import BurstArrivals, CapacitySpec, LogNormalLength
from autotune.study.checks import Fault, complain, wrong

if TYPE_CHECKING:
    from autotune.study.objective_forms import ObjectiveForm, WorkloadForm

LOAD_KINDS = ("poisson_rps", "constant_rps", "gamma", "bursts", "ramp", "trace", "concurrency", "capacity")

_CAPACITY_OF = {"capacity_rps": "rps", "capacity_rps_per_gpu": "rps", "capacity_concurrency": "concurrency"}
_FROM_A_TRACE = ("input_tokens", "output_tokens", "correlation", "lengths", "prefix", "sessions", "dataset")
_FROM_A_DATASET = ("input_tokens", "correlation", "lengths", "prefix", "text")
_FROM_LENGTHS = ("input_tokens", "output_tokens", "correlation")


def one_load(given: Mapping[str, object]) -> None:
    """Exactly one kind of load is given."""
    found = [kind for kind, value in given.items() if value is not None]
    if len(found) != 1:
        got = " and ".join(found) if found else "none"
        raise wrong(f"needs exactly one kind of load, got {got}", f"give one of {', '.join(LOAD_KINDS)}")


def bursts_are_sound(bursts: BurstArrivals) -> BurstArrivals:
    """A burst is shorter than its period."""
    if bursts.burst_s >= bursts.every_s:
        message = f"a burst of {bursts.burst_s:g} s fills its period of {bursts.every_s:g} s"
        raise wrong(message, "make every_s longer", "burst_s")
    return bursts


def capacity_is_sound(capacity: CapacitySpec) -> CapacitySpec:
    """The bounds of the search are in order; clients of a closed loop are counted whole."""
    bounds = [(key, value) for key in ("low", "high") if (value := getattr(capacity, key)) is not None]
    if len(bounds) == 2 and capacity.low >= capacity.high:  # type: ignore[operator]
        raise wrong(f"lower bound {capacity.low:g} is not below upper bound {capacity.high:g}", "swap them", "low")
    if capacity.of == "concurrency":
        hint = "clients are counted whole"
        complain([Fault(f"expected a whole number, got {value:g}", hint, (key,)) for key, value in bounds if value % 1])
    return capacity


def lognormal_is_sound(length: LogNormalLength) -> LogNormalLength:
    """The median lies within the bounds."""
    if length.low > length.high:
        raise wrong(f"lower bound {length.low} is above upper bound {length.high}", "swap them", "low")
    if not length.low <= length.median <= length.high:
        raise wrong(f"median {length.median:g} is outside {length.low} to {length.high}", "move it inside", "median")
    return length


def workload_is_sound(workload: WorkloadForm) -> None:
    """Requests have one source; what has no effect beside it is refused."""
    given = workload.model_fields_set
    if workload.dataset is not None:
        complain(list(_idle(given, _FROM_A_DATASET, "a dataset has its own prompts", "dataset")))
    elif workload.lengths is not None:
        complain(list(_idle(given, _FROM_LENGTHS, "a file of lengths has both lengths", "lengths")))
    elif (workload.input_tokens is None) != (workload.output_tokens is None):
        raise wrong("needs input_tokens and output_tokens, or a dataset", "give the lengths in tokens")
    if workload.correlation and int in {type(workload.input_tokens), type(workload.output_tokens)}:
        raise wrong("has no effect on a fixed length", "remove it, or spread both lengths", "correlation")


def _idle(given: set[str], without_effect: tuple[str, ...], message: str, beside: str) -> Iterator[Fault]:
    for key in without_effect:
        if key in given:
            yield Fault(message, f"remove {key} or {beside}", (key,))


def prefix_fits(prefix_tokens: int, shortest_input: int) -> None:
    """Every prompt is longer than the beginning that it shares."""
    if prefix_tokens >= shortest_input:
        message = f"a shared prefix of {prefix_tokens} tokens does not fit the shortest prompt, {shortest_input}"
        raise wrong(message, "raise the lower bound of input_tokens above it", "prefix", "tokens")


def goes_together(objective: ObjectiveForm) -> None:
    """Workload, load, metrics and SLOs suit one another."""
    complain([*_source_faults(objective), *_capacity_faults(objective)])


def _source_faults(objective: ObjectiveForm) -> Iterator[Fault]:
    workload = objective.workload
    if objective.load.trace is not None:
        for fault in _idle(workload.model_fields_set, _FROM_A_TRACE, "a trace has its own requests", "load.trace"):
            yield Fault(fault.message, fault.hint, ("workload", *fault.at))
    elif workload.dataset is None and workload.lengths is None and workload.input_tokens is None:
        message = "needs input_tokens and output_tokens, or a dataset"
        yield Fault(message, "give the lengths in tokens", ("workload",))


def _capacity_faults(objective: ObjectiveForm) -> Iterator[Fault]:
    searched = objective.load.capacity_spec
    key = "minimize" if objective.maximize is None else "maximize"
    named: list[tuple[tuple[str, ...], str]] = [((key,), objective.maximize or objective.minimize or "")]
    named += [(("slos", name), name) for name in objective.slos]
    for at, metric in named:
        of = _CAPACITY_OF.get(metric)
        if of is not None and (searched is None or searched.of != of):
            yield Fault(f"{metric} is found by a search for it only", f"write load: {{capacity: {of}}}", at)
    if searched is not None and not objective.slos:
        yield Fault("a capacity is the load at which SLOs hold: there are none", "add slos", ("load", "capacity"))
