"""The requests of a trial: a study and a ready server in, the plan of a level and the longest request out."""

from __future__ import annotations

from autotune import load
from autotune.engines.base import Server
from autotune.records.spec import LoadSpec, ObjectiveSpec, StudySpec
from autotune.records.trial import LevelPlan, RequestPlan

LOOKED_AT = 1_000  # requests among which the longest of a file is sought
CANARY_LEVEL = 999  # no level is it: a trace's canary has tokens of its own, so that no level finds them cached


def plan_of(spec: StudySpec, server: Server, asked: LoadSpec, index: int) -> LevelPlan:
    """Return level number `index` of a launch, within what the server holds. Raises InputError."""
    return load.build_level(
        spec.objective.workload,
        asked,
        seed=level_seed(spec.seed, index),
        vocab_size=server.vocab_size,
        max_total_tokens=server.max_model_len,
        model=spec.model,
    )


def level_seed(study_seed: int, index: int) -> int:
    """The seed of a level: another for each level of a launch, but the same for every candidate.

    All are measured on one trace, so that a difference between two is not one of luck with the requests drawn.
    """
    return study_seed * 1_000 + index


def canary_request(spec: StudySpec, server: Server) -> RequestPlan:
    """Return the longest request of the workload; where only a file tells, the longest of the first `LOOKED_AT`
    drawn from it. Raises InputError when the file can't be read."""
    if spec.objective.workload.longest_tokens is not None:
        return longest_request(spec.objective)
    asked = spec.objective.load
    plan = plan_of(spec, server, asked if asked.trace is not None else LoadSpec(concurrency=1), CANARY_LEVEL)
    return max(plan.requests[: min(LOOKED_AT, len(plan.requests))], key=_length)


def size_text(request: RequestPlan) -> str:
    """Return `500 + 20`: tokens of prompt and answer; a prompt of messages is put at four characters a token."""
    prompt = f"about {_length(request) // 4}" if request.prompt_tokens is None else request.prompt_tokens
    return f"{prompt} + {request.output_tokens}"


def longest_request(objective: ObjectiveSpec) -> RequestPlan:
    """The longest request that a synthetic workload can hold, with prompt ids that any vocabulary has."""
    prompt_tokens, output_tokens = objective.workload.longest_tokens or (1, 1)
    return RequestPlan(
        index=0,
        at_s=None,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prompt_ids=tuple(200 + index % 1_000 for index in range(prompt_tokens)),
    )


def _length(request: RequestPlan) -> int:
    """In tokens; of messages, which only the server can count, in characters."""
    if request.prompt_tokens is not None:
        return request.prompt_tokens + request.output_tokens
    return sum(len(str(message.get("content", ""))) for message in request.messages or ())
