"""Before the load: how a server wants its requests, and one longest request, sent alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune import load
from autotune.engines.base import Negotiates, Server, VirtualServer
from autotune.errors import EnvironmentFault, InputError
from autotune.records.spec import StudySpec
from autotune.records.trial import Failure, Fault, Outcome, Phase, RequestRecord
from autotune.trial.deaths import client_fault, wait_for_death
from autotune.trial.plans import canary_request, size_text
from autotune.trial.refusal import not_served

UNAUTHORISED = (401, 403)
CANARY_TIMEOUT_S = 180.0  # a first request may compile kernels; a longest request may queue for ever (vllm#39407)


def dialect_of(spec: StudySpec, server: Server, on_phase: Callable[[str], None]) -> load.Dialect | None:
    """Ask a server what it takes of vLLM's ways; None for those that we launch and know.

    Raises EnvironmentFault when the load client fails.
    """
    ours = isinstance(server, Negotiates)
    if isinstance(server, VirtualServer) or (server.argv and not ours):
        return None
    on_phase("asking what it takes")
    request = canary_request(spec, server)
    own = server.prompt_writer if isinstance(server, Negotiates) else None
    decode = (own or _writer(spec.model)) if request.messages is None else None
    return load.negotiate(server.endpoint, request, decode=decode)


def _writer(model: str) -> Callable[[Sequence[int]], str] | None:
    """What writes prompts for servers that take no token ids; None without the model's tokenizer on this machine."""
    try:
        return load.prompt_writer(model)
    except InputError:
        return None


def canary(
    spec: StudySpec, server: Server, on_phase: Callable[[str], None], dialect: load.Dialect | None = None
) -> Failure | None:
    """Send one longest request alone, and return why it failed: servers that die on the first request, or hold one that
    can't fit for ever, are common."""
    if isinstance(server, VirtualServer):
        return None
    on_phase("canary")
    request = canary_request(spec, server)
    try:
        answer = load.probe(server.endpoint, request, timeout_s=CANARY_TIMEOUT_S, dialect=dialect)
    except EnvironmentFault as fault:
        return client_fault(fault, Phase.CANARY)
    if answer.error is None:
        return None
    if failure := _no_key(server, answer) or wait_for_death(server, Phase.CANARY):
        return failure
    if not server.argv:
        return not_served(answer.status, answer.error)
    return Failure(
        outcome=Outcome.BAD_CONFIG,
        fault=Fault.CANDIDATE,
        phase=Phase.CANARY,
        cause=f"one request of {size_text(request)} tokens failed: {answer.error}",
        remedy="the engine runs but can't serve the workload's longest request: see engine.log",
    )


def _no_key(server: Server, answer: RequestRecord) -> Failure | None:
    """An engine of ours that wants a key of which the study says nothing: no candidate's fault."""
    if not server.argv or answer.status not in UNAUTHORISED:
        return None
    return Failure(
        outcome=Outcome.ENVIRONMENT,
        fault=Fault.SETUP,
        phase=Phase.CANARY,
        cause=f"the engine refuses the tuner's requests: {answer.error}",
        remedy='give the key that it wants by the environment: engine.env: {VLLM_API_KEY: "${VLLM_API_KEY}"}',
    )
