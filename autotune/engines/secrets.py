"""Which values must never be written: what a study takes from the environment by reference, and keys found there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
SECRET_NAME = re.compile(r"(TOKEN|API_?KEY|ACCESS_?KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
LEAST_CHARS = 6  # shorter values ("1", "true") are no secrets, and hiding them would garble what is written


def secrets_of(env: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Values that an engine started with `env` knows and that are secret, longest first.

    These are the values of `${NAME}` references in `env`, which is how a study names secrets, and every variable of
    `environ` that is called like one (HF_TOKEN), as the engine inherits them. Paths that exist are none.
    """
    referred = {name for text in env.values() for name in REFERENCE.findall(text)}
    called_so = {name for name in environ if SECRET_NAME.search(name)}
    literal = {value for name, value in env.items() if SECRET_NAME.search(name) and not REFERENCE.search(value)}
    values = {environ[name] for name in referred | called_so if name in environ} | literal
    return tuple(sorted((value for value in values if _is_secret(value)), key=len, reverse=True))


def _is_secret(value: str) -> bool:
    return len(value) >= LEAST_CHARS and not (value.startswith(("/", "~")) and Path(value).expanduser().exists())
