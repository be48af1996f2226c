"""How a final is launched: the study's setting and the records come in, those of one launch go out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.records.finals import FinalRun, FinalStage
from autotune.records.spec import EngineKind, FinalsSpec, StudySpec
from autotune.records.trial import Candidate, Role, TrialRecord
from autotune.trial.run import TrialSetting
from autotune.trial.soaking import soak_load

SEEDS_APART = 1_000_003
"""Between the traffic of the search and of each round: the winner may have suited one sequence of requests."""

MOST_SEED = 2**31


def candidate_of(record: TrialRecord) -> Candidate:
    """Return the configuration of a trial, to be launched again."""
    return Candidate(
        params=record.params,
        args=record.args,
        role=Role.FINAL,
        fingerprint=record.fingerprint,
        engine=record.engine,
        checkpoint=None if record.checkpoint is None else record.checkpoint.name,
    )


def announced(run: FinalRun, records: Sequence[TrialRecord]) -> Iterator[str]:
    """Yield what the user is told before a final: that they begin, and how long a soak takes."""
    if run.stage is FinalStage.SOAK:
        yield f"soak of trial {run.of}: one long level"
    elif run.round == 1 and not any(r.final is not None and r.final.after == run.after for r in records):
        yield "finals: the best few and the reference are launched again, until they separate"


def setting_of(setting: TrialSetting, run: FinalRun, records: Sequence[TrialRecord]) -> TrialSetting:
    """Return the setting of a final: requests of its round's own, the same for all in it; for a soak one long level."""
    spec = setting.spec
    fresh = replace(spec, seed=(spec.seed + SEEDS_APART * (1 + run.round + 100 * run.heat)) % MOST_SEED)
    if run.stage is FinalStage.SOAK and spec.finals is not None:
        load = soak_load(spec.objective.load, spec.finals.soak_s, _capacity(run, records))
        fresh = replace(fresh, objective=replace(spec.objective, load=load))
    return replace(setting, spec=fresh, final=run, shifts=shifts_wanted(spec))


def shifts_wanted(spec: StudySpec) -> bool:
    """Whether the soak's launch also shifts load and lengths: as the study says, else where it costs nothing."""
    asked = spec.finals or FinalsSpec()
    virtual = spec.engine.kind is EngineKind.SIMULATED and (
        spec.engine.simulate is None or spec.engine.simulate.face == "virtual"
    )
    return virtual if asked.shifts is None else asked.shifts


def _capacity(run: FinalRun, records: Sequence[TrialRecord]) -> float | None:
    """The least that the rounds found of the configuration."""
    found = [
        record.capacity.value.value
        for record in records
        if record.final is not None
        and (record.final.of, record.final.after) == (run.of, run.after)
        and record.capacity is not None
    ]
    return min(found, default=None)
