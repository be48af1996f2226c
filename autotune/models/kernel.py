"""The scheduler that every simulation shares: vLLM V1's decisions, step by step, on flat arrays.

In: a `State` that holds requests, `Limits` (what the configuration allows) and `Costs` (what a step takes). Out: the
same `State`, later. Plain Python on lists or numpy arrays (the server face), and compiled by numba without a change
(`autotune.models.compiled`); so: no libraries, only numbers, and every function that another one calls in
this one file (numba's cache looks at one file's age).

A decode-only step costs the same however many sequences run. All decoding sequences advance together, one token a
step, so a single clock (`TICK`) counts for all of them: a sequence stores the tick at which it would have produced
nothing, who finishes at a tick stands in a ring of buckets, and who needs a new block at a tick in a histogram over
the block's phase. That all of them advance is vLLM's own rule: max_num_batched_tokens >= max_num_seqs, running first.

Deviation from vLLM: decodes come before unfinished prefills. vLLM goes by order of admission, which is the same unless
`long_prefill_token_threshold` lets a short prompt overtake long ones that use up the whole budget.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class Request:
    """One request; compiled, a record of the same fields."""

    arrival: float = 0.0
    prompt: int = 0
    output: int = 0
    group: int = -1  # -1: none
    prefix: int = 0
    ready: float = 0.0  # when the engine gets it, behind the API server
    state: int = 0
    origin: int = 0  # decoding: the tick at which nothing had been produced; else: tokens produced
    done: int = 0  # tokens computed (while not decoding)
    shared: int = 0  # leading blocks that belong to the group, not to the request
    kept: int = 0  # preempted: full blocks of its own that may still be cached
    kept_until: int = 0  # preempted: value of POPS at which the first of them is overwritten
    cached: int = 0  # tokens found in the prefix cache when last admitted
    admitted_s: float = 0.0  # when it first left the waiting queue
    prefilled_s: float = 0.0  # when the engine had its first token, which the API server delivers at first_s
    first_s: float = 0.0
    finish_s: float = 0.0
    preempted: int = 0
    joined: int = 0  # decoding: the step that gave the stint's first token
    next: int = -1  # neighbours in the waiting or the running queue
    prev: int = -1
    bnext: int = -1  # neighbours in the bucket of those that finish together
    bprev: int = -1
    chunk: int = 0  # tokens of it computed in this step


@dataclass(slots=True)
class Group:
    """Requests that share a prefix; compiled, a record of the same fields."""

    users: int = 0  # running requests of it
    resident: int = 0  # leading blocks that are computed
    until: int = 0  # without users: value of POPS at which the first of them is overwritten
    held: int = 0  # leading blocks that a running request shares (set by `free_unshared` for its own use)


# States of a request.
NEW, WAITING, PREFILL, DECODE, FINISHED, ABORTED = 0, 1, 2, 3, 4, 5

NO_ROOM = -1  # of `admit`: the KV cache lacks blocks

# Integer counters in State.n.
(FREE, POPS, TICK, KV, DECODING, PREFILLING, WAITING_N, RUN_HEAD, RUN_TAIL, WAIT_HEAD, WAIT_TAIL, RESERVED,
 PREEMPTIONS, QUERIED, HIT, STEPS, STINTS, ENDED, EVICTED, TOKENS, PEAK, PREFILLED,
 ISSUED, TOKENISED) = range(24)  # fmt: skip
COUNTERS = 24

# Times in State.t (seconds).
NOW, API_FREE, DELIVERED, BUSY, DECIDED = range(5)
TIMES = 5


class Limits(NamedTuple):
    """What the configuration allows; counts of tokens, sequences and blocks, flags as 0 or 1."""

    max_num_seqs: int
    max_num_batched_tokens: int
    threshold: int  # long_prefill_token_threshold; 0: none
    chunked: int
    block_size: int
    blocks: int
    prefix_caching: int
    reserve_full_input: int  # vLLM's scheduler_reserve_full_isl: admit only if the whole prompt's blocks are free
    no_evict: int  # TensorRT-LLM's GUARANTEED_NO_EVICT: admit only if prompt and output fit for certain
    eager: int
    max_graph: int  # largest decode batch with a CUDA graph
    asynchronous: int
    ring: int  # length of the ring of finish buckets; above every output length


class Costs(NamedTuple):
    """Seconds, per step or per unit, with every model and GPU constant already multiplied out (see `steptime`)."""

    weights: float  # reading the weights of all layers
    overlap: float  # share of the shorter of reading and computing that the longer does not hide
    gemm_per_token: float
    attn_per_pair: float  # prefill: per (new token x context token)
    attn_per_kv: float  # decode: per context token
    per_token: float  # element-wise kernels and all-reduce payload
    floor: float  # kernel floors and all-reduce latency
    head_weights: float
    head_per_seq: float
    host: float
    host_per_seq: float
    launch: float  # launching kernels one by one when no CUDA graph covers the step
    api_latency: float  # on the way in, whatever the load
    api_per_request: float  # work of the API server, which does one thing at a time
    api_per_prompt_token: float
    api_per_token: float  # de-tokenising and streaming one output token


Ints = MutableSequence[int]
Floats = MutableSequence[float]


class State(NamedTuple):
    """One engine's state: records of requests and groups, and arrays by phase, bucket, rank or counter."""

    req: Sequence[Request]
    groups: Sequence[Group]
    prefilling: Ints  # ids in order of admission
    phase: Ints  # decoding sequences by the tick (modulo block size) at which they need a block
    bucket: Ints  # by tick modulo ring: first of the sequences that finish then
    ended: Ints  # ids that finished in this step
    evicted: Ints  # ids preempted in this step
    n: Ints  # counters
    t: Floats  # times


class Log(NamedTuple):
    """What happened, enough to rebuild every token's time: token k of a stint came at `end_s[first + k]`."""

    end_s: Floats  # by step: when its tokens had reached the client
    stint_id: Ints
    stint_first: Ints
    stint_count: Ints


# --- blocks -----------------------------------------------------------------------------------------------------------


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def produced(s: State, r: int) -> int:
    """Output tokens of request `r` so far."""
    return s.n[TICK] - s.req[r].origin if s.req[r].state == DECODE else s.req[r].origin


def computed(s: State, r: int) -> int:
    """Tokens of request `r` whose keys and values are in the cache; a decoding one's newest token is not."""
    return s.req[r].prompt + produced(s, r) - 1 if s.req[r].state == DECODE else s.req[r].done


def take(s: State, blocks: int) -> None:
    """Allocate `blocks` from the head of the free queue, which overwrites what was cached there."""
    s.n[FREE] -= blocks
    s.n[POPS] += blocks


def surviving(s: State, blocks: int, until: int) -> int:
    """Of `blocks` freed earlier, those not overwritten yet: the tail of a sequence is freed, and lost, first."""
    return max(0, min(blocks, blocks + until - s.n[POPS], s.n[FREE]))


def reuse(s: State, blocks: int, until: int) -> None:
    """Take `blocks` cached blocks out of the middle of the free queue; what was freed later moves up."""
    s.n[FREE] -= blocks
    for g in range(len(s.groups)):
        if s.groups[g].users == 0 and s.groups[g].until > until:
            s.groups[g].until -= blocks


def prefix_blocks(s: State, limits: Limits, r: int) -> int:
    """Leading blocks that `r` may find in the cache: its last token is always computed."""
    return min(s.req[r].prefix, s.req[r].prompt + s.req[r].origin - 1) // limits.block_size


def join_group(s: State, limits: Limits, r: int) -> None:
    """Count `r` as a user of its prefix group; the first takes those of its cached blocks that it can use out of the
    free queue, and the rest is given up."""
    g = s.req[r].group
    if g < 0:
        return
    if s.groups[g].users == 0:
        s.groups[g].resident = idle_group_blocks(s, limits, r)
        if s.groups[g].resident > 0:
            reuse(s, s.groups[g].resident, s.groups[g].until)
    s.groups[g].users += 1


def leave_group(s: State, r: int) -> None:
    """Undo `join_group`; the last user frees the group's blocks, which stay cached until overwritten."""
    g = s.req[r].group
    s.req[r].shared = 0
    if g < 0:
        return
    s.groups[g].users -= 1
    if s.groups[g].users == 0:
        s.groups[g].until = s.n[POPS] + s.n[FREE]
        s.n[FREE] += s.groups[g].resident


def free_unshared(s: State) -> int:
    """Give up the blocks of groups that no running request shares: one with a longer prefix computed them and left.
    Returns how many."""
    r = s.n[RUN_HEAD]
    while r >= 0:
        if s.req[r].group >= 0:
            s.groups[s.req[r].group].held = 0
        r = s.req[r].next
    r = s.n[RUN_HEAD]
    while r >= 0:
        g = s.req[r].group
        if g >= 0:
            s.groups[g].held = max(s.groups[g].held, s.req[r].shared)
        r = s.req[r].next
    freed = 0
    r = s.n[RUN_HEAD]
    while r >= 0:
        g = s.req[r].group
        if g >= 0:
            freed += s.groups[g].resident - s.groups[g].held
            s.groups[g].resident = s.groups[g].held
        r = s.req[r].next
    s.n[FREE] += freed
    return freed


def share_prefix(s: State, limits: Limits, r: int) -> None:
    """Hand the prefix blocks that `r` has computed, beyond what its group has, over to the group."""
    g = s.req[r].group
    if g < 0 or limits.prefix_caching == 0 or s.req[r].shared != s.groups[g].resident:
        return
    full = min(s.req[r].done, s.req[r].prefix) // limits.block_size
    if full > s.groups[g].resident:
        s.req[r].shared = full
        s.groups[g].resident = full


# --- queues -----------------------------------------------------------------------------------------------------------


def unlink(s: State, r: int, head: int, tail: int) -> None:
    """Take `r` out of the list whose ends are the counters `head` and `tail`."""
    before, after = s.req[r].prev, s.req[r].next
    if before >= 0:
        s.req[before].next = after
    else:
        s.n[head] = after
    if after >= 0:
        s.req[after].prev = before
    else:
        s.n[tail] = before


def append(s: State, r: int, head: int, tail: int) -> None:
    """Put `r` at the end of the list whose ends are the counters `head` and `tail`."""
    last = s.n[tail]
    s.req[r].prev, s.req[r].next = last, -1
    if last >= 0:
        s.req[last].next = r
    else:
        s.n[head] = r
    s.n[tail] = r


def prepend(s: State, r: int, head: int, tail: int) -> None:
    """Put `r` at the head of that list."""
    first = s.n[head]
    s.req[r].prev, s.req[r].next = -1, first
    if first >= 0:
        s.req[first].prev = r
    else:
        s.n[tail] = r
    s.n[head] = r


def enqueue(s: State, r: int) -> None:
    """A new request joins the end of the waiting queue."""
    s.req[r].state = WAITING
    append(s, r, WAIT_HEAD, WAIT_TAIL)
    s.n[WAITING_N] += 1


def drop_prefilling(s: State, r: int) -> None:
    """Take `r` out of the prefilling ones, which stay in order."""
    at = 0
    while s.prefilling[at] != r:
        at += 1
    for i in range(at, s.n[PREFILLING] - 1):
        s.prefilling[i] = s.prefilling[i + 1]
    s.n[PREFILLING] -= 1


# --- decoding ---------------------------------------------------------------------------------------------------------


def start_decoding(s: State, limits: Limits, r: int) -> None:
    """Let `r`, which has produced origin tokens up to and with this step, advance with the common clock."""
    tick = s.n[TICK]
    out = s.req[r].origin
    s.req[r].state = DECODE
    s.req[r].origin = tick - out
    s.req[r].joined = s.n[STEPS]
    s.n[DECODING] += 1
    s.n[KV] += s.req[r].prompt + out
    s.phase[need_phase(s, limits, r)] += 1
    at = (s.req[r].origin + s.req[r].output) % limits.ring
    first = s.bucket[at]
    s.req[r].bprev, s.req[r].bnext = -1, first
    if first >= 0:
        s.req[first].bprev = r
    s.bucket[at] = r


def need_phase(s: State, limits: Limits, r: int) -> int:
    """The tick, modulo block size, at which decoding `r` writes the first token of a new block."""
    return (s.req[r].origin + 1 - s.req[r].prompt) % limits.block_size


def stop_decoding(s: State, limits: Limits, r: int) -> None:
    """Take `r` off the common clock and log its stint; leaves origin as the count of tokens produced."""
    out = s.n[TICK] - s.req[r].origin
    s.n[DECODING] -= 1
    s.n[KV] -= s.req[r].prompt + out
    s.phase[need_phase(s, limits, r)] -= 1
    before, after = s.req[r].bprev, s.req[r].bnext
    if before >= 0:
        s.req[before].bnext = after
    else:
        s.bucket[(s.req[r].origin + s.req[r].output) % limits.ring] = after
    if after >= 0:
        s.req[after].bprev = before
    s.req[r].done = s.req[r].prompt + out - 1
    s.req[r].origin = out


def log_stint(s: State, log: Log, r: int, count: int) -> None:
    """Note that `r` got `count` tokens in consecutive steps from `joined[r]` on."""
    i = s.n[STINTS]
    if i < len(log.stint_id):
        log.stint_id[i] = r
        log.stint_first[i] = s.req[r].joined
        log.stint_count[i] = count
    s.n[STINTS] += 1
    s.n[TOKENS] += count


# --- leaving ----------------------------------------------------------------------------------------------------------


def release(s: State, limits: Limits, r: int) -> int:
    """Free the blocks of a running request that no longer decodes; returns how many of its own were freed."""
    own = ceil_div(s.req[r].done, limits.block_size) - s.req[r].shared
    s.n[RESERVED] -= ceil_div(s.req[r].prompt + s.req[r].output, limits.block_size)
    s.n[FREE] += own
    leave_group(s, r)
    unlink(s, r, RUN_HEAD, RUN_TAIL)
    return own


def leave(s: State, limits: Limits, log: Log, r: int) -> int:
    """End the turn of running `r`, prefilling or decoding; returns how many blocks of its own were freed."""
    if s.req[r].state == DECODE:
        count = s.n[STEPS] - s.req[r].joined
        stop_decoding(s, limits, r)
        log_stint(s, log, r, count)
    else:
        drop_prefilling(s, r)
    return release(s, limits, r)


def preempt(s: State, limits: Limits, log: Log) -> None:
    """Send the newest running request back to the head of the waiting queue; it computes everything again, except
    what it still finds in the prefix cache."""
    r = s.n[RUN_TAIL]
    shared = s.req[r].shared
    until = s.n[POPS] + s.n[FREE]
    leave(s, limits, log, r)
    s.req[r].kept = (s.req[r].done // limits.block_size - shared) * limits.prefix_caching
    s.req[r].kept_until = until
    s.req[r].done = 0
    s.req[r].state = WAITING
    s.req[r].preempted += 1
    prepend(s, r, WAIT_HEAD, WAIT_TAIL)
    s.n[WAITING_N] += 1
    s.evicted[s.n[EVICTED]] = r
    s.n[EVICTED] += 1
    s.n[PREEMPTIONS] += 1


def abort(s: State, limits: Limits, log: Log, r: int) -> None:
    """Forget request `r`, between two steps; nothing happens when it has ended."""
    if s.req[r].state == WAITING:
        unlink(s, r, WAIT_HEAD, WAIT_TAIL)
        s.n[WAITING_N] -= 1
    elif s.req[r].state == PREFILL or s.req[r].state == DECODE:
        leave(s, limits, log, r)
    elif s.req[r].state != NEW:
        return
    s.req[r].state = ABORTED


# --- one step ---------------------------------------------------------------------------------------------------------


def plan_running(s: State, limits: Limits) -> int:
    """Set the chunk of every unfinished prefill, in order, out of what decodes leave of the budget; returns the blocks
    that all running sequences need for this step."""
    budget = limits.max_num_batched_tokens - s.n[DECODING]
    need = s.phase[s.n[TICK] % limits.block_size]
    for i in range(s.n[PREFILLING]):
        r = s.prefilling[i]
        rest = s.req[r].prompt + s.req[r].origin - s.req[r].done
        chunk = min(rest, budget)
        if limits.threshold > 0:
            chunk = min(chunk, limits.threshold)
        s.req[r].chunk = chunk
        budget -= chunk
        need += ceil_div(s.req[r].done + chunk, limits.block_size) - ceil_div(s.req[r].done, limits.block_size)
    return need


def schedule_running(s: State, limits: Limits, log: Log) -> int:
    """Give running sequences their blocks, preempting from the end until they fit; returns the budget left."""
    need = plan_running(s, limits)
    while need > s.n[FREE] and s.n[RUN_TAIL] >= 0:
        if free_unshared(s) == 0:
            preempt(s, limits, log)
            need = plan_running(s, limits)
    take(s, need)
    budget = limits.max_num_batched_tokens - s.n[DECODING]
    for i in range(s.n[PREFILLING]):
        budget -= s.req[s.prefilling[i]].chunk
    return budget


def group_hit(s: State, limits: Limits, r: int) -> int:
    """Leading blocks of `r` that its group has in the cache."""
    g = s.req[r].group
    if g < 0 or limits.prefix_caching == 0:
        return 0
    there = s.groups[g].resident if s.groups[g].users > 0 else surviving(s, s.groups[g].resident, s.groups[g].until)
    return min(there, prefix_blocks(s, limits, r))


def idle_group_blocks(s: State, limits: Limits, r: int) -> int:
    """Cached blocks that the first user of a group takes out of the free queue."""
    g = s.req[r].group
    if g < 0 or s.groups[g].users > 0:
        return 0
    return min(surviving(s, s.groups[g].resident, s.groups[g].until), prefix_blocks(s, limits, r))


def admit(s: State, limits: Limits, budget: int) -> int:
    """Admit the head of the waiting queue if it fits; returns the tokens it got, 0 when it has to wait on, `NO_ROOM`
    when that is for want of blocks."""
    size = limits.block_size
    r = s.n[WAIT_HEAD]
    total = s.req[r].prompt + s.req[r].origin
    shared = group_hit(s, limits, r)
    kept = 0
    if s.req[r].kept > 0 and shared >= min(s.req[r].prefix, total - 1) // size * (1 if s.req[r].group >= 0 else 0):
        kept = min(surviving(s, s.req[r].kept, s.req[r].kept_until), (total - 1) // size - shared)
    found = (shared + kept) * size
    chunk = total - found
    if limits.threshold > 0:
        chunk = min(chunk, limits.threshold)
    if chunk > budget:
        if limits.chunked == 0:
            return 0
        chunk = budget
    idle = idle_group_blocks(s, limits, r)
    target = total if limits.reserve_full_input == 1 else found + chunk
    if ceil_div(target, size) - shared + idle > s.n[FREE]:
        return NO_ROOM
    worst = ceil_div(s.req[r].prompt + s.req[r].output, size)
    if limits.no_evict == 1 and s.n[RESERVED] + worst > limits.blocks:
        return 0
    unlink(s, r, WAIT_HEAD, WAIT_TAIL)
    s.n[WAITING_N] -= 1
    append(s, r, RUN_HEAD, RUN_TAIL)
    join_group(s, limits, r)
    if kept > 0:
        reuse(s, kept, s.req[r].kept_until)
    take(s, ceil_div(found + chunk, size) - shared - kept)
    s.n[RESERVED] += worst
    s.req[r].state = PREFILL
    s.req[r].shared = shared
    s.req[r].kept = 0
    s.req[r].done = found
    s.req[r].cached = found
    s.req[r].chunk = chunk
    if s.req[r].preempted == 0:  # vLLM counts neither queries nor hits of requests that come back from a preemption
        s.req[r].admitted_s = s.t[NOW]
        s.n[QUERIED] += total * limits.prefix_caching
        s.n[HIT] += found
    s.prefilling[s.n[PREFILLING]] = r
    s.n[PREFILLING] += 1
    # vLLM makes a block findable as soon as it is scheduled, so the next request of the group hits it in this step.
    s.req[r].done = found + chunk
    share_prefix(s, limits, r)
    s.req[r].done = found
    return chunk


def schedule(s: State, limits: Limits, log: Log) -> int:
    """Decide who computes what in this step; returns the tokens of all, 0 when nobody can run."""
    s.n[EVICTED] = 0
    s.n[ENDED] = 0
    budget = schedule_running(s, limits, log)
    if s.n[EVICTED] == 0:
        while s.n[WAITING_N] > 0 and budget > 0 and s.n[DECODING] + s.n[PREFILLING] < limits.max_num_seqs:
            got = admit(s, limits, budget)
            if got == NO_ROOM and free_unshared(s) > 0:
                continue
            if got <= 0:
                break
            budget -= got
    return limits.max_num_batched_tokens - budget


class Work(NamedTuple):
    """What a step computes: new tokens, new x context tokens summed over prefills, context of decodes, sequences."""

    tokens: int
    pairs: float
    kv: int
    seqs: int
    decode_only: int


def gpu_time(limits: Limits, costs: Costs, w: Work) -> float:
    """Seconds a GPU takes for a step. Matrix products take the longer of
    reading weights and computing, plus a share of the shorter (they overlap, not wholly).
    """
    compute = w.tokens * costs.gemm_per_token
    gemm = max(costs.weights, compute) + costs.overlap * min(costs.weights, compute)
    attention = w.pairs * costs.attn_per_pair + w.kv * costs.attn_per_kv
    head = max(costs.head_weights, w.seqs * costs.head_per_seq)
    gpu = gemm + attention + w.tokens * costs.per_token + costs.floor + head
    if limits.eager == 1 or (w.decode_only == 1 and w.seqs > limits.max_graph):
        gpu += costs.launch
    return gpu


def step_time(limits: Limits, costs: Costs, w: Work) -> float:
    """Seconds of a whole step: GPU and host, overlapped under async scheduling but for 15 % of the host's work."""
    gpu = gpu_time(limits, costs, w)
    host = costs.host + costs.host_per_seq * w.seqs
    if limits.asynchronous == 1:
        return max(gpu, host) + 0.15 * host
    return gpu + host


def planned_time(s: State, limits: Limits, costs: Costs, tokens: int) -> float:
    """Seconds of the step that `schedule` decided."""
    pairs = 0.0
    for i in range(s.n[PREFILLING]):
        r = s.prefilling[i]
        pairs += s.req[r].chunk * (s.req[r].done + 0.5 * s.req[r].chunk)
    decode_only = 1 if s.n[PREFILLING] == 0 else 0
    work = Work(tokens, pairs, s.n[KV], s.n[DECODING] + s.n[PREFILLING], decode_only)
    return step_time(limits, costs, work)


def tokenise(s: State, costs: Costs, until_s: float) -> None:
    """Pass the requests that arrived by `until_s` through the API server, a queue of one."""
    while s.n[TOKENISED] < s.n[ISSUED] and s.req[s.n[TOKENISED]].arrival <= until_s:
        r = s.n[TOKENISED]
        work = costs.api_per_request + costs.api_per_prompt_token * s.req[r].prompt
        s.t[API_FREE] = max(s.req[r].arrival, s.t[API_FREE]) + work
        s.req[r].ready = s.t[API_FREE] + costs.api_latency
        s.n[TOKENISED] += 1


def deliver(s: State, costs: Costs, log: Log, tokens: int) -> None:
    """Pass the step's `tokens` through the API server, a queue of one, and note when the client has them."""
    delivered = max(s.t[NOW], s.t[API_FREE]) + tokens * costs.api_per_token
    s.t[API_FREE] = delivered
    s.t[DELIVERED] = delivered
    if s.n[STEPS] < len(log.end_s):
        log.end_s[s.n[STEPS]] = delivered


def finish(s: State, r: int) -> None:
    """Note that `r` has all its tokens."""
    s.req[r].state = FINISHED
    s.req[r].finish_s = s.t[DELIVERED]
    s.ended[s.n[ENDED]] = r
    s.n[ENDED] += 1


def finish_decodes(s: State, limits: Limits, log: Log) -> None:
    """End the decoding sequences whose last token this tick gave."""
    r = s.bucket[s.n[TICK] % limits.ring]
    while r >= 0:
        after = s.req[r].bnext
        stop_decoding(s, limits, r)
        log_stint(s, log, r, s.n[STEPS] + 1 - s.req[r].joined)
        release(s, limits, r)
        finish(s, r)
        r = after


def completing(s: State) -> int:
    """How many prefills the planned chunks complete: each of them gives a token."""
    count = 0
    for i in range(s.n[PREFILLING]):
        r = s.prefilling[i]
        if s.req[r].done + s.req[r].chunk == s.req[r].prompt + s.req[r].origin:
            count += 1
    return count


def advance_prefills(s: State, limits: Limits, log: Log) -> None:
    """Book the chunks; a completed prompt gives a token and goes on to decode, or ends with its only token."""
    left = 0
    for i in range(s.n[PREFILLING]):
        r = s.prefilling[i]
        s.req[r].done += s.req[r].chunk
        share_prefix(s, limits, r)
        if s.req[r].done < s.req[r].prompt + s.req[r].origin:
            s.prefilling[left] = r
            left += 1
            continue
        s.req[r].origin += 1
        if s.req[r].origin == 1:
            s.req[r].prefilled_s = s.t[NOW]
            s.req[r].first_s = s.t[DELIVERED]
        if s.req[r].origin < s.req[r].output:
            start_decoding(s, limits, r)
        else:
            s.req[r].joined = s.n[STEPS]
            log_stint(s, log, r, 1)
            release(s, limits, r)
            finish(s, r)
    s.n[PREFILLING] = left


def step(s: State, limits: Limits, costs: Costs, log: Log, noise: float) -> float:
    """Run one step; returns its seconds (scaled by `noise`), 0 when nobody can run."""
    tokens = schedule(s, limits, log)
    if tokens == 0:
        return 0.0
    duration = planned_time(s, limits, costs, tokens) * noise
    s.t[DECIDED] = s.t[NOW] + costs.host
    s.t[NOW] += duration
    s.t[BUSY] += duration
    s.n[PEAK] = max(s.n[PEAK], limits.blocks - s.n[FREE])
    s.n[PREFILLED] = tokens - s.n[DECODING]
    given = s.n[DECODING] + completing(s)
    s.n[TICK] += 1
    s.n[KV] += s.n[DECODING]
    tokenise(s, costs, s.t[NOW])
    deliver(s, costs, log, given)
    finish_decodes(s, limits, log)
    advance_prefills(s, limits, log)
    s.n[STEPS] += 1
    return duration


# --- a whole run ------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """How a whole simulation goes. `concurrency` 0: open loop at the given arrivals."""

    concurrency: int
    last_start_s: float  # closed loop: no request is sent after this
    end_s: float  # the simulation is cut here
    ttft_limit_s: float  # with `allowed` >= 0: stop once more than that many requests missed a limit
    tpot_limit_s: float
    allowed: int


def missed(s: State, run: Run, r: int) -> int:
    """1 when finished `r` broke a latency limit."""
    late = s.req[r].first_s - s.req[r].arrival > run.ttft_limit_s
    gaps = s.req[r].output - 1
    slow = gaps > 0 and s.req[r].finish_s - s.req[r].first_s > run.tpot_limit_s * gaps
    return 1 if late or slow else 0


def certain_misses(s: State, run: Run, misses: int) -> int:
    """`misses` of ended requests, plus those waiting for their first token who are too late already; counted no
    further than one beyond what is allowed."""
    r = s.n[WAIT_HEAD]
    while r >= 0 and misses <= run.allowed and s.t[NOW] - s.req[r].arrival > run.ttft_limit_s:
        if s.req[r].origin == 0:
            misses += 1
        r = s.req[r].next
    return misses


def receive(s: State, limits: Limits, received: int) -> int:
    """Queue the requests that the next step can see; returns how many have been queued in all.

    Under async scheduling that step was decided while the one before began, so who came since waits one step more.
    """
    busy = s.n[WAITING_N] + s.n[DECODING] + s.n[PREFILLING] > 0
    seen_s = s.t[DECIDED] if busy and limits.asynchronous == 1 else s.t[NOW]
    while received < s.n[TOKENISED] and s.req[received].ready <= seen_s:
        enqueue(s, received)
        received += 1
    return received


def wait(s: State, costs: Costs, received: int) -> int:
    """Let time pass until the next request reaches the idle engine; 0 when none will."""
    if received >= s.n[ISSUED]:
        return 0
    tokenise(s, costs, s.req[received].arrival)
    s.t[NOW] = max(s.t[NOW], s.req[received].ready)
    return 1


def issue(s: State, run: Run) -> None:
    """Closed loop: the client sends its next request as soon as it has an answer."""
    if run.concurrency > 0 and s.n[ISSUED] < len(s.req) and s.t[DELIVERED] <= run.last_start_s:
        s.req[s.n[ISSUED]].arrival = s.t[DELIVERED]
        s.n[ISSUED] += 1


def simulate(  # noqa: PLR0917 - compiled functions take their arguments by position
    s: State, limits: Limits, costs: Costs, log: Log, noise: Sequence[float], run: Run
) -> int:
    """Run all requests of `s` in virtual time; returns how many missed a limit.

    Ends when all have ended, at `end_s`, when too many missed, or when the head of the queue can never be admitted.
    """
    s.n[ISSUED] = len(s.req) if run.concurrency == 0 else min(run.concurrency, len(s.req))
    received = 0
    misses = 0
    while s.t[NOW] < run.end_s:
        if run.allowed >= 0 and certain_misses(s, run, misses) > run.allowed:
            break
        received = receive(s, limits, received)
        if step(s, limits, costs, log, noise[s.n[STEPS] % len(noise)]) == 0.0:
            if wait(s, costs, received) == 0:
                break
            continue
        for i in range(s.n[ENDED]):
            misses += missed(s, run, s.ended[i])
            issue(s, run)
        if 0 < len(log.end_s) <= s.n[STEPS]:
            break
    return certain_misses(s, run, misses)
