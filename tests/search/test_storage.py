"""Optuna's storage is a copy that may fail: the failure is told in a line, and another study's trials are safe."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import optuna
import pytest

from autotune import space
from autotune.errors import EnvironmentFault, InputError
from autotune.records.spec import StudySpec
from autotune.records.trial import Role
from autotune.search.study import Search
from tests.builders import study_spec, trial


def _search(spec: StudySpec, url: str) -> Search:
    return Search(spec, space.build_space(spec, gpus=1), url)


def test_a_damaged_file_is_named_with_the_drivers_own_words(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(EnvironmentFault) as caught:
        _search(study_spec(), f"sqlite:///{path}")
    assert str(path) in caught.value.message
    assert "file is not a database" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_database_that_is_locked_in_the_middle_is_the_environments_fault(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    search = _search(study_spec(), f"sqlite:///{path}?timeout=0")
    with sqlite3.connect(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(EnvironmentFault, match="database is locked"):
            search.tell(trial(0, value=1.0, role=Role.REFERENCE))
        other.rollback()
    other.close()


def test_no_url_at_all_is_bad_input() -> None:
    with pytest.raises(InputError, match="can't be opened"):
        _search(study_spec(), "nonsense")


def test_a_shared_storage_that_holds_another_study_of_the_name_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    theirs = optuna.create_study(storage=url, study_name="test")
    theirs.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(InputError, match="another study called 'test'"):
        _search(study_spec(storage=url), url)
    assert len(optuna.load_study(storage=url, study_name="test").trials) == 1
