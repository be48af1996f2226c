"""vLLM's own checks without a launch, asked through `engines.preflight`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.engines.base import Preflight, Refusal, Resolved
from autotune.engines.command import resolved_model
from autotune.engines.preflight import ANSWER_TIMEOUT_S, Asked, asked_child
from autotune.engines.vllm import preflight_child
from autotune.engines.vllm.diagnosis import diagnose
from autotune.engines.vllm.flags import render_argv
from autotune.records.spec import Args
from autotune.records.trial import Failure, Fault, Outcome, Phase

CAUSE_CHARS = 400
ENV = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}


def child_in(python: Path) -> tuple[str, str]:
    """The child's command line in a Python of this machine."""
    return str(python), preflight_child.__file__


@contextmanager
def vllm_preflight(
    child: Sequence[str],
    model: str,
    *,
    env: Mapping[str, str],
    redacted: Sequence[str] = (),
    tell: Callable[[str], None],
    answer_timeout_s: float = ANSWER_TIMEOUT_S,
    after: Callable[[], object] = lambda: None,
) -> Iterator[Preflight]:
    """Start asking a vLLM about `model`, as `engines.preflight.asked_child` does."""
    with asked_child(
        child,
        "vLLM",
        env={**ENV, **env},
        redacted=redacted,
        tell=tell,
        answer_timeout_s=answer_timeout_s,
        after=after,
    ) as asked:
        yield VllmPreflight(asked=asked, model=model)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPreflight:
    """Follows `engines.base.Preflight`. Made by `vllm_preflight`."""

    asked: Asked
    model: str

    def ask(self, args: Args) -> Refusal | Resolved | None:  # noqa: D102  the protocol documents it
        answer = self.asked.ask({"argv": ["--model", resolved_model(self.model), *render_argv(args)]})
        if answer is None:
            return None
        if answer["event"] == "resolved":
            return Resolved(settings=answer["settings"])
        return refusal_of(answer["error"], sure=answer["event"] == "refused")


def refusal_of(error: str, *, sure: bool) -> Refusal | None:
    """Return what an error of vLLM's configuration means for a candidate; None when that can't be told.

    `sure`: its type is one by which vLLM refuses values. What the machine causes refuses nothing.
    """
    failure = diagnose(1, Phase.LAUNCH, error)
    if failure.fault is Fault.SETUP or (failure.fault is Fault.CANDIDATE and failure.outcome is Outcome.BAD_CONFIG):
        return Refusal(failure=failure)
    if failure.outcome is not Outcome.UNKNOWN or not sure:
        return None
    return Refusal(
        failure=Failure(
            outcome=Outcome.BAD_CONFIG,
            fault=Fault.CANDIDATE,
            phase=Phase.LAUNCH,
            cause=" ".join(error.split())[:CAUSE_CHARS],
            remedy="vLLM's configuration refuses it: take the value out of the search space, or add a rule",
        )
    )
