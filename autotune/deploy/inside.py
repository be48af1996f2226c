"""How an engine is started with the words measured, host and port apart: those are each deployment's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.deploy.deployment import Deployment
from autotune.engines.containers.runline import ALL_INTERFACES, INSIDE_PORT
from autotune.engines.tensorrt_llm.command import DEFAULT_COMMAND as TRTLLM
from autotune.engines.tensorrt_llm.options import FILE_NAME, render_options
from autotune.engines.vllm import render_argv
from autotune.engines.vllm.command import DEFAULT_COMMAND as VLLM
from autotune.errors import InputError
from autotune.records.spec import EngineKind

FOLDER = "/autotune"
HUB = "/autotune/hub"
ADDRESS = ("--host", ALL_INTERFACES, "--port", str(INSIDE_PORT))
"""Of a container's own network."""

HEALTH_CHECK = (
    "python3",
    "-c",
    f"import urllib.request as r; r.urlopen('http://127.0.0.1:{INSIDE_PORT}/health', timeout=5)",
)
"""Both engines' images have Python; neither promises curl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """`start` is the command and its model, `options` what was measured (and then suggested limits, where asked for);
    `files` by name are what the engine reads its options from instead, lying in FOLDER."""

    start: tuple[str, ...]
    options: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """The whole command in a container."""
        return (*self.start, *self.options, *ADDRESS, *(word for name in self.files for word in config(name)))


def config(name: str) -> tuple[str, str]:
    """The option that names a file in FOLDER."""
    return "--config", f"{FOLDER}/{name}"


def inside_of(deployment: Deployment, command: Sequence[str] | None = None) -> Inside:
    """Return how the engine is started by `command`; None: what the study's image was started with, else the engine's
    own program.

    Raises InputError for an engine that is not started at all, and for a model that would be read as an option.
    """
    if deployment.model.startswith("-"):
        raise InputError(f"the model's name {deployment.model!r} begins with a dash", "it would be read as an option")
    if command is None:
        command = deployment.spec.engine.command if deployment.spec.engine.container is not None else ()
    match deployment.engine:
        case EngineKind.VLLM:
            extra = render_argv(deployment.extra_args) if deployment.asked.limits else ()
            options = (*render_argv(deployment.args), *extra)
            return Inside(start=_start(command or VLLM, deployment.model), options=options)
        case EngineKind.TENSORRT_LLM:
            files = {FILE_NAME: render_options(deployment.args)}
            return Inside(start=_start(command or TRTLLM, deployment.model), files=files)
        case other:
            hint = "an endpoint serves already; of Triton, --format triton writes the model repository"
            raise InputError(f"a run of {other.value} has no command that this format could start", hint)


def _start(command: Sequence[str], model: str) -> tuple[str, ...]:
    """Both engines have a subcommand `serve`, which the command may say itself."""
    return (*command, *(() if command[-1] == "serve" else ("serve",)), model)
