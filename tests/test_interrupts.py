"""Signals end a study as KeyboardInterrupt, but not in the middle of its books."""

from __future__ import annotations

import os
import signal

import pytest

from autotune.interrupts import SIGNALS, Interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts().heeded():
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_held_signal_waits_for_the_end_of_the_books(number: signal.Signals) -> None:
    interrupts, done = Interrupts(), False
    with pytest.raises(KeyboardInterrupt), interrupts.heeded(), interrupts.held():
        os.kill(os.getpid(), number)
        done = True
    assert done


def test_nothing_is_raised_without_a_signal_and_the_next_one_counts_again() -> None:
    interrupts = Interrupts()
    with interrupts.heeded():
        with interrupts.held():
            pass
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_an_error_in_the_books_is_the_one_that_shows() -> None:
    interrupts = Interrupts()
    with pytest.raises(OSError, match="disk"), interrupts.heeded(), interrupts.held():
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError("the disk is full")


def test_an_ignored_signal_stays_ignored_and_handlers_come_back() -> None:
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = [signal.getsignal(number) for number in SIGNALS]
    try:
        with Interrupts().heeded():
            os.kill(os.getpid(), signal.SIGHUP)
        assert [signal.getsignal(number) for number in SIGNALS] == before
    finally:
        signal.signal(signal.SIGHUP, kept)
