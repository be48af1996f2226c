"""Before a study in containers: the image is pulled, the model fetched, and launches stay offline as outside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.prepare import prepare
from autotune.engines.vllm.container import vllm_containers
from autotune.errors import EnvironmentFault
from autotune.records.spec import EngineKind, EngineSpec, StudySpec
from tests.builders import study_spec
from tests.containers.runtimes import Lab
from tests.engines.test_prepare import COMMIT, cached, model

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub's cache of this machine, of which nothing else has been said."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf"


def asked(lab: Lab, name: str, *, image: str = "local/engine", **env: str) -> StudySpec:
    container = replace(lab.container, image=image)
    return study_spec(model=name, engine=EngineSpec(kind=EngineKind.VLLM, container=container, env=env))


def test_an_image_that_is_not_here_is_pulled_once(stand_in: Lab, tmp_path: Path) -> None:
    spec, told = asked(stand_in, str(model(tmp_path / "m")), image="acme-engine"), list[str]()
    first = prepare(spec, told.append)
    assert told == ["pulling acme-engine"]
    assert first.lines[0].startswith("image acme-engine: pulled, sha256:")
    again = prepare(spec, told.append)
    assert again.lines[0].startswith("image acme-engine: here, sha256:")
    assert told == ["pulling acme-engine"]


def test_an_image_that_cannot_be_had_is_told_with_what_to_do(stand_in: Lab, tmp_path: Path) -> None:
    spec = asked(stand_in, str(model(tmp_path / "m")), image="no-such-image")
    with pytest.raises(EnvironmentFault, match="no-such-image could not be pulled") as caught:
        prepare(spec, print)
    assert "docker login" in caught.value.hint


def test_a_model_is_fetched_inside_the_image_and_a_failure_there_is_told(stand_in: Lab) -> None:
    with pytest.raises(EnvironmentFault, match="could not be fetched"):
        prepare(asked(stand_in, "org/m"), print)
    assert stand_in.ids() == ()


def environment(spec: StudySpec) -> tuple[str | None, tuple[str, ...]]:
    """What a launch says of the hub's network, and its mounts of the hub's cache."""
    assert spec.engine.container is not None
    containers = vllm_containers(spec, spec.engine.container, simulated=False)
    plan, _ = containers.launch({}, folder=Path("0000"), port=1, gpus=())
    assert ("HF_HUB_OFFLINE" in plan.env) is ("HF_HUB_OFFLINE" in plan.argv)  # given by name
    return plan.env.get("HF_HUB_OFFLINE"), tuple(word for word in plan.argv if ":/autotune/hub" in word)


def test_a_model_that_is_whole_in_the_cache_is_launched_without_a_network(stand_in: Lab, hub: Path) -> None:
    spec = asked(stand_in, "org/m")
    assert environment(spec)[0] is None
    cached(hub)
    prepared = prepare(spec, print)
    assert prepared.offline
    assert COMMIT in prepared.lines[1]
    said, mounts = environment(spec)
    assert said == "1"
    assert mounts
    assert all(mount.endswith(":ro") for mount in mounts)


@pytest.mark.parametrize(
    ("around", "own", "inside"), [("1", {}, "1"), ("0", {}, "0"), ("1", {"HF_HUB_OFFLINE": "0"}, "0")]
)
def test_what_the_user_says_of_the_network_holds_inside_too(
    stand_in: Lab, monkeypatch: pytest.MonkeyPatch, around: str, own: dict[str, str], inside: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", around)
    assert environment(asked(stand_in, "org/m", **own))[0] == inside
