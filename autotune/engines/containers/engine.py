"""An engine in containers: its run lines for serving, for its versions and for its preflight, all in one image.

What differs between engines is a `Guest`; image, GPUs, mounts, environment and removal are the same for all.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotune.engines.command import VERSIONS_TIMEOUT_S, resolved_env
from autotune.engines.containers.failures import no_runtime, not_started
from autotune.engines.containers.guest import FOLDER, Guest, Launch
from autotune.engines.containers.launch import ContainerLaunch, launch_mark
from autotune.engines.containers.mounts import gpu_uuids, model_mounts, wants_hub
from autotune.engines.containers.owner import LAUNCH, OWNER, STUDY, TRIAL, owner
from autotune.engines.containers.runline import (
    ALL_INTERFACES,
    INSIDE_PORT,
    Environment,
    Inside,
    asking_line,
    has_option,
    on_host_network,
    serving_line,
    split_environment,
)
from autotune.engines.containers.runtime import Image, Runtime, RuntimeRefusedError, runtime_of
from autotune.engines.hub import OFFLINE_NAMES, offline
from autotune.engines.net import HOST
from autotune.engines.secrets import secrets_of
from autotune.models.facts import hub_cache
from autotune.records.spec import Args, ContainerSpec, StudySpec
from autotune.records.trial import Failure, LaunchPlan

HUB = f"{FOLDER}/hub"
START_TIMEOUT_S = 300.0  # storage drivers that copy the image take minutes for each container

AS_IT_IS = 'exec "$0" "$@"'
"""For `bash -c`: run the program and its arguments, once bash has read the file that the image's BASH_ENV names."""

PYTHON_OF = """
IFS= read -r first < "$(command -v "$0")" || exit 127
case $first in "#!"*python*) set -- ${first#??} "$@";; *) set -- python3 "$@";; esac
exec "$@"
"""
"""For `sh -c`: run the arguments after the program's name in the Python that its first line names."""


class ContainerRefusedError(Exception):
    """No container can be had: `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


class EngineContainers:
    """The containers of one study. Everything but `versions` raises ContainerRefusedError where none can be had.

    The image is looked up once, and launched by its id: a tag that moves meanwhile changes no trial.
    """

    def __init__(self, spec: StudySpec, container: ContainerSpec, guest: Guest, *, simulated: bool) -> None:
        self._spec = spec
        self._container = container
        self._guest = guest
        self._simulated = simulated  # then neither GPUs nor weights are wanted

    @cached_property
    def _runtime(self) -> Runtime:
        """The client, once what dead tuners left of this study is gone."""
        runtime = runtime_of(self._container)
        if runtime is None:
            raise ContainerRefusedError(no_runtime(self._container))
        try:
            runtime.remove(runtime.left_by_the_dead(self._spec.name))
        except RuntimeRefusedError as refused:
            raise ContainerRefusedError(self.failure(refused.text, refused.code)) from refused
        return runtime

    @cached_property
    def _image(self) -> Image:
        try:
            return self._runtime.image(self._container.image)
        except RuntimeRefusedError as refused:
            raise ContainerRefusedError(self.failure(refused.text, refused.code)) from refused

    def failure(self, said: str, code: int | None) -> Failure:
        """Why a container did not start."""
        return not_started(self._container, said, code)

    # --- serving ------------------------------------------------------------------------------------------------------

    def launch(self, args: Args, *, folder: Path, port: int, gpus: Sequence[str]) -> tuple[LaunchPlan, ContainerLaunch]:
        """Return how to start these arguments, a trial's whose folder is `folder`; the server answers on `port` of this
        machine's loopback."""
        guest, host_network = self._guest, on_host_network(self._container)
        host, inside_port = (HOST, port) if host_network else (ALL_INTERFACES, INSIDE_PORT)
        numbered = tuple(str(index) for index in range(len(gpus)))  # inside, there are no others
        launch = Launch(args=args, host=host, port=inside_port, folder=FOLDER, gpus=numbered)
        kept = self._kept(host_network)
        mounts = tuple(f"{(folder / name).absolute()}:{FOLDER}/{name}:ro" for name in guest.mounts)
        command = self._by_shell(guest.command(launch))
        inside = self._inside(command, kept.mark, folder.name, gpus, args=args, mounts=mounts)
        line = serving_line(
            self._container, self._runtime.program, inside, port=port, memlock=self._may_lift("MEMLOCK")
        )
        env = inside.environment.client
        return self._plan(line, env, launch, port), kept

    def _by_shell(self, command: Sequence[str]) -> tuple[str, ...]:
        return ("bash", "-c", AS_IT_IS, *command) if self._guest.by_bash else tuple(command)

    def _kept(self, host_network: bool) -> ContainerLaunch:
        return ContainerLaunch(
            runtime=self._runtime,
            mark=launch_mark(),
            host_network=host_network,
            host_ipc="host" in _values(self._container.options, "--ipc"),
            start_timeout_s=START_TIMEOUT_S,
        )

    def _plan(self, line: tuple[str, ...], env: Mapping[str, str], launch: Launch, port: int) -> LaunchPlan:
        guest = self._guest
        return LaunchPlan(
            argv=line,
            env=env,
            host=HOST,
            port=port,
            model_name=guest.model_name(launch.args),
            files=guest.files(launch),
            redacted=secrets_of(self._spec.engine.env),
            api_key=guest.api_key(resolved_env(self._spec.engine.env)),
            health_path=guest.health_path,
        )

    def _inside(
        self,
        command: Sequence[str],
        mark: str,
        trial: str,
        gpus: Sequence[str],
        *,
        args: Args,
        mounts: Sequence[str] = (),
    ) -> Inside:
        values = self._values(args)
        hub = self._hub_mount(values)
        environment = split_environment(values, secrets_of(self._spec.engine.env))
        if hub:
            environment = Environment(client=environment.client, written={**environment.written, "HF_HUB_CACHE": HUB})
        return Inside(
            image=self._image.id,
            command=command,
            environment=environment,
            mounts=(*model_mounts(self._spec.model), *hub, *mounts),
            gpus=gpu_uuids(gpus) if not self._simulated else (),
            labels={STUDY: self._spec.name, TRIAL: trial, OWNER: owner(), LAUNCH: mark},
            stack_bytes=self._guest.stack_bytes if self._may_lift("STACK") else None,
        )

    def _values(self, args: Args) -> dict[str, str]:
        """The study's own variables, and what keeps the engine off the network as it would be kept outside."""
        values = {**self._guest.env, **resolved_env(self._spec.engine.env)}
        if self._simulated or not wants_hub(self._spec.model, values) or set(OFFLINE_NAMES) & set(values):
            return values
        around = {name: os.environ[name] for name in OFFLINE_NAMES if name in os.environ}
        return {**around, **offline(self._spec.model, args, {}), **values}

    def _hub_mount(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The hub's cache of this machine. Its token file stays outside: a token is given by name in engine.env."""
        if self._simulated or not wants_hub(self._spec.model, values):
            return ()
        folder = hub_cache(os.environ).absolute()
        folder.mkdir(parents=True, exist_ok=True)  # the daemon would make it as root
        stays_off = values.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
        return (f"{folder}:{HUB}{':ro' if stays_off else ''}",)

    def _may_lift(self, limit: str) -> bool:
        """Docker's daemon may lift a limit; podman has no more than its user."""
        own = resource.getrlimit(getattr(resource, f"RLIMIT_{limit}"))[1]
        return self._container.runtime == "docker" or own == resource.RLIM_INFINITY

    # --- asking -------------------------------------------------------------------------------------------------------

    def asking(
        self, program: Sequence[str], gpus: Sequence[str]
    ) -> tuple[tuple[str, ...], Mapping[str, str], ContainerLaunch]:
        """Return the line, the additions to the client's environment and the means of removal of a child in the
        engine's own Python; `program` are that Python's arguments."""
        kept = self._kept(on_host_network(self._container))
        mounts = tuple(f"{file}:{inside}:ro" for inside, file in self._guest.children.items())
        asked = (*self._python(), *program)
        inside = self._inside(asked, kept.mark, "preflight", gpus, args=self._spec.engine.args, mounts=mounts)
        line = asking_line(self._container, self._runtime.program, inside, memlock=self._may_lift("MEMLOCK"))
        return line, inside.environment.client, kept

    def _python(self) -> tuple[str, ...]:
        """What starts the engine's own Python in the image."""
        program, shell = self._guest.program[0], "bash" if self._guest.by_bash else "sh"
        if Path(program).name.startswith("python"):
            return self._by_shell((program,))
        return (shell, "-c", PYTHON_OF, program)

    def own_versions(self) -> Mapping[str, str | None]:
        """The image, by its registry's digest where it has one, and the runtime; None where it can't be asked."""
        try:
            image, runtime = self._image, self._runtime.version()
        except (ContainerRefusedError, RuntimeRefusedError):
            return {"container_image": None, "container_runtime": None}
        return {"container_image": image.digest or image.id, "container_runtime": runtime}

    def versions(self) -> Mapping[str, str | None]:
        """Versions inside the image, and `own_versions`; None where it can't be asked."""
        known = {**self._guest.unknown_versions, **self.own_versions()}
        try:
            line, _, kept = self.asking(("-I", "-c", self._guest.ask_versions), ())
        except ContainerRefusedError:
            return known
        try:
            return {**known, **_json_of(self._runtime.ask(*line[1:], timeout_s=VERSIONS_TIMEOUT_S))}
        except RuntimeRefusedError:
            return known
        finally:
            kept.remove()


def _json_of(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return {}


def _values(options: Sequence[str], name: str) -> list[str]:
    if not has_option(options, name):
        return []
    words = [word for option in options for word in option.split("=", 1)]
    return [value for word, value in pairwise(words) if word == name]
