"""Engines whose capacity is known, written apart from the product's scheduler model.

Nothing is shared with `autotune.models`: not the queues, not the order of admission, not the law of step times (a sum
with a power of the batch's tokens, no roofline). It has effects that the model lacks: prompts that stop decoding while
they are computed, reservation of a whole answer's KV cache, the shortest prompt first, padded batches, several tokens a
step, prompts that are cached, speed that drifts or is throttled, slow steps, pauses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LOOKED_AT = 32
CACHED = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """Seconds a step: fixed + per_token · tokens^power + per_pair · new x context + per_kv · context + per_seq · n.

    `prompts_first`: a step computes prompts or decodes, never both. `reserve`: admitted only if prompt and answer fit.
    `drift` is the standard deviation of ln(speed), remembered for `drift_s`; `jitter` that of a step. A pause of
    `pause_s` comes every `pause_every_s` on average (0: never). `one_prompt`: one prompt at a time is computed.
    `shortest_first`: of the LOOKED_AT that have waited longest. `pad_tok`: a batch's tokens are padded to a multiple.
    `double`: share of decodes that give two tokens. `cached`: share of requests with CACHED of their prompt in a cache.
    `slow`: share of steps that take `slow_times` as long. `throttled`: for a third of each minute everything takes
    so many times as long.
    """

    fixed_s: float
    per_token_s: float
    power: float
    per_pair_s: float
    per_kv_s: float
    per_seq_s: float
    api_s: float = 3e-3
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_tokens: int = 400_000
    prompts_first: bool = False
    reserve: bool = False
    one_prompt: bool = False
    jitter: float = 0.02
    drift: float = 0.0
    drift_s: float = 5.0
    pause_s: float = 0.0
    pause_every_s: float = 0.0
    shortest_first: bool = False
    pad_tok: int = 1
    double: float = 0.0
    cached: float = 0.0
    slow: float = 0.0
    slow_times: float = 10.0
    throttled: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """When each request was sent, got its first and its last token; NaN: not by the end."""

    sent_s: Floats
    first_s: Floats
    last_s: Floats


def serve(
    physics: Physics,
    arrival_s: Floats,
    prompt: Ints,
    output: Ints,
    *,
    seed: int,
    end_s: float = 1e18,
    clients: int = 0,
    last_s: float = 1e18,
) -> Served:
    """Serve the requests at their times, or with `clients` > 0 each as soon as one before it has ended, none after
    `last_s`."""
    p = physics
    numbers = np.array(
        [p.fixed_s, p.per_token_s, p.power, p.per_pair_s, p.per_kv_s, p.per_seq_s, p.api_s, p.max_num_seqs,
         p.max_num_batched_tokens, p.kv_tokens, p.prompts_first, p.reserve, p.one_prompt, p.jitter, p.drift, p.drift_s,
         p.pause_s, p.pause_every_s, p.shortest_first, p.pad_tok, p.double, p.cached, p.slow, p.slow_times,
         p.throttled],
        dtype=np.float64,
    )  # fmt: skip
    sent, first, last = _serve(numbers, arrival_s.copy(), prompt, output, seed, end_s, clients, last_s)
    return Served(sent_s=sent, first_s=first, last_s=last)


@njit(cache=True)
def _serve(p: Any, sent: Any, prompt: Any, output: Any, seed: int, end_s: float, clients: int, last_s: float) -> Any:  # noqa: ANN401, C901, PLR0912, PLR0915, PLR0917
    np.random.seed(seed)  # noqa: NPY002 - numba's own generator
    fixed, per_token, power, per_pair, per_kv, per_seq, api_s = p[0], p[1], p[2], p[3], p[4], p[5], p[6]
    seqs, budget, kv_tokens = int(p[7]), int(p[8]), int(p[9])
    prompts_first, reserve, one_prompt = p[10] > 0, p[11] > 0, p[12] > 0
    jitter, drift, drift_s, pause_s, pause_every_s = p[13], p[14], p[15], p[16], p[17]
    shortest_first, pad, double, cached = p[18] > 0, int(p[19]), p[20], p[21]
    slow, slow_times, throttled = p[22], p[23], p[24]
    n = len(prompt)
    first, last = np.full(n, np.nan), np.full(n, np.nan)
    done, made = np.zeros(n, np.int64), np.zeros(n, np.int64)  # tokens in the cache; answered
    running = np.zeros(min(n, 100_000), np.int64)
    chunk = np.zeros(len(running), np.int64)
    again = np.zeros(n, np.int64)  # a stack of those sent back
    again_n = 0
    order = np.arange(n)  # of admission
    issued = n if clients == 0 else min(clients, n)
    nr, queue, t, held, speed = 0, 0, 0.0, 0, 0.0
    next_pause = np.random.exponential(pause_every_s) if pause_every_s > 0 else 1e300  # noqa: NPY002
    while t < end_s:
        waiting = queue < issued and sent[order[queue]] + api_s <= t
        if nr == 0 and again_n == 0 and not waiting:
            if queue >= issued:
                break
            t = sent[order[queue]] + api_s
            continue
        # Who joins: first those sent back, then by arrival.
        room = budget
        prompts = 0
        for j in range(nr):
            r = running[j]
            rest = prompt[r] + made[r] - done[r]
            if rest > 1 or made[r] == 0:
                prompts += 1
        while nr < seqs and (not one_prompt or prompts == 0):
            if again_n > 0:
                r = again[again_n - 1]
            elif queue < issued and sent[order[queue]] + api_s <= t:
                if shortest_first:
                    best = queue
                    for k in range(queue + 1, min(queue + LOOKED_AT, issued)):
                        if sent[order[k]] + api_s > t:
                            break
                        if prompt[order[k]] < prompt[order[best]]:
                            best = k
                    chosen = order[best]
                    for k in range(best, queue, -1):  # the others stay in order
                        order[k] = order[k - 1]
                    order[queue] = chosen
                r = order[queue]
            else:
                break
            total = prompt[r] + (output[r] if reserve else made[r])
            if held + total > kv_tokens and nr > 0:
                break
            if again_n > 0:
                again_n -= 1
            else:
                queue += 1
                if cached > 0 and np.random.random() < cached:  # noqa: NPY002
                    done[r] = int(CACHED * prompt[r])
            held += total
            running[nr] = r
            nr += 1
            prompts += 1
        # What they compute.
        tokens, pairs, context, count = 0, 0.0, 0.0, 0
        only_prompts = prompts_first and prompts > 0
        for j in range(nr):
            r = running[j]
            rest = prompt[r] + made[r] - done[r]
            decoding = rest == 1 and made[r] > 0
            chunk[j] = 0
            if decoding:
                if only_prompts:
                    continue
                chunk[j] = 1
                context += done[r]
            else:
                take = min(rest, room)
                chunk[j] = take
                pairs += take * (done[r] + 0.5 * take)
            room -= chunk[j]
            tokens += chunk[j]
            if chunk[j] > 0:
                count += 1
        # How long that takes.
        padded = -(-tokens // pad) * pad
        step = fixed + per_token * padded**power + per_pair * pairs + per_kv * context + per_seq * count
        if drift > 0:
            keep = np.exp(-step / drift_s)
            speed = keep * speed + drift * np.sqrt(1 - keep * keep) * np.random.normal()  # noqa: NPY002
            step *= np.exp(speed)
        step *= max(0.5, 1 + jitter * np.random.normal())  # noqa: NPY002
        if slow > 0 and np.random.random() < slow:  # noqa: NPY002
            step *= slow_times
        if throttled > 1 and t % 60.0 < 20.0:
            step *= throttled
        t += step
        if t > next_pause:
            t += pause_s * (0.5 + np.random.random())  # noqa: NPY002
            next_pause = t + np.random.exponential(pause_every_s)  # noqa: NPY002
        # What came of it.
        left = 0
        for j in range(nr):
            r = running[j]
            done[r] += chunk[j]
            ended = False
            if chunk[j] > 0 and done[r] >= prompt[r] + made[r]:
                more = 1
                if double > 0 and made[r] > 0 and made[r] + 1 < output[r] and np.random.random() < double:  # noqa: NPY002
                    more = 2
                    done[r] += 1
                made[r] += more
                if not reserve:
                    held += more
                if made[r] == 1 and np.isnan(first[r]):
                    first[r] = t
                if made[r] >= output[r]:
                    last[r] = t
                    ended = True
                    held -= prompt[r] + output[r]
                    if clients > 0 and issued < n and t < last_s:
                        sent[issued] = t
                        issued += 1
            if not ended:
                running[left] = r
                left += 1
        nr = left
        while held > kv_tokens and nr > 1:
            r = running[nr - 1]
            nr -= 1
            held -= prompt[r] + (output[r] if reserve else made[r])
            done[r] = 0
            again[again_n] = r
            again_n += 1
    return sent[:issued], first[:issued], last[:issued]
