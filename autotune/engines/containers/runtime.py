"""The client of docker or podman, asked from the tuner: images, containers by label, and what they listen on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.engines.containers.owner import OWNER, STUDY, is_dead
from autotune.records.spec import ContainerSpec

ASK_TIMEOUT_S = 60.0  # a client answers in 0.1 s; a daemon that unpacks an image for somebody else may take long
_LISTENING = "0A"
_LOOK = "cat /proc/net/tcp /proc/net/tcp6; ls -l /proc/[0-9]*/fd"
"""What listens, and whose it is: run inside a container this sees the sockets of its network and its own processes."""


class RuntimeRefusedError(Exception):
    """The client ended with an error; `code` is its exit code, None when it could not be asked at all."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """`id` is what launches use, so that a tag which moves changes nothing; `digest` names it in a registry."""

    id: str
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """`program` is the client's absolute path."""

    program: str

    def ask(self, *words: str, timeout_s: float = ASK_TIMEOUT_S) -> str:
        """Return what the client prints. Raises RuntimeRefusedError."""
        try:
            done = subprocess.run(
                [self.program, *words],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd="/",
                text=True,
                errors="replace",
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeRefusedError(f"`{words[0]}` gave no answer in {timeout_s:g} s", None) from None
        except OSError as error:
            raise RuntimeRefusedError(str(error), None) from None
        if done.returncode != 0:
            raise RuntimeRefusedError(done.stderr.strip() or done.stdout.strip(), done.returncode)
        return done.stdout

    def version(self) -> str:
        """Return the client's version line, `podman version 4.3.1`."""
        return self.ask("--version").strip()

    def image(self, name: str) -> Image:
        """Return the image that is here under this name. Raises RuntimeRefusedError when there is none."""
        answer = self.ask("image", "inspect", "--format", "{{.Id}} {{range .RepoDigests}}{{.}} {{end}}", name)
        identity, *digests = answer.split()
        return Image(id=identity, digest=digests[0] if digests else None)

    def labelled(self, label: str) -> tuple[str, ...]:
        """Return the ids of containers with the label (`name=value`), in whatever state."""
        return tuple(self.ask("ps", "-a", "-q", "--no-trunc", "--filter", f"label={label}").split())

    def remove(self, ids: Sequence[str]) -> None:
        """Kill and remove containers and their anonymous volumes; one that is gone already is no error."""
        for identity in ids:
            for words in (("kill", identity), ("rm", "-f", "-v", identity)):
                try:
                    self.ask(*words)
                except RuntimeRefusedError:  # it isn't running, or is gone: the caller looks again
                    continue

    def left_by_the_dead(self, study: str) -> tuple[str, ...]:
        """Return the ids of a study's containers whose tuner no longer runs."""
        ids = self.labelled(f"{STUDY}={study}")
        return tuple(identity for identity in ids if is_dead(self._owner(identity)))

    def _owner(self, identity: str) -> str:
        form = f'{{{{index .Config.Labels "{OWNER}"}}}}'
        try:
            return self.ask("inspect", "--type", "container", "--format", form, identity).strip()
        except RuntimeRefusedError:  # it went away meanwhile
            return ""

    def publishes(self, identity: str, inside_port: int, host: str, port: int) -> bool:
        """Whether the runtime itself publishes the container's port on `host:port`: it holds that port for it."""
        try:
            lines = self.ask("port", identity, f"{inside_port}/tcp").split()
        except RuntimeRefusedError:
            return False
        return f"{host}:{port}" in lines

    def listens(self, identity: str, port: int) -> bool:
        """Whether a process inside the container has the listening socket on `port` of the container's network."""
        try:
            # `ls` complains of its own descriptors, which are gone when it gets to them.
            seen = self.ask("exec", identity, "sh", "-c", f"{_LOOK} 2>/dev/null; true")
        except RuntimeRefusedError:
            return False
        return any(f"socket:[{inode}]" in seen for inode in listening_inodes(seen, port))


def listening_inodes(proc_net_tcp: str, port: int) -> list[str]:
    """Return the inodes of sockets that listen on `port`, by the lines of /proc/net/tcp and tcp6."""
    line = re.compile(rf"^\s*\d+: [0-9A-F]+:{port:04X} \S+ {_LISTENING}(?: +\S+){{5}} +(\d+)", re.MULTILINE)
    return line.findall(proc_net_tcp)


def runtime_of(container: ContainerSpec) -> Runtime | None:
    """Return the client that a study asks for, None when it isn't installed."""
    found = shutil.which(container.runtime)
    return Runtime(program=os.path.abspath(found)) if found else None  # noqa: PTH100  links are not followed
