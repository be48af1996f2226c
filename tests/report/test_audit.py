"""What the audit found, as people read it."""

from __future__ import annotations

from dataclasses import fields, replace

from autotune.measure.counters import EngineFigures, GpuFigures
from autotune.records.trial import Diagnosis, Measurement, TrialRecord
from autotune.report.counters import LABELS, counter_rows, notes
from autotune.report.words import diagnosis_text
from tests.builders import trial


def measured(*levels: dict[str, float], number: int = 1, remarks: tuple[str, ...] = ()) -> TrialRecord:
    made = [
        Measurement(
            offered_rps=1.0,
            concurrency=None,
            duration_s=60.0,
            requests=1,
            errors=0,
            values={},
            counters=counters,
            notes=remarks,
        )
        for counters in levels
    ]
    return replace(trial(number), measurements=tuple(made))


def test_counts_add_up_over_levels_and_extremes_and_means_do_not() -> None:
    levels: tuple[dict[str, float], ...] = (
        {"server_preemptions": 2, "server_waiting_max": 7, "gpu_power_mean_w": 300},
        {"server_preemptions": 3, "server_waiting_max": 5, "gpu_power_mean_w": 500},
    )
    rows = dict(counter_rows([measured(*levels), measured({})]))
    assert rows == {
        "preemptions": ["5", "-"],
        "waiting requests, most": ["7", "-"],
        "GPU power, mean W": ["400", "-"],
    }


def test_units_are_those_of_the_label() -> None:
    level = {"gpu_memory_max_bytes": 3.0 * 2**30, "server_kv_use_max_ratio": 0.5}
    assert dict(counter_rows([measured(level)])) == {"KV cache use, most, %": ["50"], "GPU memory in use, GiB": ["3"]}


def test_every_row_is_a_counter_that_the_audit_gives() -> None:
    known = {f"server_{field.name}" for field in fields(EngineFigures)}
    known |= {f"gpu_{field.name}" for field in fields(GpuFigures)} | {"gpu_energy_per_output_token_j"}
    assert LABELS.keys() <= known


def test_a_note_is_told_once_a_trial_and_can_not_move_a_cursor() -> None:
    spoilt = measured({}, {}, remarks=("odd\x1b[2J",))
    assert notes([spoilt]) == ["trial 1: odd\\x1b[2J"]


def test_a_diagnosis_is_one_line() -> None:
    found = Diagnosis(limit="decode", evidence="tpot_ms.p99: a step takes 9 ms", parameters=("a", "b"))
    assert diagnosis_text(found) == "decode: tpot_ms.p99: a step takes 9 ms; usually moved by a, b"
    assert diagnosis_text(replace(found, parameters=())) == "decode: tpot_ms.p99: a step takes 9 ms"
