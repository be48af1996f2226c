"""NVML through the real pynvml, on a stub of the driver's library: what it tells, and what it doesn't."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.engines import nvml
from autotune.engines.hardware import nvml_gpus, visible_gpus
from autotune.records.trial import GpuSample
from tests.nvml_stub.stub import GIB, H100, Driver, environment, install

UNKNOWN_TO_THE_DRIVER = ("sm_clock_mhz", "throttle", "temperature_c", "power_mw", "energy_mj", "utilisation_pct")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    return install(monkeypatch, tmp_path)


def sampled(name: str = "0", mine: frozenset[int] | None = frozenset()) -> GpuSample:
    with nvml.opened() as there:
        assert there
        (device,) = nvml.find([name])
        return nvml.sample(device, 1.5, mine)


def test_everything_that_the_driver_tells_is_there_in_our_units(driver: Driver) -> None:
    driver.set(memory_used=5 * GIB, processes=f"10:{3 * GIB},11:{GIB}")
    assert sampled(mine=frozenset({10})) == GpuSample(
        at_s=1.5,
        gpu="0",
        memory_used_bytes=5 * GIB,
        others_bytes=GIB,
        utilisation_ratio=0.97,
        sm_clock_mhz=1980,
        temperature_c=41,
        power_w=350.5,
        energy_j=1000,
    )


@pytest.mark.parametrize("missing", [*UNKNOWN_TO_THE_DRIVER, "memory_used", "processes"])
def test_what_a_driver_does_not_support_is_absent_and_the_rest_is_there(driver: Driver, missing: str) -> None:
    whole = sampled()
    driver.set(0, **{missing: None})
    part = sampled()
    differing = {name for name in GpuSample.__slots__ if getattr(part, name) != getattr(whole, name)}
    assert len(differing) == (0 if missing == "throttle" else 1)
    assert all(getattr(part, name) is None for name in differing)


def test_a_driver_of_old_has_one_memory_call_only(driver: Driver) -> None:
    driver.set(old_driver=1, memory_used=GIB)
    assert sampled().memory_used_bytes == GIB


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x1, ()),  # idle
        (0x4, ("power_cap",)),
        (0x8 | 0x40, ("hw_slowdown", "hw_thermal")),
        (0x20, ("sw_thermal",)),
        (0x80 | 0x2, ("power_brake", "clock_setting")),
        (1 << 40, ()),  # a driver of the future
    ],
)
def test_throttle_reasons_have_names(driver: Driver, bits: int, reasons: tuple[str, ...]) -> None:
    driver.set(throttle=bits)
    assert sampled().throttled == reasons


def test_a_process_whose_memory_is_hidden_makes_that_of_others_unknown(driver: Driver) -> None:
    driver.set(processes=f"10:?,11:{GIB}")
    assert sampled(mine=frozenset({11})).others_bytes is None
    assert sampled(mine=frozenset({10})).others_bytes == GIB
    assert sampled(mine=None).others_bytes is None


def test_many_processes_are_all_counted(driver: Driver) -> None:
    driver.set(processes=",".join(f"{pid}:{2**20}" for pid in range(100, 140)))
    assert sampled().others_bytes == 40 * 2**20


def test_devices_are_found_by_index_and_uuid_and_the_unknown_left_out(driver: Driver) -> None:
    driver.set(1, **H100 | {"uuid": "GPU-22222222-bbbb"})
    with nvml.opened():
        found = nvml.find(["1", "GPU-1111", "GPU-22222222-bbbb", "GPU-9", "7", "MIG-none", "odd"])
    assert [(device.name, device.uuid[:8]) for device in found] == [
        ("1", "GPU-2222"),
        ("GPU-1111", "GPU-1111"),
        ("GPU-22222222-bbbb", "GPU-2222"),
    ]


def test_a_mig_instance_has_its_own_memory_and_its_boards_clock(driver: Driver) -> None:
    driver.set(8, uuid="MIG-5", parent=0, memory_total=10 * GIB, memory_used=GIB, processes=f"7:{GIB}")
    sample = sampled("MIG-5")
    assert (sample.memory_used_bytes, sample.others_bytes) == (GIB, GIB)
    assert (sample.sm_clock_mhz, sample.power_w) == (1980, 350.5)
    assert sample.utilisation_ratio is None  # NVML has none for instances


def test_without_a_driver_nothing_is_found(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    monkeypatch.delenv("AUTOTUNE_NVML_STUB")
    with nvml.opened() as there:
        assert not there
        assert nvml.devices() == ()
        assert nvml.find(["0", "GPU-1", "MIG-1"]) == ()


def test_it_may_be_opened_within_itself(driver: Driver) -> None:
    with nvml.opened(), nvml.opened():
        pass
    assert sampled().sm_clock_mhz == 1980


def test_gpus_of_the_study_carry_what_nvml_knows(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1111")
    (gpu,) = visible_gpus(None)
    assert (gpu.id, gpu.name, gpu.memory_bytes) == ("GPU-1111", H100["name"], 80 * GIB)
    driver.set(name=None, memory_total=None)
    assert [(gpu.name, gpu.memory_bytes) for gpu in nvml_gpus()] == [(None, None)]


def test_a_mig_instance_given_to_the_study_carries_its_own_memory(driver: Driver) -> None:
    driver.set(8, uuid="MIG-5", name="NVIDIA H100 MIG 1g.10gb", parent=0, memory_total=10 * GIB, memory_used=0)
    (gpu,) = visible_gpus(["MIG-5"])
    assert (gpu.id, gpu.uuid, gpu.memory_bytes) == ("MIG-5", "MIG-5", 10 * GIB)


@pytest.mark.integration
def test_another_process_finds_the_library_by_its_name(driver: Driver, tmp_path: Path) -> None:
    code = "from autotune.engines.hardware import host_versions; print(host_versions()['driver'])"
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), cwd=Path.cwd(), capture_output=True, check=True
    )
    assert told.stdout.decode().strip() == "stub"
