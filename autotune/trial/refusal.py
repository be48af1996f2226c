"""Why a server that runs already can't be measured: its answer to the canary, in words that say what to change."""

from __future__ import annotations

from autotune.records.trial import Failure, Fault, Outcome, Phase

_OTHERWISE = "it runs, but not for these requests: compare model and lengths with what it serves"
_BY_STATUS = {
    401: "it wants a key, or another one: engine.api_key_env (bench: --api-key-env) names the variable that holds it",
    403: "the key may not use this model",
    404: "it has no such route or model; an API of chat alone wants a workload of messages (workload.dataset)",
    429: "its rate limit is used up before the load begins: wait, or ask for a higher one",
}
_NO_STREAM = "it doesn't stream, so that neither TTFT nor TPOT can be measured: turn streaming on"


def not_served(status: int | None, error: str) -> Failure:
    """Return the failure of a server of which one request, sent alone, failed with `error`."""
    return Failure(
        outcome=Outcome.ENVIRONMENT,
        fault=Fault.SETUP,
        phase=Phase.CANARY,
        cause=f"one request, sent alone, failed: {error}",
        remedy=_NO_STREAM if error.startswith("not an event stream") else _BY_STATUS.get(status or 0, _OTHERWISE),
    )
