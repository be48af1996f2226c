"""Studies with variants that `maker.py` makes, each test with a cache of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.variants import Preparation, prepare_variant
from autotune.records.spec import StudySpec
from autotune.records.variants import VariantSpec
from tests.builders import study_spec

MAKER = Path(__file__).with_name("maker.py")


def command(*more: str) -> tuple[str, ...]:
    """What makes a variant; `more` says how."""
    return (sys.executable, "-S", str(MAKER), "{model}", "{output}", *more)


@dataclass(frozen=True, slots=True)
class Kitchen:
    """Where variants are made: a model, a cache, and a file that counts the starts of the command."""

    folder: Path

    @property
    def starts(self) -> Path:
        """A line for each start."""
        return self.folder / "starts"

    @property
    def log(self) -> Path:
        """Of the last preparation."""
        return self.folder / "logs" / "variant.log"

    def count(self) -> int:
        """How often the command was started."""
        return len(self.starts.read_text().splitlines()) if self.starts.exists() else 0

    def variant(self, name: str = "w8", how: str = "well", **changes: Any) -> VariantSpec:
        """A variant that the maker makes."""
        fields = {"command": command(how), "env": {"MAKER_STARTS": str(self.starts)}} | changes
        return VariantSpec(name=name, **fields)

    def spec(self, *variants: VariantSpec, **changes: Any) -> StudySpec:
        """A study with these variants, and a cache of its own."""
        fields = {"variants": variants, "variants_dir": str(self.folder / "cache"), "finals": None} | changes
        return study_spec(**fields)

    def prepare(
        self, variant: VariantSpec, tell: Callable[[str], None] = lambda _: None, **changes: Any
    ) -> Preparation:
        """Prepare one as a study would."""
        return prepare_variant(self.spec(variant, **changes), variant, gpus=(), log=self.log, on_phase=tell)

    def cached(self) -> list[str]:
        """Names in the cache but those of locks."""
        return sorted(p.name for p in (self.folder / "cache").glob("*") if p.suffix != ".lock")


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    """A kitchen in an empty folder."""
    return Kitchen(tmp_path)
