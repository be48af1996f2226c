"""Does the capacity that the twin tells hold on a real vLLM? One launch on the CPU, about 5 minutes.

    make vllm-env && python -m benchmarks.capacity.vllm_cpu

Searches the capacity, then runs long levels at 0.9, 1.0 and 1.1 of it on the same server: the SLOs should hold at the
first and fail at the last.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from autotune import load
from autotune.engines.base import Server, engine_for
from autotune.measure import measure
from autotune.records.spec import CapacitySpec, LoadSpec, ObjectiveSpec, Slo, StudySpec
from autotune.records.trial import Candidate, Role, fingerprint
from autotune.trial.draining import Drain
from autotune.trial.loading import load_server
from benchmarks.simulator.vllm_cpu_grid import study

SLOS = (Slo(metric="ttft_ms.p90", limit=500.0), Slo(metric="tpot_ms.p90", limit=60.0))
SHARES = 0.9, 1.0, 1.1
LONG_S, WARMUP_S = 35.0, 3.0


def main() -> int:
    base = study()
    goal = replace(
        base.objective,
        slos=SLOS,
        metric="capacity_rps",
        load=LoadSpec(capacity=CapacitySpec(low=1.0, high=60.0, load_s=100.0), duration_s=20.0, warmup_s=WARMUP_S),
    )
    spec = replace(base, objective=goal)
    args = dict(spec.engine.args)
    candidate = Candidate(params={}, args=args, role=Role.REFERENCE, fingerprint=fingerprint("vllm", spec.model, args))
    folder = Path(tempfile.mkdtemp(prefix="vllm-cpu-capacity-"))
    with engine_for(spec).launch(candidate, trial_dir=folder, gpus=(), on_phase=tell) as server:
        found = load_server(spec, server, tell)
        print(found.failure or found.capacity)
        if found.capacity is None or not found.capacity.value.value:
            return 1
        for index, share in enumerate(SHARES):
            print(check(spec, goal, server, share * found.capacity.value.value, index))
    return 0


def check(spec: StudySpec, goal: ObjectiveSpec, server: Server, rate: float, index: int) -> str:
    """One long level: each SLO's figure and share of violations."""
    asked = replace(goal.load, capacity=None, poisson_rps=rate, duration_s=LONG_S)
    plan = load.build_level(
        goal.workload,
        asked,
        seed=900_000 + index,
        vocab_size=server.vocab_size,
        max_total_tokens=server.max_model_len,
        model=spec.model,
    )
    level = load.run_level(server.endpoint, plan)
    Drain(server)()
    measured = measure(level, metrics=(), slos=SLOS, gpus=1, confidence=0.95)
    told = [
        f"{v.metric} {measured.values[v.metric].value:.1f} (limit {v.limit:g}), {v.violated} of {v.judged} over it"
        for v in measured.violations
    ]
    return f"{rate:.2f} req/s: {', '.join(told)}"


def tell(phase: str) -> None:
    print(phase, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
