"""The requests of a level once more, for another tool: the same lengths, shared prefixes and times, other tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune import load
from autotune.errors import InputError
from autotune.load.text import UNKNOWN_VOCAB
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import LevelRecord, RequestPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the other tool is to send: by `concurrency` clients, or each request at its `at_s` (None). `about_s` is how
    long it took us."""

    requests: tuple[RequestPlan, ...]
    concurrency: int | None
    about_s: float


def replay_of(level: LevelRecord, objective: ObjectiveSpec, seed: int) -> Replay:
    """Return the requests that `level` sent, warm-up included, with prompts that no cache has seen.

    Raises InputError for workloads that other tools can't be given exactly.
    """
    check_replays(objective)
    plan = load.build_level(objective.workload, objective.load, seed=level.plan_seed)
    sent = [plan.requests[record.index] for record in level.requests]
    return Replay(requests=with_other_tokens(sent, seed), concurrency=level.concurrency, about_s=level.window_s[1])


def check_replays(objective: ObjectiveSpec) -> None:
    """Raise InputError when another tool can't be given this exactly."""
    workload = objective.workload
    whys = {
        "a dataset": workload.dataset is not None,
        "conversations of several turns": workload.sessions is not None,
        "prompts of natural text": workload.text == "natural",
    }
    for what in (what for what, found in whys.items() if found):
        raise InputError(f"another tool can't be given {what} exactly", "cross-check with random tokens")
    if objective.load.capacity is not None:
        raise InputError("a cross-check takes one level, not a search for capacity", "give --rate or --concurrency")


def with_other_tokens(requests: Sequence[RequestPlan], seed: int) -> tuple[RequestPlan, ...]:
    """Return the same requests with other random tokens; prefixes are shared by the same groups."""
    rng = random.Random(seed)  # noqa: S311
    prefixes: dict[int, tuple[int, ...]] = {}
    found = []
    for request in requests:
        if request.prefix_tokens and request.prefix_group not in prefixes:
            prefixes[request.prefix_group] = _ids(rng, request.prefix_tokens)
        head = prefixes.get(request.prefix_group, ())
        tail = _ids(rng, (request.prompt_tokens or 1) - len(head))
        found.append(replace(request, prompt_ids=head + tail, prompt_text=None))
    return tuple(found)


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(*UNKNOWN_VOCAB) for _ in range(count))
