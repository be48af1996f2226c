"""The run directory `runs/<study>/`: where everything of a study lies, and the only code that knows its layout.

    study.yaml            the resolved study
    study.db              Optuna's storage
    trials/NNNN/          trial.json, engine.log, requests.jsonl.gz
    summary.json          what the study comes to
    quality/              what the reference answered, by kind of engine
    variants/             logs of checkpoints that this run prepared
    best/                 files that deploy

Files are written under a temporary name and then replaced, so a reader never sees half of one.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autotune.errors import EnvironmentFault, InputError
from autotune.records.quality import ReferenceAnswers
from autotune.records.spec import StudySpec
from autotune.records.summary import StudySummary
from autotune.records.trial import SCHEMA_VERSION, LevelRecord, RequestRecord, TrialRecord

if TYPE_CHECKING:
    from pydantic import TypeAdapter


T = TypeVar("T")


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}  # building one takes milliseconds, a long study reads thousands of records


def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a type, or what pydantic takes for one
    from pydantic import TypeAdapter  # noqa: PLC0415 - heavy

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into an EnvironmentFault that names `path`."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"{path} can't be written: {error.strerror or error}",
            "check the disk's space and the folder's permissions; finished trials are kept: go on with --resume",
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that it is there whole or not at all, also across a power cut.

    Raises EnvironmentFault when the file system refuses.
    """
    with writing(path):
        _write_atomically(path, data)


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp's 0600 would hide a run from the team
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def to_json(record: object) -> bytes:
    """Return a record (any dataclass of `records`) as indented JSON; NaN and infinity become null."""
    data: bytes = _adapter(type(record)).dump_json(record, indent=2)
    return data + b"\n"


def without(record: T, secrets: Sequence[str]) -> T:
    """Return a record in which none of `secrets` stands anywhere: an engine may say what it knows in any message."""
    adapter = _adapter(type(record))
    text = adapter.dump_json(record)
    if not any(json.dumps(secret, ensure_ascii=False)[1:-1].encode() in text for secret in secrets):
        return record
    redacted: T = adapter.validate_json(json.dumps(_hidden(json.loads(text), secrets)))
    return redacted


def _hidden(value: Any, secrets: Sequence[str]) -> Any:  # noqa: ANN401 - JSON
    """JSON without secrets in its texts; a name of a field may well spell like one."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, "<redacted>")
        return value
    if isinstance(value, dict):
        return {name: _hidden(inner, secrets) for name, inner in value.items()}
    return [_hidden(inner, secrets) for inner in value] if isinstance(value, list) else value


def _read(path: Path, kind: type[T]) -> T:
    from pydantic import ValidationError  # noqa: PLC0415 - heavy

    try:
        text = path.read_bytes()
        raw = json.loads(text)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "give the folder of a run: runs/<study>") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read: {error}", "restore it from a copy, or delete its trial") from error
    version = raw.get("schema_version", SCHEMA_VERSION) if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema_version {version}, this autotune reads {SCHEMA_VERSION}", "use its release"
        )
    try:
        record: T = _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise InputError(f"{path} is not a {kind.__name__}: {error}", "restore it from a copy") from error
    return record


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Reads and writes one run; holds no state but its path."""

    path: Path

    @property
    def study_file(self) -> Path:
        """The resolved study."""
        return self.path / "study.yaml"

    @property
    def spec_file(self) -> Path:
        """The same as JSON, exactly as the tuner holds it."""
        return self.path / "study.json"

    @property
    def storage_url(self) -> str:
        """Optuna's default storage."""
        return f"sqlite:///{(self.path / 'study.db').resolve()}"

    @property
    def best(self) -> Path:
        """Where the files that deploy lie; absent when nothing met the objective."""
        return self.path / "best"

    def trial_directory(self, number: int) -> Path:
        """Folder of trial `number`."""
        return self.path / "trials" / f"{number:04d}"

    def make_trial_directory(self, number: int) -> Path:
        """Make the folder of trial `number` if it isn't there, and return it."""
        directory = self.trial_directory(number)
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
        return directory

    def exists(self) -> bool:
        """Whether a study has been started here."""
        return self.spec_file.exists()

    def write_spec(self, spec: StudySpec) -> None:
        """Keep the resolved study; `study.yaml` beside it is for people."""
        write_atomically(self.spec_file, to_json(spec))

    def spec(self) -> StudySpec:
        """Return the resolved study. Raises InputError when this is no run."""
        if not self.exists():
            raise InputError(f"{self.path} is not a run: it has no {self.spec_file.name}", "give runs/<study>")
        return _read(self.spec_file, StudySpec)

    def write_trial(self, record: TrialRecord) -> None:
        """Write `trial.json`, after which the trial counts as finished."""
        write_atomically(self.trial_directory(record.number) / "trial.json", to_json(record))

    def trials(self) -> list[TrialRecord]:
        """Return every finished trial in order of number."""
        return [_read(path, TrialRecord) for path in sorted(self.path.glob("trials/*/trial.json"))]

    def write_requests(self, number: int, levels: Iterable[LevelRecord], secrets: Sequence[str] = ()) -> None:
        """Keep every request of a trial, one JSON line each, with the index of its level; without `secrets`, which an
        engine may put into its errors."""
        adapter = _adapter(RequestRecord)
        lines = (
            json.dumps({"level": index}).encode()[:-1] + b", " + adapter.dump_json(without(request, secrets))[1:]
            for index, level in enumerate(levels)
            for request in level.requests
        )
        write_atomically(
            self.trial_directory(number) / "requests.jsonl.gz", gzip.compress(b"\n".join(lines) + b"\n", mtime=0)
        )

    def requests(self, number: int) -> Iterator[tuple[int, RequestRecord]]:
        """Yield (level index, record) for every request of a trial."""
        adapter = _adapter(RequestRecord)
        with gzip.open(self.trial_directory(number) / "requests.jsonl.gz") as file:
            for line in file:
                fields = json.loads(line)
                yield fields.pop("level"), adapter.validate_python(fields)

    def write_reference_answers(self, kind: str, answers: ReferenceAnswers) -> None:
        """Keep what the reference of an engine of this kind answered; candidates are held against it."""
        write_atomically(self.path / "quality" / f"{kind}.json", to_json(answers))

    def reference_answers(self, kind: str) -> ReferenceAnswers | None:
        """Return what the reference answered, None before it has. Raises InputError when the file can't be read."""
        path = self.path / "quality" / f"{kind}.json"
        return _read(path, ReferenceAnswers) if path.exists() else None

    def variant_log(self, name: str) -> Path:
        """Where the log of a variant's preparation is kept."""
        return self.path / "variants" / f"{name}.log"

    def write_summary(self, summary: StudySummary) -> None:
        """Replace `summary.json`."""
        write_atomically(self.path / "summary.json", to_json(summary))

    def summary(self) -> StudySummary:
        """Return the last summary written. Raises InputError when there is none."""
        return _read(self.path / "summary.json", StudySummary)
