"""GPUs are those of the study, else of CUDA_VISIBLE_DEVICES, else what NVML shows; absent is recorded as absent."""

from __future__ import annotations

import pytest

from autotune.engines.hardware import host_versions, nvml_gpus, visible_gpus


def test_gpus_named_by_the_study_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert [gpu.id for gpu in visible_gpus((0, "MIG-abc"))] == ["0", "MIG-abc"]
    assert visible_gpus(()) == ()


@pytest.mark.parametrize(
    ("text", "ids"),
    [("2, 3", ["2", "3"]), ("", []), ("-1", []), ("0,-1,2", ["0"]), ("GPU-1,MIG-2", ["GPU-1", "MIG-2"])],
)
def test_an_allocation_is_respected(monkeypatch: pytest.MonkeyPatch, text: str, ids: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert [gpu.id for gpu in visible_gpus(None)] == ids


def test_without_either_it_is_what_nvml_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(None) == nvml_gpus()


def test_versions_name_what_is_absent() -> None:
    versions = host_versions()
    assert versions["optuna"] is not None
    assert versions["kernel"] is not None
    assert (versions["gpus"] is None) == (nvml_gpus() == ())
    assert versions.keys() >= {"autotune", "python", "cpu", "cpu_cores", "driver", "gpus"}
