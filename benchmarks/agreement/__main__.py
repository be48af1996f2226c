"""Do we and `vllm bench serve` measure the same throughput and TPOT on a real vLLM on the CPU?

    python -m benchmarks.agreement [--pairs 10] [--seconds 15]      # needs `make vllm-env`

One launch, so many interleaved pairs of runs (ours, theirs, theirs, ours, …), each of the same number of requests of
equal lengths with fresh tokens. Printed is the geometric mean of theirs / ours over the pairs, with its interval
(Student's t on the logarithms). Agreement is claimed only where the interval of a like-for-like ratio lies within 5 %.

Three readings, because the tools differ by definition before they differ by measurement:
- as each says it: theirs over the whole run, ramp-up and last answers included; ours over the window after warm-up;
- both by our definition, from each tool's own requests: what arrives from the end of the warm-up to the last sending;
- both by theirs, from each tool's own requests: all tokens over the time from the first sending to the last answer.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from autotune import load, space
from autotune.bench.crosscheck import Checker, ask_tool, checker, level_of, measured
from autotune.bench.replay import Replay, with_other_tokens
from autotune.engines.base import engine_for
from autotune.engines.endpoint import EndpointServer, address, connect
from autotune.measure.estimates import student_t
from autotune.records.spec import StudySpec
from autotune.records.trial import LevelPlan, LevelRecord
from autotune.study import load_study

STUDY = Path(__file__).parent / "vllm-cpu.yaml"
THEIRS = ".venv-vllm/bin/vllm bench serve"
WITHIN = 0.05
CONFIDENCE = 0.95
CALIBRATION_S = 8.0
LIMIT_S = 60.0  # a run that takes ten minutes longer than twice this is given up
OTHERS = 10_000  # seeds of their prompts are never those of ours
THROUGHPUT, TPOT = "output_tok_per_s", "tpot_ms.mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One run of each, as levels; `said` is what their tool printed."""

    ours: LevelRecord
    theirs: LevelRecord
    said: Mapping[str, float]


Values = tuple[float, float]
"""Throughput in tokens a second, TPOT in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A way to read a pair: (ours, theirs). `claims`: like for like, so that agreement may be claimed by it."""

    name: str
    read: Callable[[Pair, StudySpec], tuple[Values, Values]]
    claims: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    value: float
    low: float
    high: float

    @property
    def within(self) -> bool:
        return self.low >= 1 - WITHIN and self.high <= 1 + WITHIN


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=15.0, help="about how long a run of either lasts")
    options = parser.parse_args(argv)
    console, spec = Console(width=120), load_study(STUDY)
    checking = checker("vllm-bench", THEIRS)
    with launched(spec, console) as server:
        count = requests_in(spec, server, options.seconds)
        console.print(f"{options.pairs} pairs of {count} requests, {spec.objective.load.concurrency} at a time")
        pairs = []
        for seed in range(1, options.pairs + 1):
            pairs.append(run_pair(spec, server, checking, count, seed))
            console.print(f"pair {seed}: {short(pairs[-1], spec)}")
    found = list(readings(pairs, spec))
    console.print(table(found))
    agreed = all(ratio.within for reading, _, _, ratio in found if reading.claims)
    verdict = "they agree" if agreed else "agreement is NOT claimed"
    console.print(f"like for like within {WITHIN:.0%}, by {len(pairs)} pairs on one launch: {verdict}")
    return 0 if agreed else 1


@contextmanager
def launched(spec: StudySpec, console: Console) -> Iterator[EndpointServer]:
    """The engine's defaults, launched once."""
    engine = engine_for(spec)
    candidate = space.build_space(spec, gpus=1).reference(None)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-agreement-") as folder,
        engine.launch(candidate, trial_dir=Path(folder), gpus=(), on_phase=console.print) as server,
    ):
        yield connect(address(server.endpoint))


# --- runs -------------------------------------------------------------------------------------------------------------


def requests_in(spec: StudySpec, server: EndpointServer, seconds: float) -> int:
    """How many requests take so many seconds: a run by us, which warms the engine up too."""
    warm = replace(spec.objective.load, duration_s=CALIBRATION_S)
    plan = load.build_level(spec.objective.workload, warm, seed=999, vocab_size=server.vocab_size)
    level = load.run_level(server.endpoint, plan)
    done = [request.done_s for request in level.requests if request.error is None and request.done_s]
    return math.ceil(len(done) / max(done) * seconds)


def run_pair(spec: StudySpec, server: EndpointServer, checking: Checker, count: int, seed: int) -> Pair:
    """Ours first for odd seeds, theirs first for even ones: a drift of the machine cancels."""
    plan = plan_of(spec, server, count, seed)
    tokens = with_other_tokens(plan.requests[:], OTHERS + seed)
    replay = Replay(requests=tokens, concurrency=plan.concurrency, about_s=LIMIT_S)
    if seed % 2:
        ours = load.run_level(server.endpoint, plan)
        answered = ask_tool(checking, replay, server)
    else:
        answered = ask_tool(checking, replay, server)
        ours = load.run_level(server.endpoint, plan)
    return Pair(ours=full(ours), theirs=full(level_of(ours, answered)), said=answered.said)


def plan_of(spec: StudySpec, server: EndpointServer, count: int, seed: int) -> LevelPlan:
    """A closed loop of exactly `count` requests."""
    endless = replace(spec.objective.load, max_requests=count, duration_s=3600.0)
    return load.build_level(spec.objective.workload, endless, seed=seed, vocab_size=server.vocab_size)


def full(level: LevelRecord) -> LevelRecord:
    """The level with a window that ends with its last sending, while all clients are busy."""
    return replace(level, window_s=(level.window_s[0], max(request.sent_s for request in level.requests)))


def short(pair: Pair, spec: StudySpec) -> str:
    """Theirs / ours by our definition, to watch it going."""
    one, other = (by_us(level, spec) for level in (pair.ours, pair.theirs))
    return (
        f"throughput {other[0] / one[0]:.3f}, TPOT {other[1] / one[1]:.3f} (ours {one[0]:.0f} tok/s, {one[1]:.1f} ms)"
    )


# --- readings ---------------------------------------------------------------------------------------------------------


def by_us(level: LevelRecord, spec: StudySpec) -> tuple[float, float]:
    """Throughput in the window, and mean TPOT of the requests that began in it."""
    values = measured(level, spec.objective, gpus=1).values
    return values[THROUGHPUT].value, values[TPOT].value


def by_them(level: LevelRecord) -> tuple[float, float]:
    """Throughput from the first sending to the last answer, and mean TPOT of every request."""
    done = [request for request in level.requests if request.error is None and request.done_s is not None]
    first, last = min(r.sent_s for r in level.requests), max(r.done_s or 0.0 for r in done)
    tpots = [tpot for request in done if (tpot := request.tpot_ms) is not None]
    return sum(r.output_tokens or 0 for r in done) / (last - first), sum(tpots) / len(tpots)


def as_said(pair: Pair, spec: StudySpec) -> tuple[Values, Values]:
    return by_us(pair.ours, spec), (pair.said[THROUGHPUT], pair.said[TPOT])


def both_by_us(pair: Pair, spec: StudySpec) -> tuple[Values, Values]:
    return by_us(pair.ours, spec), by_us(pair.theirs, spec)


def both_by_them(pair: Pair, _spec: StudySpec) -> tuple[Values, Values]:
    return by_them(pair.ours), by_them(pair.theirs)


READINGS = (
    Reading(name="as each says it", read=as_said, claims=False),
    Reading(name="both by our definition", read=both_by_us, claims=True),
    Reading(name="both by theirs", read=both_by_them, claims=True),
)


# --- ratios -----------------------------------------------------------------------------------------------------------


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Geometric mean of theirs / ours over pairs, with Student's interval on the logarithms; open for one pair."""
    logs = np.log(np.array(theirs) / np.array(ours))
    mean = float(logs.mean())
    if len(logs) < 2:
        return Ratio(value=math.exp(mean), low=0.0, high=math.inf)
    half = student_t(CONFIDENCE, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Ratio(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def readings(pairs: Sequence[Pair], spec: StudySpec) -> Iterator[tuple[Reading, str, list[float], Ratio]]:
    """Yield (reading, metric, our values, ratio)."""
    for reading in READINGS:
        found = [reading.read(pair, spec) for pair in pairs]
        for index, metric in enumerate((THROUGHPUT, TPOT)):
            ours, theirs = ([values[side][index] for values in found] for side in (0, 1))
            yield reading, metric, ours, ratio_of(ours, theirs)


def table(found: Sequence[tuple[Reading, str, list[float], Ratio]]) -> Table:
    made = Table(
        "reading", "metric", "ours, mean", "theirs / ours", f"{CONFIDENCE:.0%} interval", f"within {WITHIN:.0%}"
    )
    for reading, metric, ours, ratio in found:
        span = f"{ratio.low:.3f}…{ratio.high:.3f}"
        within = "yes" if ratio.within else "no"
        made.add_row(reading.name, metric, f"{np.mean(ours):.4g}", f"{ratio.value:.3f}", span, within)
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
