"""A server that somebody else runs, measured as it is: nothing is launched, and a study of it is one trial."""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from autotune.engines.base import Preflight, Server
from autotune.engines.endpoint import EndpointServer, address, connect, parse_url
from autotune.errors import EnvironmentFault, InputError, Problem
from autotune.records.spec import Args, EngineKind, StudySpec
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Phase


class EndpointEngine:
    """Follows `engines.base.Engine`. It is asked once who it is; its key is read then, and written nowhere."""

    kind = EngineKind.ENDPOINT

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._found: EndpointServer | None = None

    @property
    def simulated(self) -> bool:
        """As far as it tells: a simulated server says so once it is reached."""
        return self._found is not None and self._found.simulated

    def problems(self, spec: StudySpec) -> Iterable[Problem]:
        try:
            parse_url(spec.engine.url or "")
        except InputError as error:
            yield Problem(path=("engine", "url"), message=error.message, hint=error.hint)

    @contextmanager
    def launch(
        self,
        candidate: Candidate,  # noqa: ARG002  it has no arguments
        *,
        trial_dir: Path,  # noqa: ARG002
        gpus: Sequence[str],  # noqa: ARG002
        on_phase: Callable[[str], None],
    ) -> Iterator[Server]:
        on_phase("reaching it")
        yield self._reached()

    def preflight(
        self,
        *,
        gpus: Sequence[str],  # noqa: ARG002
        tell: Callable[[str], None],  # noqa: ARG002
    ) -> AbstractContextManager[Preflight | None]:
        return nullcontext(None)

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:  # noqa: ARG002  it has no log
        cause = "the endpoint ended, for a reason that only its own log tells"
        return Failure(outcome=Outcome.ENVIRONMENT, fault=Fault.ENVIRONMENT, phase=phase, cause=cause)

    def versions(self) -> Mapping[str, str | None]:
        server = self._reached()
        return {"endpoint": server.version, "url": address(server.endpoint), "weights": server.card.root}

    def defaults(self) -> Args:
        return {}

    def read_incumbent(self, text: str) -> Args:
        raise InputError(f"{len(text)} characters of an incumbent have no effect", "an endpoint is measured as it is")

    def _reached(self) -> EndpointServer:
        """Raises EnvironmentFault when it can't be, InputError when it has no such model."""
        if self._found is None:
            engine = self._spec.engine
            self._found = connect(engine.url or "", model=self._spec.model, api_key=_key(engine.api_key_env))
        return self._found


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise EnvironmentFault(f"the environment variable {variable!r} is not set, or empty", "export it first")
    return os.environ[variable]
