"""The log of a launched engine, as the stages behind the launch may read it: redacted, and never more than fits."""

from __future__ import annotations

import os
from pathlib import Path

REDACT_FROM_CHARS = 6  # shorter values ("1", "true") are no secrets, and hiding them would garble the log
MAX_LOG_BYTES = 8_000_000  # what is read of a log that has grown beyond all use: its start and its end


def redact(text: str, secrets: tuple[str, ...]) -> str:
    """`text` with every secret replaced."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= REDACT_FROM_CHARS:
            text = text.replace(secret, "<redacted>")
    return text


def read_log(path: Path, secrets: tuple[str, ...] = ()) -> str:
    """The engine's log, redacted; "" before there is one."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LOG_BYTES)
            rest = os.fstat(file.fileno()).st_size - MAX_LOG_BYTES
            if rest > 0:
                file.seek(-min(rest, MAX_LOG_BYTES), os.SEEK_END)
                data += b"\n" + file.read()
    except FileNotFoundError:
        return ""
    return redact(data.decode(errors="replace"), secrets)


def tail(text: str, lines: int) -> tuple[str, ...]:
    """The last `lines` lines."""
    return tuple(text.splitlines()[-lines:]) if lines > 0 else ()
