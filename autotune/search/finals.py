"""After the search: the best few and the reference are launched again until they separate, then the winner is soaked.

A pure function of the records: `finals_of` says what is known and which launch comes next, so that a tuner killed at
any instant goes on where it was. Rounds launch every configuration once, in an order that rotates; after each one
`separation` says who is behind. What the search itself measured is not used again: its best is the luckiest of many.
docs/finals.md tells the procedure and how often it errs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from autotune.records.finals import FinalRun, FinalStage
from autotune.records.spec import Direction, FinalsSpec, ObjectiveSpec, StudySpec
from autotune.records.trial import Outcome, TrialRecord
from autotune.search.costs import occupied_s
from autotune.search.separation import FIRST_LOOK, Look, Round
from autotune.search.winner import distance, finalists, ranking, reference_of

HEATS = 2
"""When none of the first finalists holds, the next best get one chance; then the search's figures were no guide."""

AUTO_ROUNDS = 5
SPENT, SEPARATED, EQUAL, VAIN = (
    "as many rounds as were allowed",
    "it separated from the others",
    "they differ by less than matters",
    "further rounds were not expected to separate them",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finals:
    """How the finals stand. Trials are named by the number that the search gave their configuration.

    `entered` are the finalists; `rounds` are the complete ones of this heat; `out` says why a configuration may not
    win; `behind` are those known to be worse than the leader. `next` is what is launched next, None when the finals are
    over. `winner` is None while rounds are missing, or where nothing held. `ties` could not be told from the winner.
    `why` the rounds ended.
    """

    entered: tuple[int, ...]
    reference: int | None
    heat: int
    rounds: tuple[Round, ...]
    look: Look
    out: Mapping[int, str] = field(default_factory=dict)
    behind: tuple[int, ...] = ()
    next: FinalRun | None = None
    winner: int | None = None
    ties: tuple[int, ...] = ()
    why: str = ""
    soak: TrialRecord | None = None

    @property
    def over(self) -> bool:
        """Whether there is nothing left to launch and something to say."""
        return self.next is None and bool(self.rounds)

    @property
    def lost(self) -> bool:
        """Whether none of the finalists may win any more."""
        return all(number in self.out for number in self.entered)


def finals_of(spec: StudySpec, records: Sequence[TrialRecord], *, late: bool = False) -> Finals | None:
    """Return how the finals of a study stand; None when they are off or there is nothing to compare.

    `late`: no time is left, so they end with what there is.
    """
    asked, searched = spec.finals, [record for record in records if record.final is None]
    if asked is None or not searched:
        return None
    after = searched[-1].number
    launched = [r for r in records if r.final is not None and r.final.after == after]
    standing: Finals | None = None
    for heat, contenders in enumerate(_heats(searched, spec.objective, asked)):
        if standing is not None and not standing.lost:
            break
        bench = _Heat(
            number=heat,
            spec=spec,
            asked=asked,
            searched={record.number: record for record in searched},
            finalists=contenders,
            reference=reference_of(searched),
            launched=[r for r in launched if r.final is not None and r.final.heat == heat],
            after=after,
            late=late,
        )
        found = bench.standing()
        if standing is not None and late and not found.rounds:  # no time for a second heat: the first one stands
            break
        standing = found
    return standing


def search_ended(spec: StudySpec, records: Sequence[TrialRecord]) -> str | None:
    """Why the search was over when a study that goes on was stopped in its finals; None when it is to be gone on with:
    no final was launched since its last trial, or the budget is another."""
    searched = [record.number for record in records if record.final is None]
    begun = [r.final for r in records if r.final is not None and r.final.after == searched[-1]]
    return next((final.ended for final in begun if final.budget == spec.budget), None)


def most_rounds(asked: FinalsSpec) -> int:
    """The rounds that are run at most."""
    return AUTO_ROUNDS if asked.rounds == "auto" else asked.rounds


def launches(asked: FinalsSpec | None) -> tuple[int, int]:
    """Return the least and the most launches that finals add to a study with a finalist, the soak included."""
    if asked is None:
        return 0, 0
    soaks, most = int(asked.soak_s > 0), most_rounds(asked)
    least = FIRST_LOOK if asked.rounds == "auto" else most
    return 2 * least + soaks, (asked.finalists + 1) * most + soaks


def reserve_s(spec: StudySpec, searched: Sequence[TrialRecord]) -> float:
    """Return seconds of the budget's hours that the search leaves to the shortest finals, at most half of them: as long
    as launches took so far."""
    taken = [record for record in searched if record.outcome.measured and record.wall_s > 0]
    if spec.finals is None or spec.budget.hours is None or not taken:
        return 0.0
    rounds, soaks = launches(spec.finals)[0], int(spec.finals.soak_s > 0)
    wall_s = fmean(record.wall_s for record in taken)
    speed = wall_s / fmean(occupied_s(record) for record in taken)  # of a simulation's clock; 1 for real engines
    return min((rounds - soaks) * wall_s + spec.finals.soak_s * speed, spec.budget.hours * 3600 / 2)


def _heats(
    searched: Sequence[TrialRecord], objective: ObjectiveSpec, asked: FinalsSpec
) -> Iterator[tuple[TrialRecord, ...]]:
    ranked = ranking(searched, objective)
    for _ in range(HEATS):
        chosen = finalists(ranked, asked.finalists, reference_of(searched))
        if not chosen:
            return
        yield chosen
        taken = {record.number for record in chosen}
        ranked = [record for record in ranked if record.number not in taken]


@dataclass(slots=True, kw_only=True)
class _Heat:
    """One field of finalists: its launches are replayed round by round."""

    number: int
    spec: StudySpec
    asked: FinalsSpec
    searched: Mapping[int, TrialRecord]
    finalists: tuple[TrialRecord, ...]
    reference: TrialRecord | None
    launched: Sequence[TrialRecord]
    after: int
    late: bool
    out: dict[int, str] = field(default_factory=dict)
    behind: dict[int, int] = field(default_factory=dict)
    """Who is known to be worse, and than whom: that leader may fail its soak."""
    rounds: list[Round] = field(default_factory=list)

    def standing(self) -> Finals:
        """Replay the rounds, then the soaks."""
        why = ""
        while not why:
            running = self._running()
            if not any(number in running for number in self.entered):
                why = "none of them held"
            elif (missing := self._round(running)) is not None:
                if not self.late:
                    return self._finals(next=missing)
                why = "no time was left"
            else:
                why = self._why_over()
        return self._decided(why)

    @property
    def entered(self) -> tuple[int, ...]:
        """The finalists' numbers."""
        return tuple(record.number for record in self.finalists)

    def _running(self) -> tuple[int, ...]:
        """Who is launched in the next round: finalists that may still win, and the reference for the gain."""
        arms = [n for n in self.entered if n not in self.out and n not in self.behind]
        measured = self.reference is not None and self.out.get(self.reference.number) != CRASHED
        return (*arms, self.reference.number) if self.reference is not None and measured else tuple(arms)

    def _round(self, running: tuple[int, ...]) -> FinalRun | None:
        """Take the next round in when it is complete, else return the launch that it wants next."""
        number = len(self.rounds) + 1
        found = {r.final.of: r for r in self._stage(FinalStage.ROUND) if r.final and r.final.round == number}
        turn = (number - 1) % len(running)
        for arm in (*running[turn:], *running[:turn]):
            if arm not in found:
                return self._run(arm, FinalStage.ROUND, number)
        for arm in running:
            if fault := why_out(found[arm]):
                self.out[arm] = fault
        beside = None if self.reference is None else self.reference.number  # its SLOs are no matter for the gain
        counted = [arm for arm in running if arm not in self.out or (arm == beside and self.out[arm] != CRASHED)]
        figures = {arm: found[arm].objective for arm in counted}
        self.rounds.append({arm: figure.value for arm, figure in figures.items() if figure is not None})
        return None

    def _why_over(self) -> str:
        """Drop who is behind; why no further round is needed, empty while one is."""
        look, most = self._look(), most_rounds(self.asked)
        alive = self._alive()
        if len(self.rounds) >= (FIRST_LOOK if self.asked.rounds == "auto" else most) and alive:
            leader = self._leader(alive)
            self.behind |= {n: leader for n in alive if n != leader and _above(look, leader, n, self._sign)}
        open_pairs = list(self._open_pairs(look))
        if len(self.rounds) >= most:
            return SPENT if open_pairs else SEPARATED
        if self.asked.rounds != "auto" or len(self.rounds) < FIRST_LOOK or not alive:
            return ""
        if not open_pairs:
            return SEPARATED
        if all(_equal(look, one, other, self.asked.equal_ratio) for one, other in open_pairs):
            return EQUAL
        return VAIN if all(look.hopeless(one, other) for one, other in open_pairs) else ""

    def _open_pairs(self, look: Look) -> Iterator[tuple[int, int]]:
        """The leader against who is not known to be behind it, the reference too."""
        alive = [n for n in self._alive() if n not in self.behind]
        if not alive:
            return
        leader = self._leader(alive)
        beside = [] if self.reference is None else [self.reference.number]
        for other in (*alive, *beside):
            if other != leader and not (_above(look, leader, other, 1.0) or _above(look, leader, other, -1.0)):
                yield leader, other

    def _decided(self, why: str) -> Finals:
        if not self.rounds:
            return self._finals(why=why)
        for soaked in self._stage(FinalStage.SOAK):
            fault = why_out(soaked) or (soaked.soak.failed if soaked.soak else None)
            if fault and soaked.final:
                self.out[soaked.final.of] = f"soak: {fault}"
        winner, ties = self._winner()
        if winner is None:
            return self._finals(why=why)
        soak = next((r for r in self._stage(FinalStage.SOAK) if r.final and r.final.of == winner), None)
        wanted = self.asked.soak_s > 0 and soak is None and not self.late
        after = self._run(winner, FinalStage.SOAK, 0) if wanted else None
        return self._finals(why=why, winner=winner, ties=ties, soak=soak, next=after)

    def _winner(self) -> tuple[int | None, tuple[int, ...]]:
        """Who is handed over: the nearest to the reference of those that can't be told from the leader."""
        look = self._look()
        may = [n for n in self._entrants() if n not in self.out and any(n in r for r in self.rounds)]
        if not may:
            return None, ()
        may = [n for n in may if self.behind.get(n) not in may]
        leader = self._leader(may)
        tied = [n for n in may if n == leader or not _above(look, leader, n, self._sign)]
        steps = {n: distance(self.searched[n], self.reference) for n in tied}
        winner = min(tied, key=lambda n: (steps[n], -self._sign * look.level(n).value))
        return winner, tuple(n for n in tied if n != winner)

    def _entrants(self) -> tuple[int, ...]:
        """Finalists, and the reference where it met the SLOs itself."""
        holds = self.reference is not None and contends(self.reference)
        return (*self.entered, self.reference.number) if self.reference is not None and holds else self.entered

    def _alive(self) -> list[int]:
        return [n for n in self._running() if n in self.entered and all(n in r for r in self.rounds)]

    def _leader(self, arms: Sequence[int]) -> int:
        look = self._look()
        return max(arms, key=lambda n: self._sign * look.level(n).value)

    @property
    def _sign(self) -> float:
        return 1.0 if self.spec.objective.direction is Direction.MAXIMIZE else -1.0

    def _look(self) -> Look:
        return Look(
            rounds=tuple(self.rounds),
            most=most_rounds(self.asked),
            pairs=len(self.entered),
            error=1 - self.spec.objective.confidence,
            sequential=self.asked.rounds == "auto",
        )

    def _stage(self, stage: FinalStage) -> list[TrialRecord]:
        return [r for r in self.launched if r.final is not None and r.final.stage is stage]

    def _run(self, of: int, stage: FinalStage, number: int) -> FinalRun:
        return FinalRun(of=of, stage=stage, heat=self.number, round=number, after=self.after, budget=self.spec.budget)

    def _finals(self, **known: object) -> Finals:
        standing = Finals(
            entered=self.entered,
            reference=None if self.reference is None else self.reference.number,
            heat=self.number,
            rounds=tuple(self.rounds),
            look=self._look(),
            out=dict(self.out),
            behind=tuple(sorted(n for n, leader in self.behind.items() if leader not in self.out)),
        )
        return replace(standing, **known)  # type: ignore[arg-type]


CRASHED = "it gave no figure"


def contends(record: TrialRecord) -> bool:
    """Whether a configuration met every SLO, so that it may be handed over."""
    return record.outcome is Outcome.OK and record.objective is not None


def why_out(record: TrialRecord) -> str | None:
    """Why a launch ends the candidature of its configuration, None while it doesn't: it gave no figure, or missed an
    SLO. Unsure is no miss."""
    soaked = record.final is not None and record.final.stage is FinalStage.SOAK
    figure = record.objective
    if not record.outcome.measured or (not soaked and (figure is None or figure.value <= 0)):
        return CRASHED
    if record.outcome is Outcome.SLO_MISS:
        missed = [slo.metric for slo in (record.verdict.slos if record.verdict else ()) if slo.ruling == "fail"]
        return f"it missed {', '.join(missed)}"
    return None


def _above(look: Look, one: int, other: int, sign: float) -> bool:
    """Whether `one` is known to be better."""
    ratio = look.ratio(one, other)
    if ratio is None or ratio.low is None or ratio.high is None:
        return False
    return ratio.low > 1 if sign > 0 else ratio.high < 1


def _equal(look: Look, one: int, other: int, margin: float) -> bool:
    ratio = look.ratio(one, other)
    return (
        ratio is not None
        and ratio.low is not None
        and ratio.high is not None
        and 1 / (1 + margin) < ratio.low
        and ratio.high < 1 + margin
    )
