"""While a level runs: the judge, asked early. A plan and the levels before it come in, a `slo.Stopper` goes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from autotune import measure, slo
from autotune.records.spec import ObjectiveSpec, PriceSpec
from autotune.records.trial import ClientHealth, LevelPlan, LevelRecord, Measurement, RequestRecord
from autotune.trial.judging import measured, pooled

_UNKNOWN_CLIENT = ClientHealth(send_lag_p99_ms=None, cpu_ratio=None)  # known once the level has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """What the rulings on one launch's levels need beside the levels: see `judging.measured`. `early`: whether a level
    may end once its verdict is settled; else only the guard ends it before its time."""

    objective: ObjectiveSpec
    gpus: int = 1
    startup_s: float | None = None
    price: PriceSpec | None = None
    early: bool = True

    def stopper(self, plan: LevelPlan, earlier: Sequence[LevelRecord] = ()) -> slo.Stopper:
        """Return what ends a level of `plan` early; `earlier` are the launch's levels that it is judged with.

        Turns of a session are sent when the one before has ended, so the part of such a level that is resolved has no
        end in time: only the guard ends it.
        """
        objective, planned = self.objective, None
        if plan.offered_rps:
            planned = round(plan.offered_rps * plan.duration_s)
        return slo.Stopper(
            guard=slo.overload_guard(objective, planned),
            rule=None if objective.workload.sessions or not self.early else self._rule(plan, earlier),
            metric=objective.metric,
        )

    def _rule(self, plan: LevelPlan, earlier: Sequence[LevelRecord]) -> slo.Rule:
        taken = tuple(earlier)

        @cache
        def before() -> list[tuple[LevelRecord, Measurement]]:
            return [(level, self._measured(level)) for level in taken]

        def rule(requests: Sequence[RequestRecord], until_s: float) -> slo.Standing | None:
            begin = measure.warm_from_s(requests, window_s(plan))
            if until_s <= begin:
                return None
            level = LevelRecord(
                plan_seed=plan.seed,
                offered_rps=plan.offered_rps,
                concurrency=plan.concurrency,
                window_s=(begin, until_s),
                requests=tuple(requests),
                client=_UNKNOWN_CLIENT,
            )
            levels = [*before(), (level, self._measured(level))]
            return slo.Standing(
                verdict=slo.judge(self.objective, levels),
                objective=pooled(self.objective.metric, [measurement for _, measurement in levels]),
            )

        return rule

    def _measured(self, level: LevelRecord) -> Measurement:
        return measured(level, self.objective, self.gpus, self.startup_s, self.price, usual=False)


def window_s(plan: LevelPlan) -> tuple[float, float]:
    """Return the window of measurement as it is planned, before warm-up is extended by evidence."""
    return plan.warmup_s, plan.warmup_s + plan.duration_s


def ended(level: LevelRecord, plan: LevelPlan, stopper: slo.Stopper | None = None) -> LevelRecord:
    """Return a level that ended with the window that its figures are taken from: begun once the engine was warm, ending
    where its verdict was settled."""
    return measure.warmed_up(level if stopper is None else stopper.trimmed(level), window_s(plan))
