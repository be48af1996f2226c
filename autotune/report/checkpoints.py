"""What a run says of prepared checkpoints: which one the chosen trial runs, how it was made, and how long that took."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from autotune.report.view import RunView
from autotune.report.words import duration, plain


def checkpoint_lines(view: RunView) -> Iterator[str]:
    """Yield the lines; none of a run in which every trial ran the study's own model."""
    chosen = view.best or view.nearest
    checkpoint = None if chosen is None else chosen.checkpoint
    if checkpoint is not None and checkpoint.path is not None:
        made = (
            f", made in {duration(checkpoint.prepare_s)} by: {shlex.join(checkpoint.command)}"
            if checkpoint.prepare_s
            else ""
        )
        yield f"Checkpoint {plain(checkpoint.name)}: {plain(checkpoint.path)}{plain(made)}"
    waited = {trial.checkpoint.name: trial.waited_s for trial in view.trials if trial.checkpoint and trial.waited_s}
    if waited:
        each = ", ".join(f"{plain(name)} {duration(waited_s)}" for name, waited_s in waited.items())
        yield f"Preparing checkpoints took {each}: no part of start-ups, but of what the study cost"
