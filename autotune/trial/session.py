"""Who may work on a run directory, and whether a study may go on in it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import IO, Any

from autotune import study
from autotune.errors import InputError
from autotune.records.metrics import PRICED
from autotune.records.spec import StudySpec
from autotune.records.trial import TrialRecord
from autotune.trial.store import RunDirectory, write_atomically, writing


def open_run(spec: StudySpec, run: RunDirectory, *, resume: bool) -> list[TrialRecord]:
    """Start the run, or go on with it: return its finished trials.

    Raises InputError when it exists and `resume` is not set, the other way round, or when the study changed in what
    makes trials comparable.
    """
    if not run.exists():
        if resume:
            raise InputError(f"{run.path} holds no study to resume", "start it without --resume")
        if next(run.path.glob("trials/*/trial.json"), None) is not None:
            raise InputError(
                f"{run.path} holds trials, but its {run.spec_file.name} is gone",
                "restore that file to go on with --resume, or move the folder away",
            )
        write_atomically(run.study_file, study.dump_study(spec).encode())
        run.write_spec(spec)
        return []
    if not resume:
        raise InputError(
            f"{run.path} holds a study already", "add --resume to go on with it, or give this study another name"
        )
    if changed := _differing(run.spec(), spec):
        raise InputError(
            f"the study changed since it was started: {', '.join(changed)}",
            "only budget, sampler, storage, finals, limits of variants and, unless trials are judged by it, price may "
            "change; put the old values back or give this study another name",
        )
    run.write_spec(spec)
    return run.trials()


def launched_before(records: Sequence[TrialRecord], versions: Mapping[str, str | None]) -> bool:
    """Whether an engine of these `versions` started here before: its files are cached, what it compiles is kept."""
    return any(record.startup_s is not None and dict(record.versions) == dict(versions) for record in records)


def _differing(old: StudySpec, new: StudySpec) -> list[str]:
    """The fields that differ and make trials incomparable. Compared as JSON, as the old one was read back from it. A
    price does so where trials were judged by it."""
    judged_by = (new.objective.metric, *(slo.metric for slo in new.objective.slos))
    unpriced = () if set(judged_by) & set(PRICED) else ("price",)
    free = ("budget", "sampler", "storage", "finals", "variants_dir", *unpriced)
    old, new = (replace(spec, variants=tuple(each.made_from for each in spec.variants)) for spec in (old, new))
    return [
        spec_field.name
        for spec_field in fields(StudySpec)
        if spec_field.name not in free
        and _plain(getattr(old, spec_field.name)) != _plain(getattr(new, spec_field.name))
    ]


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - heavy

    return to_jsonable_python(value)


@contextmanager
def locked(run: RunDirectory) -> Iterator[None]:
    """Hold the run against a second tuner; the kernel lets go of the lock however this process ends."""
    created = not run.path.exists()
    with _lock_file(run.path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another autotune works on {run.path}", "wait for it, or stop it first") from None
        try:
            yield
        finally:
            if created and not run.exists():
                (run.path / ".lock").unlink(missing_ok=True)
                with suppress(OSError):  # not empty: it was stopped while it wrote its first files
                    run.path.rmdir()


def _lock_file(folder: Path) -> IO[str]:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / ".lock").open("w")
