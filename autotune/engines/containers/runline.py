"""The `docker run` or `podman run` line of an engine, a pure function of the study and the launch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from autotune.engines.containers.owner import OURS
from autotune.engines.net import HOST
from autotune.engines.secrets import SECRET_NAME
from autotune.errors import Problem
from autotune.records.spec import ContainerSpec

INSIDE_PORT = 8000
ALL_INTERFACES = "0.0.0.0"  # noqa: S104  of the container's own network; the host publishes it on loopback only
SHM_SIZE = "16g"  # a limit, not an allocation: NCCL and vLLM's message queues fail with the runtime's default of 64 MB

OWNED = frozenset({
    "-d", "--detach", "--rm", "--name", "--cidfile", "-p", "--publish", "-P", "--publish-all", "--entrypoint", "-i",
    "--interactive", "-t", "--tty", "--restart", "--pull", "--replace",
})  # fmt: skip
"""Options that the tuner sets itself, or that would take the container out of its hands."""

CANNOT_BE = {
    ("--log-driver", "none"): "why an engine failed is told by its log",
    ("--network", "none"): "nobody could reach the engine",
    ("--net", "none"): "nobody could reach the engine",
}
"""Options that are the user's, with values that leave no trial to measure, and why."""

_WITHOUT_VALUE = frozenset("diPt")
"""Short options that others may follow in one word: `-itd`. After any other letter the rest is its value: `-p80:80`."""

_CLIENT_READS = re.compile(
    r"^(PATH|HOME|TMPDIR|LANG|SSL_\w+|LD_\w+|XDG_\w+|DOCKER_\w+|CONTAINERS?_\w+|STORAGE_\w+|(HTTPS?|NO|ALL)_PROXY)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the engine gets: `client` is added to the client's environment and passed on by name, so that no value
    stands on a command line; `written` are plain values of names that the client itself would heed."""

    client: Mapping[str, str]
    written: Mapping[str, str]

    @property
    def options(self) -> tuple[str, ...]:
        """The `--env` options."""
        names = [*self.client, *(f"{name}={value}" for name, value in self.written.items())]
        return tuple(word for name in names for word in ("--env", name))


def split_environment(values: Mapping[str, str], secret: Sequence[str] = ()) -> Environment:
    """Return how to hand `values` over. What is called a secret, or holds one of `secret`, always goes by name."""

    def written(name: str, value: str) -> bool:
        hidden = SECRET_NAME.search(name) or any(text in value for text in secret)
        return bool(_CLIENT_READS.match(name)) and not hidden

    return Environment(
        client={name: value for name, value in values.items() if not written(name, value)},
        written={name: value for name, value in values.items() if written(name, value)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What runs in the container: `command` in `image`, with `environment`; `mounts` are the tuner's own, `gpus` as
    NVML names them (UUIDs, MIG ids). `stack_bytes`: the stack that it may have, None for the runtime's limit."""

    image: str
    command: Sequence[str]
    environment: Environment
    mounts: Sequence[str] = ()
    gpus: Sequence[str] = ()
    labels: Mapping[str, str]
    stack_bytes: int | None = None


def serving_line(
    container: ContainerSpec, program: str, inside: Inside, *, port: int, memlock: bool = True
) -> tuple[str, ...]:
    """Return the line of a server: detached, its port (INSIDE_PORT) published on loopback as `port`.

    On the host's network nothing is published: the server itself must listen on loopback.
    """
    published = () if on_host_network(container) else ("--publish", f"{HOST}:{port}:{INSIDE_PORT}")
    return _line(container, program, ("--detach", *published, *_log_driver(container)), inside, memlock)


def asking_line(container: ContainerSpec, program: str, inside: Inside, *, memlock: bool = True) -> tuple[str, ...]:
    """Return the line of a program that is talked to by stdin and stdout and removed at its end."""
    return _line(container, program, ("--interactive", "--rm"), inside, memlock)


def _line(container: ContainerSpec, program: str, way: Sequence[str], inside: Inside, memlock: bool) -> tuple[str, ...]:
    entry, *rest = inside.command
    return (
        program,
        "run",
        *way,
        "--pull=never",  # fetching belongs before a study, not into a trial's time
        *(word for name, value in inside.labels.items() for word in ("--label", f"{name}={value}")),
        *gpu_options(container, inside.gpus),
        *limit_options(container, memlock=memlock and bool(inside.gpus)),
        *_stack(container, inside),
        *inside.environment.options,
        *(word for mount in (*inside.mounts, *host_mounts(container)) for word in ("--volume", mount)),
        *container.options,
        "--entrypoint",
        entry,
        inside.image,
        *rest,
    )


def gpu_options(container: ContainerSpec, gpus: Sequence[str]) -> tuple[str, ...]:
    """GPUs by UUID. Docker reads `--gpus` as CSV, hence the quotes; podman names devices by CDI (nvidia-ctk cdi)."""
    if not gpus or has_option(container.options, "--gpus") or any("nvidia.com/" in word for word in container.options):
        return ()
    if container.runtime == "docker":
        return ("--gpus", f'"device={",".join(gpus)}"')
    return tuple(word for gpu in gpus for word in ("--device", f"nvidia.com/gpu={gpu}"))


def limit_options(container: ContainerSpec, *, memlock: bool) -> tuple[str, ...]:
    """Shared memory of the container's own, which dies with it, and locked memory for GPUs' buffers and RDMA."""
    options = container.options
    own_shm = () if has_option(options, "--ipc", "--shm-size") else ("--shm-size", SHM_SIZE)
    return (*own_shm, *(("--ulimit", "memlock=-1") if memlock and not _limited(options, "memlock") else ()))


def _stack(container: ContainerSpec, inside: Inside) -> tuple[str, ...]:
    """For engines whose documentation asks for it, where they are in earnest: on GPUs."""
    if inside.stack_bytes is None or not inside.gpus or _limited(container.options, "stack"):
        return ()
    return ("--ulimit", f"stack={inside.stack_bytes}")


def _limited(options: Sequence[str], what: str) -> bool:
    return any(word.removeprefix("--ulimit=").startswith(what) for word in options)


def _log_driver(container: ContainerSpec) -> tuple[str, ...]:
    """One that `logs -f` follows to the last line, wherever the daemon sends its logs by default."""
    if has_option(container.options, "--log-driver"):
        return ()
    return ("--log-driver", "json-file" if container.runtime == "docker" else "k8s-file")


def has_option(options: Sequence[str], *names: str) -> bool:
    """Whether one of the options is among `options`, in either spelling (`--ipc host`, `--ipc=host`)."""
    return any(word.partition("=")[0] in names for word in options)


def on_host_network(container: ContainerSpec) -> bool:
    """Whether the user's options put the container on the host's network."""
    words = [word for option in container.options for word in option.split("=", 1)]
    return any(name in ("--network", "--net") and value == "host" for name, value in pairwise(words))


def host_mounts(container: ContainerSpec) -> tuple[str, ...]:
    """The user's mounts with the host's side made absolute; a name without a slash is a volume."""
    return tuple(f"{_host_side(mount)}:{mount.partition(':')[2]}" for mount in container.mounts)


def _host_side(mount: str) -> str:
    source = mount.partition(":")[0]
    return str(Path(source).expanduser().absolute()) if source.startswith(("/", "~", ".")) else source


def _names(word: str) -> Iterator[str]:
    """The options in one word: `--a=b` is one, `-itd` three, `-p80:80` one and its value, what has no dash none."""
    if word.startswith("--"):
        yield word.partition("=")[0]
    elif word.startswith("-"):
        for letter in word[1:]:
            yield f"-{letter}"
            if letter not in _WITHOUT_VALUE:
                return


def _with_values(options: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """The place, name and value of each option that has one, in either spelling."""
    for index, (word, after) in enumerate(pairwise((*options, ""))):
        name, joined, value = word.partition("=")
        if name.startswith("-"):
            yield index, name, value if joined else after


def container_problems(container: ContainerSpec) -> Iterator[Problem]:
    """Yield what a study's container can't have: options that are the tuner's, mounts of what is not here."""
    path = ("engine", "container")
    for index, word in enumerate(container.options):
        if name := next((name for name in _names(word) if name in OWNED), None):
            yield Problem(path=(*path, "options", index), message=f"`{name}` belongs to the tuner", hint="remove it")
    for index, name, value in _with_values(container.options):
        if why := CANNOT_BE.get((name, value)):
            yield Problem(path=(*path, "options", index), message=f"`{name} {value}`: {why}", hint="remove it")
        if name in ("-l", "--label") and value.startswith(OURS):
            message = f"labels that begin with `{OURS}` belong to the tuner"
            yield Problem(path=(*path, "options", index), message=message, hint="it finds what is left by them")
    for index, mount in enumerate(container.mounts):
        source = _host_side(mount)
        if source.startswith("/") and not Path(source).exists():
            yield Problem(
                path=(*path, "mounts", index),
                message=f"{source} does not exist on this machine",
                hint="the runtime would fail, or make it as root",
            )
