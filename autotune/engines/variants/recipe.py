"""What a variant is made from: its command with the model's folder filled in, and a digest of all that counts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.engines.command import resolved_model
from autotune.engines.hub import cached_snapshot, is_path
from autotune.errors import EnvironmentFault
from autotune.records.spec import StudySpec
from autotune.records.variants import MODEL, OUTPUT, VariantSpec

DIGEST_CHARS = 24
READ_WHOLE_BYTES = 4 * 2**20
"""Files of a model up to this size count by their content, larger ones by size and time of change: reading 140 GB of
weights takes minutes, and a hub's cache names them by their content anyway."""

BLOBS = "blobs"
"""The folder of the hub's cache in which files are called by the hash of their content; a snapshot links to them."""

FORMAT = 1
"""Part of the digest: a new way of reckoning it must not find what an older one made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a variant is made; `model` is what the command is given for `{model}`."""

    variant: VariantSpec
    model: str
    digest: str

    def argv(self, output: Path) -> tuple[str, ...]:
        """The command that writes to `output`; every other brace stays as it is."""
        return tuple(word.replace(MODEL, self.model).replace(OUTPUT, str(output)) for word in self.variant.command)


def recipe_of(spec: StudySpec, variant: VariantSpec) -> Recipe:
    """Return the recipe of a variant that is made by a command. Raises EnvironmentFault when an input can't be read."""
    folder = model_place(spec)
    try:
        parts = {
            "format": FORMAT,
            "command": variant.command,
            "model": spec.model if folder is None else sorted(_identity(folder)),
            "inputs": {name: _content(Path(name).expanduser()) for name in counted(variant)},
            "versions": dict(variant.versions),
            "env": dict(variant.env),
        }
    except OSError as error:
        raise EnvironmentFault(
            f"the inputs of variant {variant.name} can't be read: {error.filename}: {error.strerror}",
            "they count by their content: restore the file, or correct the study",
        ) from error
    text = json.dumps(parts, sort_keys=True)
    return Recipe(
        variant=variant,
        model=str(folder) if folder is not None else resolved_model(spec.model),
        digest=hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS],
    )


def variant_digest(spec: StudySpec, variant: VariantSpec) -> str | None:
    """Return what identifies a variant's making; None of one that a study only names."""
    return recipe_of(spec, variant).digest if variant.command else None


def model_place(spec: StudySpec) -> Path | None:
    """Return where the study's model lies, in a folder of its own or in the hub's cache; None before it is fetched."""
    if is_path(spec.model):
        return Path(spec.model).expanduser().absolute()
    revision = spec.engine.args.get("revision")
    env = {**os.environ, **spec.engine.env}
    return cached_snapshot(spec.model, revision if isinstance(revision, str) else None, env)


def counted(variant: VariantSpec) -> tuple[str, ...]:
    """Return the files and folders whose content counts: `inputs`, and files that words of the command name."""
    named = (word for word in variant.command if os.sep in word and Path(word).is_file())
    return tuple(dict.fromkeys((*variant.inputs, *named)))


def _identity(place: Path) -> Iterator[str]:
    """Yield a line for each file of a model."""
    for path in _files(place):
        name = path.relative_to(place).as_posix()
        if path.is_symlink() and path.readlink().parent.name == BLOBS:
            yield f"{name} -> {path.readlink().name}"
            continue
        facts = path.stat()
        small = facts.st_size <= READ_WHOLE_BYTES
        yield f"{name} {_digest_of(path) if small else f'{facts.st_size} {facts.st_mtime_ns}'}"


def _content(place: Path) -> str:
    lines = [f"{path.relative_to(place).as_posix()} {_digest_of(path)}" for path in _files(place)]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _files(place: Path) -> list[Path]:
    """Every file of a folder; of a file, itself. Raises FileNotFoundError where neither is."""
    if not place.is_dir():
        place.stat()
        return [place]
    return [path for path in place.rglob("*") if path.is_file()]


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
