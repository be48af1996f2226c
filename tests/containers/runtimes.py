"""The runtimes under test: real podman where there is one, and a stand-in for docker (docker_stand_in.py)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autotune.engines.containers.launch import ContainerLaunch, launch_mark
from autotune.engines.containers.owner import LAUNCH, OWNER, STUDY, TRIAL, owner
from autotune.engines.containers.runline import Environment, Inside, serving_line
from autotune.engines.containers.runtime import Runtime, runtime_of
from autotune.engines.process import EngineProcess, engine_process
from autotune.records.spec import ContainerSpec

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = Path(sys.base_prefix)

IMAGES = {"podman": "localhost/autotune-test", "docker": "local/engine"}
PODMAN_ENV = {"CONTAINERS_CONF": str(HERE / "containers.conf"), "STORAGE_DRIVER": "vfs"}


def container(runtime: str, *options: str, mounts: Sequence[str] = ()) -> ContainerSpec:
    """A container in which this machine's Python and this project run."""
    there = sorted({f"{path}:{path}:ro" for path in (PYTHON, ROOT) if not path.is_relative_to("/usr")})
    return ContainerSpec(
        runtime=runtime,  # type: ignore[arg-type]
        image=IMAGES[runtime],
        mounts=("/usr:/usr:ro", *there, *mounts),
        options=("--workdir", str(ROOT), *options),
    )


def why_no_podman() -> str | None:
    """Why tests with a real podman can't run here; None when they can."""
    if shutil.which("podman") is None:
        return "no podman here: make test-podman installs it"
    asked = subprocess.run(
        ["podman", "image", "exists", IMAGES["podman"]],
        env={**os.environ, **PODMAN_ENV},
        check=False,
        capture_output=True,
    )
    return None if asked.returncode == 0 else "no image for it: run scripts/podman_image.sh"


def use_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the tuner find podman as the tests configure it, or skip."""
    if why := why_no_podman():
        pytest.skip(why)
    for name, value in PODMAN_ENV.items():
        monkeypatch.setenv(name, value)


def use_stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have the tuner find the stand-in as `docker`, its state in `folder`."""
    folder.mkdir(exist_ok=True)
    programs = folder.with_name("programs")
    programs.mkdir(exist_ok=True)
    program = programs / "docker"
    program.write_text(f"#!{sys.executable} -IS\n{(HERE / 'docker_stand_in.py').read_text()}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_STAND_IN", str(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """One runtime, and containers of one study in it."""

    container: ContainerSpec
    runtime: Runtime
    study: str

    def ids(self) -> tuple[str, ...]:
        """What there is of the study."""
        return self.runtime.labelled(f"{STUDY}={self.study}")

    def launch(self, *, host_network: bool = True) -> ContainerLaunch:
        """Means to keep one more."""
        return ContainerLaunch(
            runtime=self.runtime, mark=launch_mark(), host_network=host_network, start_timeout_s=30.0
        )

    def line(
        self, command: Sequence[str], kept: ContainerLaunch, *, port: int, env: Mapping[str, str]
    ) -> tuple[str, ...]:
        """The run line of a program, its port published or on the host's network, `env` given by name."""
        inside = Inside(
            image=self.container.image,
            command=command,
            environment=Environment(client=env, written={}),
            labels={STUDY: self.study, TRIAL: "0000", OWNER: owner(), LAUNCH: kept.mark},
        )
        more = ("--network", "host") if kept.host_network else ()
        container = replace(self.container, options=(*self.container.options, *more))
        return serving_line(container, self.runtime.program, inside, port=port)

    @contextmanager
    def keeping(
        self, code: str, log: Path, *, publish: int = 0, listen: int = 0, env: Mapping[str, str] | None = None
    ) -> Iterator[EngineProcess]:
        """A kept container that runs a Python program whose arguments are where to listen: on a port that is published
        as `publish`, else on the host's network on `listen`."""
        kept = self.launch(host_network=not publish)
        where = ("0.0.0.0", "8000") if publish else ("127.0.0.1", str(listen))
        line = self.line((sys.executable, "-c", code, *where), kept, port=publish, env=env or {})
        environment = {**os.environ, **(env or {})}
        with engine_process(line, env=environment, log=log, port=publish or listen or None, contained=kept) as process:
            yield process


def lab(runtime: str, study: str) -> Lab:
    """The lab of a runtime that `use_podman` or `use_stand_in` prepared."""
    spec = container(runtime)
    found = runtime_of(spec)
    assert found is not None
    return Lab(container=spec, runtime=found, study=study)
