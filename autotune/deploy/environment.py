"""The engine's environment as a deployment may carry it: secrets by name only, nothing of the machine that measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.deploy.deployment import Deployment
from autotune.engines.secrets import REFERENCE, SECRET_NAME
from autotune.engines.tensorrt_llm.command import QUIET_ENV
from autotune.errors import InputError
from autotune.records.spec import EngineKind

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PATH = re.compile(r"(?:^|[\s=:,;'\"])(?:~|/[^/\s])")
"""A path in a value, alone or among others (`a=/x`, `/x:/y`). An URL's slashes follow its colon in pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """`values` by name, in which `${X}` stands for what the deployment's owner knows; `left_out` are the names of those
    that were paths of the machine that measured."""

    values: Mapping[str, str]
    left_out: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """The variables that must be known where it is deployed."""
        return tuple(sorted({name for value in self.values.values() for name in REFERENCE.findall(value)}))


def environment_of(deployment: Deployment) -> Environment:
    """Return the engine's environment. Raises InputError for a name that no shell takes.

    What a study in a container sets are paths inside its image, so these stay.
    """
    quiet = QUIET_ENV if deployment.engine is EngineKind.TENSORRT_LLM else {}
    values = by_reference({**quiet, **deployment.spec.engine.env})
    kept = deployment.spec.engine.container is not None or deployment.asked.here
    foreign = () if kept else tuple(sorted(name for name, value in values.items() if PATH.search(value)))
    return Environment(values={name: value for name, value in values.items() if name not in foreign}, left_out=foreign)


def by_reference(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with each secret that is written out replaced by `${ITS_NAME}`."""
    for name in env:
        if not ENV_NAME.fullmatch(name):
            raise InputError(f"{name!r} is no name for an environment variable", "letters, digits and _ only")
    return {
        name: f"${{{name}}}" if SECRET_NAME.search(name) and not REFERENCE.search(value) else value
        for name, value in env.items()
    }


def filled(value: str, literal: Callable[[str], str], reference: Callable[[str], str]) -> str:
    """Return a value with its text and its `${X}` each written the way a format wants them."""
    pieces = REFERENCE.split(value)  # odd ones are names
    return "".join(reference(piece) if index % 2 else literal(piece) for index, piece in enumerate(pieces))
