"""Each behaviour is tested with the stand-in for docker, and with a real podman where there is one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.runtimes import Lab, lab, use_podman, use_stand_in


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Lab]:
    """The stand-in for docker; its teardown asserts that nothing is left."""
    use_stand_in(monkeypatch, tmp_path / "docker")
    yield from _emptied(lab("docker", secrets.token_hex(4)))


@pytest.fixture
def podman(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Real podman; its teardown asserts that nothing is left of this test's study."""
    use_podman(monkeypatch)
    yield from _emptied(lab("podman", secrets.token_hex(4)))


@pytest.fixture(
    params=[
        pytest.param("stand_in", id="docker-stand-in", marks=pytest.mark.integration),
        pytest.param("podman", id="podman", marks=pytest.mark.podman),
    ]
)
def runtime(request: pytest.FixtureRequest) -> Lab:
    """Both."""
    made: Lab = request.getfixturevalue(request.param)
    return made


def _emptied(made: Lab) -> Iterator[Lab]:
    yield made
    left = made.ids()
    made.runtime.remove(left)
    assert left == ()
