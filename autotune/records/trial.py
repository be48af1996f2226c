"""What one trial produces, in the order in which the stages produce it.

Clocks: fields in `_s` of requests are seconds on their level's monotonic clock (0 when the level began); `_utc` is wall
time in ISO 8601. Absent is None.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from autotune.records.finals import FinalRun, Soak
from autotune.records.quality import Quality
from autotune.records.spec import Args, Bound, ParamValue
from autotune.records.variants import Checkpoint

SCHEMA_VERSION = 2


# --- space -> engines -----------------------------------------------------------------------------------------------


class Role(StrEnum):
    REFERENCE = "reference"
    SEARCH = "search"
    FINAL = "final"


def fingerprint(kind: str, model: str, args: Args) -> str:
    """First 16 hex digits of the SHA-256 of engine kind, model and arguments: equal means the same launch."""
    text = json.dumps([kind, model, args], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration that passed every rule.

    `params` are the tuned parameters that are active (engine's own names); `args` is everything the engine is given:
    fixed arguments, values derived from the workload and `params`, but neither model, host nor port. `engine`: whose
    arguments these are, in a study of several; `params` then have its name in front, and name it as `engine`.
    `checkpoint` names the variant that is loaded, None for the study's own model.
    """

    params: Mapping[str, ParamValue]
    args: Args
    role: Role
    fingerprint: str
    engine: str | None = None
    checkpoint: str | None = None


# --- engines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How to start a candidate; a pure function of it. `env` holds only what is added to the tuner's environment.

    `files` maps names inside the trial directory to their text (an options YAML); `redacted` are values that must
    never reach a record or a log of ours. `api_key` is what the engine will want of whoever asks it. `health_path`
    answers 200 once it is ready.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    host: str
    port: int
    model_name: str
    files: Mapping[str, str] = field(default_factory=dict)
    redacted: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    health_path: str = "/health"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server answers the OpenAI API. `api_key` is a secret: never recorded."""

    host: str
    port: int
    model_name: str
    tls: bool = False
    base_path: str = "/v1"
    api_key: str | None = field(default=None, repr=False)


class Phase(StrEnum):
    """Where a trial is; also where it failed."""

    PREPARE = "prepare"
    LAUNCH = "launch"
    CANARY = "canary"
    QUALITY = "quality"
    WARMUP = "warmup"
    LOAD = "load"
    STOP = "stop"
    DONE = "done"


class Outcome(StrEnum):
    OK = "ok"
    SLO_MISS = "slo_miss"
    UNSURE = "unsure"
    RULED_OUT = "ruled_out"
    OOM_STARTUP = "oom_startup"
    OOM_LOAD = "oom_load"
    BAD_CONFIG = "bad_config"
    LAUNCH_FAILED = "launch_failed"
    READY_TIMEOUT = "ready_timeout"
    CRASHED_UNDER_LOAD = "crashed_under_load"
    WRONG_OUTPUT = "wrong_output"
    CLIENT_LIMITED = "client_limited"
    ENVIRONMENT = "environment"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"

    @property
    def measured(self) -> bool:
        """The candidate ran and was judged."""
        return self in (Outcome.OK, Outcome.SLO_MISS, Outcome.UNSURE)

    @property
    def teaches_infeasible(self) -> bool:
        """The engine could not hold this candidate, by the candidate's own fault."""
        return self in (
            Outcome.RULED_OUT,
            Outcome.OOM_STARTUP,
            Outcome.OOM_LOAD,
            Outcome.BAD_CONFIG,
            Outcome.LAUNCH_FAILED,
            Outcome.READY_TIMEOUT,
            Outcome.CRASHED_UNDER_LOAD,
            Outcome.WRONG_OUTPUT,
        )


class Fault(StrEnum):
    """Whose failure it was, which decides what the study does next."""

    CANDIDATE = "candidate"  # learn it
    SETUP = "setup"  # the user's: abort the study with the remedy
    ENVIRONMENT = "environment"  # retry, then stop resumable
    LOAD = (
        "load"  # more than client or machine can make, or the engine takes: nothing is learned, the load to be lowered
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trial gave no measurement: class, whose fault, one line of cause (verbatim where a log has it), remedy.

    `edges` are the figures that the engine's log named (`max_model_len_that_fits`, `kv_available_bytes`, …).
    """

    outcome: Outcome
    fault: Fault
    phase: Phase
    cause: str
    remedy: str = ""
    edges: Mapping[str, float] = field(default_factory=dict)


# --- load -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """One request of a level, before it is sent.

    `at_s` is its scheduled time (None: closed loop, sent when a slot is free). Either `prompt_ids` or `messages` is
    set; `prompt_text` is sent in the place of `prompt_ids` to servers that take no ids. `prompt_tokens` is None when
    only the server can count it. `prefix_group` >= 0 names the shared prefix that its first `prefix_tokens` tokens
    belong to. `after` is the index of the turn before it in its session, which is the request before it in the level:
    it is sent `think_s` after that one ended, whatever the load, and `at_s` is None.
    """

    index: int
    at_s: float | None
    output_tokens: int
    prompt_tokens: int | None = None
    prompt_ids: tuple[int, ...] | None = None
    prompt_text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    model: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    prefix_group: int = -1
    prefix_tokens: int = 0
    after: int | None = None
    think_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelPlan:
    """A level of load: its requests in order, how they arrive, and when it ends.

    Requests scheduled (closed loop: sent) before `warmup_s` are warm-up; the window of measurement is
    [warmup_s, warmup_s + duration_s). No request starts after the window; those in flight at its end are given
    `drain_s` to finish, then cut (error `cut`). A closed loop may have endless requests, made on access: never copy
    them whole. `offered_rps` is the mean rate of an open loop, None for a closed one. `notes` are what its maker has to
    tell: lines of a file that were skipped, a trace that ended early.
    """

    requests: Sequence[RequestPlan]
    offered_rps: float | None
    concurrency: int | None
    warmup_s: float
    duration_s: float
    drain_s: float = 30.0
    seed: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as the client saw it. Latency counts from `scheduled_s` (closed loop: from `sent_s`); for a later
    turn of a session that is when the one before it ended and its user had thought, in a closed loop too.

    `chunk_s` are the arrival times of every event that carried text (or reasoning), the first being the first token.
    Token counts are the server's (`usage`), None when it gave none. `error` is None for a success: HTTP status 200, at
    least one token, no error event, a proper end. `shared_tokens` are those at the start of the prompt that the
    workload shares between requests, so that a prefix cache may have them; None where only the data set knows.
    `chunk_tokens` are the tokens that each of these events carried, where the server counts them per event, else empty.
    """

    index: int
    scheduled_s: float | None
    sent_s: float
    chunk_s: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    done_s: float | None = None
    status: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    shared_tokens: int | None = None
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int
    finish_reason: str | None = None
    error: str | None = None
    warmup: bool = False

    @property
    def start_s(self) -> float:
        """What latency counts from."""
        return self.sent_s if self.scheduled_s is None else self.scheduled_s

    @property
    def ttft_ms(self) -> float | None:
        """Start to the first token; None before it came."""
        return (self.chunk_s[0] - self.start_s) * 1e3 if self.chunk_s else None

    @property
    def e2e_ms(self) -> float | None:
        """Start to the end of the answer; None for an answer that never ended."""
        return None if self.done_s is None else (self.done_s - self.start_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """(last token - first token) / (output tokens - 1); None for one token, or when the server counted none."""
        if not self.chunk_s or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) * 1e3 / (self.output_tokens - 1)

    @property
    def itl_ms(self) -> tuple[float, ...]:
        """Gaps between chunks, per token: where chunks carry several tokens, each gap is divided by those of the chunk
        that ends it (`chunk_tokens`), or else by the request's (output tokens - 1) / (chunks - 1), so that the mean is
        the TPOT. Empty below two chunks."""
        if self.chunk_tokens:
            gaps_s = [b - a for a, b in pairwise(self.chunk_s)]
            return tuple(s * 1e3 / max(1, n) for s, n in zip(gaps_s, self.chunk_tokens[1:], strict=True))
        gaps = len(self.chunk_s) - 1
        tokens_a_gap = max(1.0, ((self.output_tokens or 0) - 1) / gaps) if gaps > 0 else 1.0
        return tuple((b - a) * 1e3 / tokens_a_gap for a, b in pairwise(self.chunk_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """Whether the load client kept up. Send lag is sent minus scheduled (closed loop: minus the time that the slot was
    free); CPU is a share of one core."""

    send_lag_p99_ms: float | None
    cpu_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSample:
    """The engine's counters and gauges at one time, by its own metric names, each summed over its labels."""

    at_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one time, by NVML. `throttled` are the reasons for which its clock is held down (idling is none);
    `others_bytes` is the memory of processes that are not the engine's. None where the driver doesn't tell."""

    at_s: float
    gpu: str
    memory_used_bytes: int | None = None
    others_bytes: int | None = None
    utilisation_ratio: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What engine and GPUs told while a level ran, in order of time on the level's clock; the first samples are from
    before its first request, the last from after its end. Empty where there is nothing to ask; `notes` say why polls
    failed."""

    server: tuple[ServerSample, ...] = ()
    gpus: tuple[GpuSample, ...] = ()
    notes: tuple[str, ...] = ()


OVERLOAD = "overload: "
"""How `LevelRecord.stopped` begins where the engine could not keep up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRecord:
    """What a level gave: a record for each request that was sent, in order of index.

    `window_s` is the window of measurement really covered, shorter than planned when the level was stopped
    (`stopped` says why). `notes` are the plan's.
    """

    plan_seed: int
    offered_rps: float | None
    concurrency: int | None
    window_s: tuple[float, float]
    requests: tuple[RequestRecord, ...]
    client: ClientHealth
    stopped: str | None = None
    telemetry: Telemetry | None = None
    notes: tuple[str, ...] = ()


# --- measure, slo ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its interval at the objective's confidence and the number of samples behind it.

    `low`/`high` are None where the samples can't bound that side (a p99 of 80 requests has no upper bound).
    """

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Violations:
    """How often one SLO's limit was exceeded: `violated` of `judged` samples (requests; gaps for ITL), `censored` more
    were cut before it could be told. `inflation` >= 1: the variance of `violated` over that of independent samples.
    """

    metric: str
    limit: float
    judged: int
    violated: int
    censored: int
    inflation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One level in numbers: `values` by metric name (`records.metrics`), in that metric's unit.

    `counters` are plain figures of the audit (preemptions, prefix-cache hits, KV use, energy, …); `stopped` is why the
    level ended before its time; `notes` are worth knowing, `untrusted` are reasons not to believe the figures.
    """

    offered_rps: float | None
    concurrency: int | None
    duration_s: float
    requests: int
    errors: int
    values: Mapping[str, Estimate]
    violations: tuple[Violations, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    client: ClientHealth | None = None
    stopped: str | None = None
    notes: tuple[str, ...] = ()
    untrusted: tuple[str, ...] = ()


class Ruling(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class SloRuling:
    """One SLO judged. `excess` is the relative excess over the limit: (value - limit) / limit, or the shortfall for
    floors; at most 0 when the value is inside. None when the metric could not be measured."""

    metric: str
    bound: Bound
    limit: float
    estimate: Estimate | None
    excess: float | None
    ruling: Ruling
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    slos: tuple[SloRuling, ...]
    ruling: Ruling
    untrusted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why an SLO was missed: what limited it, the evidence in one line, and the parameters that usually move it."""

    limit: str
    evidence: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest offered load at which every SLO held, with its interval, and what finding it took.

    `of` is `rps` or `concurrency`. `method` is how it was found (`twin`, `levels`); `doubts` is what the guard has
    against the twin. `value.n` counts the requests measured.
    """

    of: str
    value: Estimate
    method: str
    levels: int
    load_s: float
    doubts: tuple[str, ...] = ()


# --- trial ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """Proof that a trial left nothing: processes found alive after the stop ladder, whether the port was freed,
    shared-memory files removed, and how the engine ended.

    `gpu_memory` is the use of each GPU in bytes (before the launch, after the stop, once it was flat); None of it where
    NVML shows nothing. `container` is the id of the engine's container, gone by now.
    """

    left_processes: int
    port_free: bool
    shm_removed: tuple[str, ...] = ()
    stop_s: float | None = None
    how: str = ""
    container: str | None = None
    gpu_memory: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Everything about one trial; `trial.json` is this. The Optuna storage is rebuilt from it.

    `args` were asked for; `resolved` is what the engine said it ran with; `defaults` is what the engine's documentation
    gives for tuned parameters that were left out, for those of which the engine says nothing. `ruled_out_by` names what
    excluded a candidate that was not launched. `startup_kind` is `warm` when this study launched the same model on this
    machine before (its files cached, kernels compiled), else `cold`. `others_bytes` is the memory of other processes on
    each GPU before the launch. `gpus` is what per-GPU figures are divided by; None in records of older releases.
    `checkpoint` is the prepared checkpoint it ran, or waited for in vain; `model` is then where that lies.
    `final` says of which trial a launch after the search measures the configuration again; None for the search's own.
    `engine` is the engine's name in a study of several (`StudySpec.of_engine` is its study); None of the only one.
    """

    schema_version: int = SCHEMA_VERSION
    study: str
    number: int
    role: Role
    simulated: bool
    params: Mapping[str, ParamValue]
    args: Args
    fingerprint: str
    model: str
    argv: tuple[str, ...] = ()
    outcome: Outcome
    failure: Failure | None = None
    ruled_out_by: str | None = None
    objective: Estimate | None = None
    verdict: Verdict | None = None
    measurements: tuple[Measurement, ...] = ()
    diagnosis: Diagnosis | None = None
    capacity: Capacity | None = None
    startup_s: float | None = None
    startup_kind: str | None = None
    others_bytes: Mapping[str, int] = field(default_factory=dict)
    load_s: float = 0.0
    wall_s: float = 0.0
    gpus: int | None = None
    started_utc: str
    seed: int
    defaults: Mapping[str, Any] = field(default_factory=dict)
    resolved: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    log_tail: tuple[str, ...] = ()
    cleanup: Cleanup | None = None
    quality: Quality | None = None
    final: FinalRun | None = None
    soak: Soak | None = None
    engine: str | None = None
    checkpoint: Checkpoint | None = None

    @property
    def waited_s(self) -> float:
        """Seconds that it waited for its checkpoint to be prepared; no part of `startup_s` or `wall_s`."""
        return 0.0 if self.checkpoint is None else self.checkpoint.waited_s
