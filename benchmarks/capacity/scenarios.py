"""What is searched: engines of different making under workloads and limits of their own, and what the twin is told."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.models.config import from_vllm_args
from autotune.models.shapes import gpu_of, shape_of
from autotune.models.twin import Twin
from autotune.records.spec import (
    CapacitySpec,
    Direction,
    LoadSpec,
    LogNormalLength,
    ObjectiveSpec,
    Slo,
    WorkloadSpec,
)
from benchmarks.capacity.engine import Physics

MAX_MODEL_LEN = 8192
BLOCK = 16
LEVEL_S, WARMUP_S = 30.0, 5.0
LOAD_S = 300.0

CHAT = WorkloadSpec(
    shape="chat",
    input_tokens=LogNormalLength(median=600, sigma=0.6, low=32, high=4000),
    output_tokens=LogNormalLength(median=200, sigma=0.6, low=8, high=1000),
)
LONG = WorkloadSpec(
    shape="rag",
    input_tokens=LogNormalLength(median=2500, sigma=0.4, low=500, high=6000),
    output_tokens=LogNormalLength(median=150, sigma=0.5, low=8, high=600),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`told_kv` is what the engine reports of its KV cache over what it has, `told_seqs` what of its slots (None: the
    truth). `noisy`: its speed changes, or it pauses."""

    name: str
    physics: Physics
    workload: WorkloadSpec = CHAT
    ttft_ms: float = 500.0
    tpot_ms: float = 50.0
    told_kv: float = 1.0
    told_seqs: int | None = None
    noisy: bool = False

    def objective(self, low: float, high: float, load_s: float = LOAD_S) -> ObjectiveSpec:
        """Most requests a second within the limits."""
        return ObjectiveSpec(
            name=self.name,
            metric="capacity_rps",
            direction=Direction.MAXIMIZE,
            slos=(Slo(metric="ttft_ms.p99", limit=self.ttft_ms), Slo(metric="tpot_ms.p99", limit=self.tpot_ms)),
            workload=self.workload,
            load=LoadSpec(
                capacity=CapacitySpec(low=low, high=high, load_s=load_s), duration_s=LEVEL_S, warmup_s=WARMUP_S
            ),
        )

    def twin(self) -> Twin:
        """Llama 3.1 8B on an H100, which none of these engines is, with the limits that the engine would report."""
        shape, gpu = shape_of("meta-llama/Llama-3.1-8B"), gpu_of("h100")
        assert shape is not None
        assert gpu is not None
        args = {
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": self.told_seqs or self.physics.max_num_seqs,
            "max_num_batched_tokens": self.physics.max_num_batched_tokens,
        }
        blocks = int(self.physics.kv_tokens * self.told_kv / BLOCK)
        return Twin(config=from_vllm_args(args, shape, gpu), blocks=blocks)


PLAIN = Physics(fixed_s=6e-3, per_token_s=3e-5, power=0.95, per_pair_s=2e-9, per_kv_s=4e-8, per_seq_s=1e-5)
SMALL = replace(PLAIN, fixed_s=2e-3, per_token_s=8e-6, per_kv_s=1.2e-8, per_seq_s=2e-5)

STARVED = replace(PLAIN, kv_tokens=45_000)
ATTENTIVE = replace(PLAIN, per_pair_s=1.6e-8)

TUNING = (
    Scenario(name="plain", physics=PLAIN),
    Scenario(name="prompts first", physics=replace(PLAIN, prompts_first=True), tpot_ms=45.0),
    Scenario(name="one prompt at a time", physics=replace(PLAIN, one_prompt=True), ttft_ms=800.0),
    Scenario(name="few slots", physics=replace(PLAIN, max_num_seqs=32), ttft_ms=1000.0),
    Scenario(name="whole answers reserved", physics=replace(PLAIN, reserve=True, kv_tokens=60_000), ttft_ms=1000.0),
    Scenario(name="small model", physics=SMALL, ttft_ms=200.0, tpot_ms=20.0),
    Scenario(name="long prompts, dear attention", physics=ATTENTIVE, workload=LONG, ttft_ms=1500.0, tpot_ms=60.0),
    Scenario(name="KV cache a quarter smaller", physics=STARVED, told_kv=1.33, ttft_ms=1000.0, tpot_ms=60.0),
    Scenario(name="speed drifts 4 %", physics=replace(PLAIN, drift=0.04, jitter=0.05), noisy=True),
    Scenario(name="pauses", physics=replace(PLAIN, pause_s=0.4, pause_every_s=12.0), noisy=True, ttft_ms=800.0),
)
"""What the search was tuned on."""

HELD_OUT = (
    Scenario(name="shortest prompt first", physics=replace(PLAIN, shortest_first=True, max_num_seqs=48),
             ttft_ms=1000.0),
    Scenario(name="padded batches", physics=replace(PLAIN, pad_tok=256, power=1.0), ttft_ms=400.0),
    Scenario(name="speculation", physics=replace(PLAIN, double=0.6, per_seq_s=8e-5), tpot_ms=30.0),
    Scenario(name="sublinear, small budget", physics=replace(PLAIN, power=0.8, per_token_s=1.2e-4,
             max_num_batched_tokens=2048), ttft_ms=600.0),
    Scenario(name="slow and large", physics=replace(PLAIN, fixed_s=30e-3, per_token_s=1.5e-4, per_kv_s=2e-7),
             ttft_ms=3000.0, tpot_ms=150.0),
    Scenario(name="dear requests", physics=replace(SMALL, per_seq_s=1.5e-4, api_s=20e-3), workload=LONG,
             ttft_ms=600.0, tpot_ms=40.0),
    Scenario(name="speed drifts 8 %, slowly", physics=replace(PLAIN, drift=0.08, drift_s=20.0), noisy=True),
    Scenario(name="slow steps", physics=replace(PLAIN, slow=0.005, slow_times=8.0, jitter=0.1), noisy=True,
             ttft_ms=600.0),
    Scenario(name="throttled a third of the time", physics=replace(PLAIN, throttled=1.1), noisy=True, ttft_ms=700.0),
)  # fmt: skip
"""Other policies, laws and noises, looked at only once the search was done."""

WRONG = (
    Scenario(name="KV told a quarter too large", physics=STARVED, told_kv=1.25, ttft_ms=800.0, tpot_ms=80.0),
    Scenario(name="KV told 40 % too large", physics=STARVED, told_kv=1.4, ttft_ms=800.0, tpot_ms=80.0),
    Scenario(name="KV told 40 % too small", physics=replace(PLAIN, kv_tokens=60_000), told_kv=0.6, ttft_ms=800.0,
             tpot_ms=80.0),
    Scenario(name="attention four times dearer", physics=replace(ATTENTIVE, per_pair_s=6.4e-8, per_kv_s=1.6e-7),
             workload=LONG, ttft_ms=4000.0, tpot_ms=120.0),
    Scenario(name="stalls of 0.2 s", physics=replace(PLAIN, pause_s=0.2, pause_every_s=2.0), noisy=True),
    Scenario(name="stalls of 0.5 s", physics=replace(PLAIN, pause_s=0.5, pause_every_s=10.0), noisy=True,
             ttft_ms=700.0),
    Scenario(name="stalls of 1 s", physics=replace(PLAIN, pause_s=1.0, pause_every_s=60.0), noisy=True,
             ttft_ms=1000.0),
    Scenario(name="hidden limit of 24 slots", physics=replace(PLAIN, max_num_seqs=24), told_seqs=256, ttft_ms=1000.0),
    Scenario(name="hidden limit of 48 slots", physics=replace(PLAIN, max_num_seqs=48), told_seqs=256, ttft_ms=600.0),
    Scenario(name="half of the prompts cached", physics=replace(PLAIN, cached=0.5, per_token_s=1e-4), workload=LONG,
             ttft_ms=1200.0, tpot_ms=80.0),
)  # fmt: skip
"""Of which the twin is told something untrue, or knows nothing of what decides."""

TWIN_WRONG = "wrong twins"
GROUPS = {"engines tuned on": TUNING, "engines held out": HELD_OUT, TWIN_WRONG: WRONG}
