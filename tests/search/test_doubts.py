"""What is said of the machine before a study: room for the weights, on disk and in memory."""

from __future__ import annotations

from pathlib import Path

from autotune.records.spec import EngineKind, EngineSpec, StudySpec
from autotune.search.doubts import machine_doubts
from tests.builders import study_spec

MORE_THAN_ANY_HOST = 8 * 10**12


def study(model: str, hub: str) -> StudySpec:
    return study_spec(model=model, engine=EngineSpec(kind=EngineKind.VLLM, env={"HF_HUB_CACHE": hub}))


def test_weights_that_do_not_fit_on_the_disk_are_told_before_they_are_fetched() -> None:
    (sentence,) = (text for text in machine_doubts(study("meta-llama/Llama-3.1-70B", "/proc/hub")) if "fetch" in text)
    assert sentence == "the model's weights take 141 GB to fetch; /proc/hub has 0 GB free"  # /proc has no room at all


def test_weights_larger_than_the_hosts_memory_are_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(MORE_THAN_ANY_HOST)  # sparse: takes no room
    (sentence,) = machine_doubts(study(str(tmp_path), "/proc/hub"))
    assert "8000 GB; this host has" in sentence


def test_nothing_is_said_of_small_unknown_and_simulated_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"small")
    assert [*machine_doubts(study(str(tmp_path), "/proc/hub"))] == []
    assert [*machine_doubts(study("org/unknown", "/proc/hub"))] == []
    assert [*machine_doubts(study_spec(model="meta-llama/Llama-3.1-70B"))] == []
