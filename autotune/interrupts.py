"""Ctrl-C, a scheduler's SIGTERM and a closed terminal: all end a study alike, and none in the middle of its books."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns the signals that end a program into KeyboardInterrupt, but not while they are held."""

    def __init__(self) -> None:
        self._held = False
        self._pending = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Listen within the context; signals that are ignored (SIGHUP by `nohup`) stay ignored."""
        kept = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            if kept[number] is not signal.SIG_IGN:
                signal.signal(number, self._heed)
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put a signal off to the end of the context: a database or a record must not be left half written, and the
        libraries below print tracebacks of their own."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _heed(self, _signal: int, _frame: object) -> None:
        if self._held:
            self._pending = True
        else:
            raise KeyboardInterrupt
