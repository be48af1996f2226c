"""What a study needs before its first launch: the image pulled, the model fetched and whole. `autotune prepare FILE`.

In: a study. Out: `Prepared`, one line for each thing that is there now. Everything can be asked for again: what is
there is not fetched twice.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.engines.command import engine_python, program_path, resolved_env
from autotune.engines.containers.engine import ContainerRefusedError, EngineContainers
from autotune.engines.containers.runtime import RuntimeRefusedError, runtime_of
from autotune.engines.hub import complete_snapshot, is_path, offline
from autotune.engines.logfile import redact
from autotune.engines.model_files import missing_in
from autotune.engines.secrets import secrets_of
from autotune.engines.tensorrt_llm.command import find_program as find_trtllm
from autotune.engines.tensorrt_llm.container import trtllm_containers
from autotune.engines.triton.command import with_command
from autotune.engines.triton.container import triton_containers
from autotune.engines.vllm.command import find_program as find_vllm
from autotune.engines.vllm.container import vllm_containers
from autotune.engines.vllm.diagnosis import known_cause
from autotune.errors import EnvironmentFault, InputError
from autotune.records.spec import ContainerSpec, EngineKind, StudySpec
from autotune.records.trial import Phase

CHILD = Path(__file__).with_name("fetch_child.py")
GIB = 2**30

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is there now, a line each; `offline`: the study's launches will not ask the hub."""

    lines: tuple[str, ...]
    offline: bool


def prepare(spec: StudySpec, tell: Tell) -> Prepared:
    """Fetch what is missing; `tell` is given a sentence before whatever takes long.

    Raises EnvironmentFault with the remedy when something can't be had, and when a local model is not whole; InputError
    for a path where nothing is.
    """
    lines = [_image(spec.engine.container, tell)] if spec.engine.container is not None else []
    if spec.simulated or spec.engine.kind is EngineKind.ENDPOINT:
        what = "an endpoint" if spec.engine.kind is EngineKind.ENDPOINT else "simulated"
        lines.append(f"model {spec.model}: nothing to fetch, the engine is {what}")
        return Prepared(lines=tuple(lines), offline=True)
    env = resolved_env(spec.engine.env)
    if is_path(spec.model):
        lines.append(_local(spec))
    elif spec.model.startswith(("/", "./", "../", "~")):
        raise InputError(f"there is no model in {spec.model}", "check the path; one of the hub is `organisation/name`")
    elif (folder := _complete(spec, env)) is not None:
        lines.append(f"model {spec.model}: whole in {folder}")
    else:
        lines.append(_fetched(spec, env, tell))
    stays_off = is_path(spec.model) or bool(offline(spec.model, spec.engine.args, env))
    return Prepared(lines=tuple(lines), offline=stays_off)


def _complete(spec: StudySpec, env: Mapping[str, str]) -> Path | None:
    return complete_snapshot(spec.model, spec.engine.args, {**os.environ, **env})


def _local(spec: StudySpec) -> str:
    folder = Path(spec.model).expanduser().absolute()
    if folder.is_file():  # GGUF: a file is all of it
        return f"model {folder}: a file"
    problems = list(missing_in(folder, weights=spec.engine.args.get("load_format") != "dummy"))
    if problems:
        raise EnvironmentFault(f"the model in {folder} can't be loaded: {'; '.join(problems)}", "copy it again, whole")
    return f"model {folder}: whole"


# --- image ------------------------------------------------------------------------------------------------------------


def _image(container: ContainerSpec, tell: Tell) -> str:
    runtime = runtime_of(container)
    if runtime is None:
        raise EnvironmentFault(
            f"there is no program `{container.runtime}`", "install it, or set engine.container.runtime"
        )
    try:
        return f"image {container.image}: here, {runtime.image(container.image).id}"
    except RuntimeRefusedError:
        tell(f"pulling {container.image}")
    code = subprocess.run([runtime.program, "pull", container.image], check=False, stdout=2).returncode
    if code != 0:
        raise EnvironmentFault(
            f"{container.image} could not be pulled: {container.runtime} ended with {code}",
            f"its words stand above; log in to the registry (`{container.runtime} login`), or check the name",
        )
    return f"image {container.image}: pulled, {runtime.image(container.image).id}"


# --- model ------------------------------------------------------------------------------------------------------------


def _fetched(spec: StudySpec, env: Mapping[str, str], tell: Tell) -> str:
    argv, added, remove = _child(spec, env)
    last: Mapping[str, Any] = {}
    try:
        for last in _events(argv, {**os.environ, **added}):
            if last["event"] == "plan":
                tell(_plan_words(spec.model, last))
    finally:
        remove()
    match last.get("event"):
        case "done":
            return f"model {spec.model}: fetched to {last['folder']}"
        case "failed":
            raise _refused(spec, redact(str(last["error"]), secrets_of(spec.engine.env)))
        case "full":
            raise EnvironmentFault(
                f"the disk of the model cache is too small for {spec.model}",
                "free space, or put the cache elsewhere (engine.env: {HF_HOME: /large/disk})",
            )
    raise EnvironmentFault(
        f"{spec.model} could not be fetched: the engine's Python ended without a word",
        "its last words stand above; huggingface_hub must be installed beside the engine",
    )


def _child(spec: StudySpec, env: Mapping[str, str]) -> tuple[Sequence[str], Mapping[str, str], Callable[[], object]]:
    """The command line of the child that fetches, what its environment gets (the token never stands on the line), and
    what removes its container."""
    args = spec.engine.args
    asked = json.dumps({
        "repository": spec.model,
        "revision": args.get("revision"),
        "code": bool(args.get("trust_remote_code")),
        "consolidated": args.get("load_format") == "mistral",
    })  # fmt: skip
    if spec.engine.container is not None:
        containers = _containers(spec, spec.engine.container)
        try:
            line, added, kept = containers.asking(("-I", "-c", CHILD.read_text(encoding="utf-8"), asked), ())
        except ContainerRefusedError as refused:
            raise EnvironmentFault(refused.failure.cause, refused.failure.remedy) from refused
        return line, added, kept.remove
    program = _program(spec, env)
    python = engine_python(program) if program else None
    if python is None:
        raise EnvironmentFault(
            f"{spec.model} can't be fetched: there is no Python of the engine's to do it",
            f"set engine.command to the engine's program, or fetch it with `hf download {spec.model}`",
        )
    return (str(python), "-I", str(CHILD), asked), env, lambda: None


def _program(spec: StudySpec, env: Mapping[str, str]) -> Path | None:
    match spec.engine.kind:
        case EngineKind.VLLM:
            return find_vllm(spec.engine.command, env)
        case EngineKind.TRITON:
            return program_path(with_command(spec).engine.command, env)
    return find_trtllm(spec.engine, env)


def _containers(spec: StudySpec, container: ContainerSpec) -> EngineContainers:
    match spec.engine.kind:
        case EngineKind.VLLM:
            return vllm_containers(spec, container, simulated=False)
        case EngineKind.TRITON:
            return triton_containers(with_command(spec), container)
    return trtllm_containers(spec, container)


def _events(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None  # noqa: S101  opened as a pipe
        for line in child.stdout:
            if line.startswith('{"event"'):
                yield json.loads(line)


def _plan_words(model: str, plan: Mapping[str, Any]) -> str:
    missing, free = plan["missing_bytes"] / GIB, plan["free_bytes"] / GIB
    return f"fetching {model}: {missing:.1f} GiB in {plan['files']} files to {plan['cache']} ({free:.1f} GiB free)"


def _refused(spec: StudySpec, error: str) -> EnvironmentFault:
    """The same words of causes as for an engine that can't load its model."""
    known = known_cause(Phase.LAUNCH, error)
    remedy = known.remedy if known else "check the model's name and the network"
    if "OfflineModeIsEnabled" in error:
        remedy = "unset HF_HUB_OFFLINE (here, or in engine.env) for as long as the model is fetched"
    elif "ConnectError" in error or "ConnectionError" in error:  # "run offline" is no help before the model is here
        remedy = "the model hub can't be reached from here: check network, proxy (HTTPS_PROXY) and HF_ENDPOINT"
    return EnvironmentFault(f"{spec.model} could not be fetched: {error.strip().splitlines()[0]}", remedy)
