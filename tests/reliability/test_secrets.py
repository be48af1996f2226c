"""Keys that come by the environment end there, every listener is on loopback, and no remote code runs unasked."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from autotune.engines.secrets import secrets_of
from autotune.errors import ExitCode
from autotune.records.trial import ClientHealth, LevelRecord, Outcome, RequestRecord
from autotune.trial.store import RunDirectory, without
from tests.builders import trial
from tests.reliability.studies import Place, Tuner, tuning, write_study

GIVEN, FOUND = 'sk-"given"-ŝ-0123456789', "hf_found0123456789"  # by reference in the study; in the environment only
SERVED = "sk-served-0123456789"  # by reference too: the engine refuses whoever doesn't send it
COMMAND = [sys.executable, str(Path(__file__).with_name("telltale.py"))]
ENV = {"GIVEN_KEY": "${MY_KEY}", "VLLM_API_KEY": "${SERVER_KEY}", "PYTHONIOENCODING": "utf-8"}
KEYS = {"MY_KEY": GIVEN, "FOUND_API_KEY": FOUND, "SERVER_KEY": SERVED}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was seen of a study in the middle of its load, and after its end."""

    place: Place
    text: str
    command_lines: tuple[str, ...]
    listeners: tuple[str, ...]


def snapshot(tuner: Tuner) -> Snapshot:
    tuner.wait_for(r"trial 1, .*: measuring")
    processes = tuner.place.processes()
    lines = tuple(" ".join(process.cmdline()) for process in processes)
    listeners = tuple(address for process in processes for address in listening(process))
    tuner.wait()
    return Snapshot(tuner.place, tuner.text, lines, listeners)


def listening(process: psutil.Process) -> list[str]:
    try:
        return [str(c.laddr[0]) for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    place = Place(tmp_path_factory.mktemp("telltale"))
    with tuning(place, write_study(place.folder, command=COMMAND, env=ENV), env=KEYS) as tuner:
        yield snapshot(tuner)


def everything_written(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in folder.rglob("*"):
        if path.is_file():
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            yield path, content.decode(errors="replace")


def spellings(key: str) -> Sequence[str]:
    return (key, json.dumps(key)[1:-1], json.dumps(key, ensure_ascii=False)[1:-1], repr(key)[1:-1])


def holders(folder: Path, key: str) -> list[str]:
    return [path.name for path, text in everything_written(folder) if any(s in text for s in spellings(key))]


@pytest.mark.integration
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_key_is_in_nothing_that_a_study_writes_prints_or_starts(seen: Snapshot, key: str) -> None:
    logs = [text for path, text in everything_written(seen.place.folder) if path.name == "engine.log"]
    assert len(logs) == 2
    assert all("GIVEN_KEY" in text and "<redacted>" in text for text in logs)  # the engine did tell
    assert holders(seen.place.folder, key) == []
    assert not any(spelled in text for spelled in spellings(key) for text in (seen.text, *seen.command_lines))


@pytest.mark.integration
def test_the_key_of_an_engine_that_wants_one_is_sent_with_every_request(seen: Snapshot) -> None:
    records = [json.loads(text) for text in seen.place.records().values()]
    assert [record["outcome"] for record in records] == ["ok"] * len(records), seen.text
    assert all(record["resolved"] for record in records)
    requests = [
        request for number in range(len(records)) for _, request in RunDirectory(seen.place.run).requests(number)
    ]
    assert {request.status for request in requests} == {200}


@pytest.mark.integration
def test_an_engine_that_wants_a_key_which_the_study_does_not_name_stops_it_with_the_remedy(tmp_path: Path) -> None:
    place = Place(tmp_path)
    study = write_study(tmp_path, command=COMMAND, env={"TELLTALE_WANTS": "sk-another-0123456789"})
    with tuning(place, study) as tuner:
        assert tuner.wait() == ExitCode.ENVIRONMENT, tuner.text
    assert place.outcomes() == []
    assert "engine.env: {VLLM_API_KEY" in tuner.text


@pytest.mark.integration
def test_every_listener_of_a_study_is_on_loopback(seen: Snapshot) -> None:
    assert seen.listeners
    assert set(seen.listeners) <= {"127.0.0.1", "::1"}


@pytest.mark.integration
def test_remote_code_is_not_trusted_unasked(seen: Snapshot) -> None:
    assert any("serve meta-llama" in line for line in seen.command_lines)
    assert not any("trust" in line for line in seen.command_lines)


@pytest.mark.integration
def test_a_key_in_the_error_that_ends_an_engine_is_in_no_record_and_no_message(tmp_path: Path) -> None:
    place = Place(tmp_path)
    study = write_study(tmp_path, trials=3, command=COMMAND, env={**ENV, "TELLTALE_FAILS": "1"})
    with tuning(place, study, env=KEYS) as tuner:
        code = tuner.wait()
    assert code == 4, tuner.text  # three unexplained failures: the message holds the cause
    assert "the key" in tuner.text
    assert "<redacted>" in tuner.text
    for key in KEYS.values():
        assert holders(tmp_path, key) == []
        assert not any(spelled in tuner.text for spelled in spellings(key))


def test_secrets_are_what_is_referred_to_and_what_is_called_one(tmp_path: Path) -> None:
    environ = {"A": "aaaaaaaa", "HF_TOKEN": "tttttttt", "HOME": str(tmp_path), "PORT_KEY_COUNT": "12345678", "B": "1"}
    env = {"X": "${A}/${B}", "CACHE": "${HOME}/c", "S_PASSWORD": "literal pass", "OTHER": "not secret"}
    assert sorted(secrets_of(env, environ)) == ["aaaaaaaa", "literal pass", "tttttttt"]


def test_a_record_without_a_secret_in_it_is_the_same_object_and_one_with_is_cleaned_everywhere() -> None:
    record = trial(1, outcome=Outcome.OOM_STARTUP, args={"nested": {"x": [GIVEN]}}, params={})
    assert without(record, [FOUND]) is record
    cleaned = without(record, [FOUND, GIVEN])
    assert cleaned.args == {"nested": {"x": ["<redacted>"]}}
    assert cleaned.failure == record.failure


def test_a_key_that_spells_like_a_field_hides_texts_and_leaves_the_field_alone() -> None:
    record = trial(1, args={"note": "it is log_tail"}, params={})
    cleaned = without(record, ["log_tail"])
    assert cleaned.args == {"note": "it is <redacted>"}
    assert replace(cleaned, args=record.args) == record


def test_an_error_that_a_server_put_a_key_into_is_kept_without_it(tmp_path: Path) -> None:
    request = RequestRecord(
        index=0, scheduled_s=None, sent_s=0.0, asked_output_tokens=1, status=401, error=f"HTTP 401: bad key {GIVEN}"
    )
    level = LevelRecord(
        plan_seed=1,
        offered_rps=None,
        concurrency=1,
        window_s=(0.0, 1.0),
        requests=(request,),
        client=ClientHealth(send_lag_p99_ms=None, cpu_ratio=None),
    )
    run = RunDirectory(tmp_path)
    run.write_requests(0, [level], secrets=[GIVEN])
    ((_, kept),) = run.requests(0)
    assert kept.error == "HTTP 401: bad key <redacted>"
