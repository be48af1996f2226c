"""A `Report` in words, a line each."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.check.gather import Reference, Report, SloNeeds
from autotune.records.spec import LoadSpec
from autotune.report.words import SIMULATED, duration, plain, value_text


def lines(report: Report, load: LoadSpec) -> Iterator[str]:
    """Yield what `autotune check` prints; `load` is the objective's."""
    yield f"Study {plain(report.study)}: {plain(report.model)} on {report.engine}"
    if report.simulated:
        yield SIMULATED
    yield from _section("Hardware", _hardware(report))
    yield from _section("Space", _space(report))
    yield from _section("Checkpoints", _checkpoints(report))
    yield from _section("Excluded before a launch", _excluded(report))
    yield from _section("Reference", _reference(report.reference))
    yield from _section("Time, an estimate", _cost(report))
    yield from _section("SLOs", (_slo(slo, load) for slo in report.slos))
    yield from _section("Warnings", (plain(text) for text in report.warnings))


def _section(title: str, content: Iterator[str]) -> Iterator[str]:
    for index, line in enumerate(content):
        if index == 0:
            yield ""
            yield title
        yield f"  {line}"


def _hardware(report: Report) -> Iterator[str]:
    seen = report.hardware
    yield f"GPUs seen: {seen.get('gpus') or 'none'}; given to the engine: {', '.join(report.gpus) or 'none'}"
    yield f"processor: {seen.get('cpu') or 'unknown'}, {seen.get('cpu_cores_usable')} cores usable"
    names = ("vllm", "simulated_engine", "torch", "cuda", "driver")
    found = [f"{name} {seen[name]}" for name in names if seen.get(name)]
    yield f"engine: {', '.join(found) or 'its version is not known'}"


def _space(report: Report) -> Iterator[str]:
    width = max((len(dimension.name) for dimension in report.dimensions), default=0)
    for dimension in report.dimensions:
        condition = f"  (when {dimension.when})" if dimension.when else ""
        yield f"{dimension.name:<{width}}  {dimension.values}{condition}"
    if report.combinations is None:
        yield f"{len(report.dimensions)} parameters, some of them continuous"
    else:
        yield f"{len(report.dimensions)} parameters, at most {report.combinations:.3g} combinations"
    yield from map(plain, report.notes)


def _checkpoints(report: Report) -> Iterator[str]:
    for each in report.variants:
        if not each.made_by:
            yield f"{each.name}: {plain(each.path)}"
        elif each.ready:
            yield f"{each.name}: ready in {plain(each.path)}, made in {duration(each.prepare_s or 0.0)}"
        else:
            needs = (
                "no word of its disk space" if each.needs_disk_gib is None else f"{each.needs_disk_gib:.4g} GiB of disk"
            )
            yield f"{each.name}: to be made in {plain(each.path)}; {needs}, {each.free_disk_gib:.4g} GiB are free"
            yield f"  {plain(shlex.join(each.made_by))}"


def _excluded(report: Report) -> Iterator[str]:
    yield f"{report.launchable} of {report.sampled} random candidates could be launched"
    for each in report.excluded:
        yield f"{each.source}: {each.count} ({each.count / report.sampled:.0%})"
        for reason, count in each.reasons:
            yield f"  {count} x {plain(reason)}"


def _reference(reference: Reference) -> Iterator[str]:
    yield f"arguments: {_arguments(reference.args) or 'the defaults of the engine'}"
    if reference.failure is not None:
        yield f"can't run ({reference.refused_by}): {plain(reference.failure.cause)}"
        if reference.failure.remedy:
            yield f"remedy: {plain(reference.failure.remedy)}"
    if reference.resolved:
        yield f"as the engine resolves it: {_arguments(reference.resolved)}"


def _arguments(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{plain(name)}={value_text(value)}" for name, value in sorted(args.items()))


def _cost(report: Report) -> Iterator[str]:
    cost = report.cost
    how = "" if cost.startup_known else ", assumed: model or GPU are not in the tables"
    yield f"start-up: {duration(cost.startup_s)} a launch, the first {duration(cost.first_startup_s)}{how}"
    yield f"load: {duration(cost.load_s)} a launch"
    limit = f", ended after {cost.hours_limit:g} hours" if cost.hours_limit else ""
    where = "; that is what an engine would take: simulated, it is seconds" if report.simulated else ""
    yield f"{cost.trials} launches: {duration(cost.total_s)}{limit}{where}"
    if cost.finals[1]:
        soak = f", a soak of {duration(cost.soak_s)} among them" if cost.soak_s else ""
        span = f"{duration(cost.finals_s[0])} to {duration(cost.finals_s[1])}"
        yield f"finals: {cost.finals[0]} to {cost.finals[1]} launches more, {span}{soak}"


def _slo(slo: SloNeeds, load: LoadSpec) -> str:
    if slo.needed is None:
        return f"{slo.metric}: judged by its interval"
    if math.isinf(slo.needed):
        return f"{slo.metric}: a limit of {slo.limit:g} can be failed, never proven"
    text = f"{slo.metric}: takes {slo.needed:.0f} samples without a violation to pass"
    if slo.expected is not None:
        return f"{text}; this load gives about {slo.expected:.0f}"
    if load.concurrency is not None:
        longest_s = load.concurrency * load.duration_s * load.repeats / slo.needed
        return f"{text}: {load.concurrency} clients send them if an answer takes {longest_s:.2g} s or less on average"
    return text
