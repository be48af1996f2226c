"""Stage engines: a `Candidate` in, a `Server` that is ready to be loaded out, and nothing of it stays behind.

An engine is a process (or a model in virtual time), never an import: the tuner installs without any engine.
A new engine is one class that follows `Engine`, added to `engine_for`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from autotune.errors import Problem
from autotune.records.spec import Args, EngineKind, StudySpec
from autotune.records.trial import Candidate, Cleanup, Endpoint, Failure, LevelPlan, LevelRecord, Phase


class LaunchError(Exception):
    """A candidate did not become ready. Not an `AutotuneError`: a failed trial is an outcome of the study.

    `log_tail` are the last lines of the engine's log, redacted; `cleanup` is set once the launch is cleared away.
    `argv` is what was started, empty when it didn't come to that; `others_bytes` what other processes held of each GPU
    before it.
    """

    def __init__(
        self,
        failure: Failure,
        *,
        log_tail: Sequence[str] = (),
        cleanup: Cleanup | None = None,
        argv: Sequence[str] = (),
        others_bytes: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(failure.cause)
        self.failure = failure
        self.log_tail = tuple(log_tail)
        self.cleanup = cleanup
        self.argv = tuple(argv)
        self.others_bytes = dict(others_bytes or {})


@runtime_checkable
class Server(Protocol):
    """A launched engine. Methods may be called until the launch's context closes; `cleanup` is set when it has."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers, and the model name that requests must give."""

    @property
    def startup_s(self) -> float:
        """Seconds from the start of the process to the first healthy answer."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line that was started; () in virtual time."""

    @property
    def vocab_size(self) -> int | None:
        """Size of the vocabulary, for drawing prompts as token ids; None when it can't be known."""

    @property
    def max_model_len(self) -> int | None:
        """Longest prompt plus output in tokens, as the engine resolved it."""

    @property
    def cleanup(self) -> Cleanup | None:
        """Proof of the stop; None until the launch's context has closed."""

    def resolved(self) -> Mapping[str, Any]:
        """Settings as the engine resolved them, by the engine's own names; what it doesn't tell is absent."""

    def warnings(self) -> tuple[str, ...]:
        """Distinct warnings in the engine's log: silent downgrades show here."""

    def metrics(self) -> Mapping[str, float]:
        """The engine's counters and gauges now, each summed over its labels; {} when the page can't be read."""

    def exit_code(self) -> int | None:
        """None while alive; negative for a signal."""

    def log_tail(self, lines: int) -> tuple[str, ...]:
        """The last lines of the engine's log, redacted."""

    def failure(self, phase: Phase) -> Failure | None:
        """Why it died, classified; None while alive."""


@runtime_checkable
class SaysWhatItIs(Protocol):
    """A server that can be asked whether a real engine answers: a stand-in may be started by any command."""

    @property
    def simulated(self) -> bool:
        """True when it says that none does."""


@runtime_checkable
class VirtualServer(Server, Protocol):
    """A server in virtual time: it runs levels itself, since no client can load it."""

    @property
    def run_level(self) -> Callable[[LevelPlan], LevelRecord]:
        """Run one level and return what it gave."""


@runtime_checkable
class Negotiates(Server, Protocol):
    """A server of ours that does not take requests as vLLM does: it is asked first how it wants them."""

    @property
    def prompt_writer(self) -> Callable[[Sequence[int]], str] | None:
        """Writes token ids as text, for one that takes no ids; None: the model's tokenizer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The engine's own checks refuse the arguments. `failure` is classified like that of a launch, so that the user's
    set-up (a model that isn't there) is told from the candidate's own fault."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The engine's own checks accept the arguments: settings as it would resolve them, by its own names."""

    settings: Mapping[str, Any]


class Preflight(Protocol):
    """The engine's own checks, asked without a launch."""

    def ask(self, args: Args) -> Refusal | Resolved | None:
        """Return what the engine says to `args`, None when it can't be asked or the answer can't be relied on."""


class Engine(Protocol):
    """One kind of engine, configured by a study. Order of calls: `problems` (to be empty), `launch` a trial.

    Within `preflight`'s context candidates may be asked about before they are launched.
    """

    @property
    def kind(self) -> EngineKind:
        """As study files name it."""

    @property
    def simulated(self) -> bool:
        """True when no real engine runs: nothing of it is evidence."""

    def problems(self, spec: StudySpec) -> Iterable[Problem]:
        """What the engine would refuse: arguments it doesn't have, wrong types or choices, arguments the tuner owns."""

    def launch(
        self,
        candidate: Candidate,
        *,
        trial_dir: Path,
        gpus: Sequence[str],
        on_phase: Callable[[str], None],
    ) -> AbstractContextManager[Server]:
        """Start a candidate and wait until it is ready; stop it when the context closes.

        `on_phase` is called with a few words whenever start-up enters another phase. Raises LaunchError.
        """

    def preflight(
        self, *, gpus: Sequence[str], tell: Callable[[str], None]
    ) -> AbstractContextManager[Preflight | None]:
        """Make the engine's own checks ready to be asked; None where it has none. Returns before they are.

        `tell` is called with a sentence when they can't be asked (any more).
        """

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        """Classify a death by what the log says; pure."""

    def versions(self) -> Mapping[str, str | None]:
        """Versions of the engine and what it runs on, asked of its own environment once; None where unknown."""

    def defaults(self) -> Args:
        """What the engine's documentation gives for arguments that are left out; those that it derives are absent."""

    def read_incumbent(self, text: str) -> Args:
        """Arguments of what runs today, from the engine's own file format or a command line. Raises InputError."""


@runtime_checkable
class Suggests(Protocol):
    """An engine that knows what is worth trying first."""

    def suggestions(self, gpus: Sequence[str]) -> Iterable[Args]:
        """Arguments to try before a sampler's, by what is known of model, GPUs and workload; what they leave open has
        the documented defaults."""


def engine_for(spec: StudySpec) -> Engine:
    """Return the engine that a study asks for."""
    match spec.engine.kind:
        case EngineKind.VLLM:
            from autotune.engines.vllm.engine import VllmEngine  # noqa: PLC0415  only the engine asked for is loaded

            return VllmEngine(spec)
        case EngineKind.SIMULATED:
            from autotune.engines.simulated.engine import SimulatedEngine  # noqa: PLC0415

            return SimulatedEngine(spec)
        case EngineKind.ENDPOINT:
            from autotune.engines.endpoint_engine import EndpointEngine  # noqa: PLC0415

            return EndpointEngine(spec)
        case EngineKind.TENSORRT_LLM:
            from autotune.engines.tensorrt_llm.engine import TensorRtLlmEngine  # noqa: PLC0415

            return TensorRtLlmEngine(spec)
        case EngineKind.TRITON:
            from autotune.engines.triton.engine import TritonEngine  # noqa: PLC0415

            return TritonEngine(spec)
