"""A study of a server that somebody else runs, over real sockets: measured as it is, and what keeps it from that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.engines.base import engine_for
from autotune.engines.net import fresh_port
from autotune.errors import EnvironmentFault, StudyFileError
from autotune.load.english import sentences
from autotune.pipeline import read_study, run_study
from autotune.records.trial import Outcome, TrialRecord
from autotune.trial.store import RunDirectory
from tests.engines.openai_stand_in import Api, serving_api
from tests.fakes import ListView

KEY = "sk-of-the-right-kind"
MEASURED = (Outcome.OK, Outcome.UNSURE, Outcome.CLIENT_LIMITED)
"""Whatever else this machine is busy with: of some seconds an SLO may be left unsettled, and the client be slow."""

CLIENTS = 2
STUDY = """\
name: api
model: some/model
engine:
  kind: endpoint
  url: {url}
objective:
  maximize: output_tok_per_s
  slos: {{ttft_ms.p90: 5000, error_ratio: 0.2}}
  workload: {{input_tokens: 32, output_tokens: 4}}
  load: {{concurrency: {clients}, duration_s: {seconds}, warmup_s: 0, max_requests: 200}}
  confidence: 0.9
price: {{usd_per_million_input_tok: 0.5, usd_per_million_output_tok: 4}}
"""


def study(folder: Path, url: str, key_env: str | None = None, seconds: float = 1.0) -> Path:
    key = "" if key_env is None else f"\n  api_key_env: {key_env}"
    path = folder / "study.yaml"
    path.write_text(STUDY.format(url=url + key, seconds=seconds, clients=CLIENTS))
    return path


def run(folder: Path, url: str, key_env: str | None = None, seconds: float = 1.0) -> TrialRecord:
    spec = read_study(study(folder, url, key_env, seconds))
    directory = RunDirectory(folder / "run")
    run_study(spec, engine_for(spec), directory, ListView())
    (record,) = directory.trials()
    return record


@pytest.mark.integration
def test_an_endpoint_is_measured_once_and_nothing_is_launched(tmp_path: Path) -> None:
    with serving_api() as api:
        record = run(tmp_path, api.url)
    assert record.outcome in MEASURED
    assert (record.argv, record.args) == ((), {})
    assert (record.startup_s, record.startup_kind) == (None, None)
    assert record.versions["url"] == api.url
    summary = RunDirectory(tmp_path / "run").summary()
    assert summary.launched == 1
    assert {path.name for path in tmp_path.glob("run/best/*")} <= {"best.json"}
    assert all(body["model"] == "some/model" for body in api.asked)


@pytest.mark.integration
def test_its_bill_counts_prompts_too(tmp_path: Path) -> None:
    """32 tokens of prompt and 4 of answer: 4 + 0.5 x 32 / 4 = 8 dollars a million output tokens."""
    with serving_api() as api:
        values = run(tmp_path, api.url, seconds=3.0).measurements[0].values
    assert values["usd_per_million_output_tok"].value == pytest.approx(8, rel=0.05)
    # Answers count when they end and tokens as they come: what is under way at the window's edges is between them.
    between = 2 * CLIENTS / values["goodput_rps"].n
    assert values["usd_per_useful_response"].value == pytest.approx(8 * 4 / 1e6, rel=between)


@pytest.mark.integration
def test_a_rate_limit_is_counted_apart_and_its_wait_respected(tmp_path: Path) -> None:
    with serving_api(limit=30, retry_after_s=1) as api:
        record = run(tmp_path, api.url, seconds=2.5)
    (level,) = record.measurements
    assert record.outcome is not Outcome.OK
    assert level.counters["rate_limited"] == level.errors > 0
    assert (
        f"{level.errors} of {level.requests} requests were refused by the server's rate limit (HTTP 429)" in level.notes
    )
    assert _refused_within_s(api, api.retry_after_s * 0.95) <= CLIENTS


def _refused_within_s(api: Api, seconds: float) -> int:
    """The most refusals in a stretch of so many seconds: a client that waits as it is told has one."""
    return max(sum(begin <= at < begin + seconds for at in api.refused_s) for begin in api.refused_s)


@pytest.mark.integration
def test_fields_that_it_refuses_are_left_out_and_told(tmp_path: Path) -> None:
    with serving_api(strict=True) as api:
        record = run(tmp_path, api.url)
    assert record.outcome in MEASURED
    assert "ignore_eos" not in api.asked[-1]
    assert any("it takes no ignore_eos" in note for note in record.measurements[0].notes)


@pytest.mark.integration
def test_one_that_takes_no_token_ids_is_sent_text_by_the_models_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([sentences(np.random.default_rng(1), 20_000)], vocab_size=600, show_progress=False)
    folder = tmp_path / "some" / "model"  # what the study calls the model, from where it runs
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    with serving_api(text_only=True) as api:
        record = run(tmp_path, api.url)
    assert record.outcome in MEASURED, record.failure
    assert isinstance(api.asked[-1]["prompt"], str)
    assert any("it takes no token ids" in note for note in record.measurements[0].notes)


@pytest.mark.integration
def test_without_usage_its_figures_are_labelled_as_guesses(tmp_path: Path) -> None:
    with serving_api(usage=False) as api:
        record = run(tmp_path, api.url)
    assert record.outcome is not Outcome.OK
    assert record.verdict is not None
    assert any("doesn't count tokens" in reason for reason in record.verdict.untrusted)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"streams": False}, r"not an event stream[\s\S]*it doesn't stream"),
        ({"key": KEY, "open_list": True}, r"HTTP 401[\s\S]*engine\.api_key_env"),
        ({"key": KEY}, r"it wants a key[\s\S]*engine\.api_key_env"),
        ({"limit": 0, "stubborn": True}, r"HTTP 429[\s\S]*its rate limit is used up"),
    ],
)
def test_what_can_not_be_measured_says_why(how: dict[str, Any], told: str, tmp_path: Path) -> None:
    with serving_api(**how) as api, pytest.raises(EnvironmentFault, match=told):
        run(tmp_path, api.url)


@pytest.mark.integration
def test_the_key_comes_from_the_environment_and_reaches_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_WORD", KEY)
    with serving_api(key=KEY, limit=40) as api:  # it repeats nothing, but its errors are recorded
        run(tmp_path, api.url, "THEIR_WORD")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.integration
def test_a_wrong_key_that_the_server_repeats_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_WORD", "sk-of-the-wrong-kind")
    with serving_api(key=KEY, open_list=True) as api, pytest.raises(EnvironmentFault) as refused:
        run(tmp_path, api.url, "THEIR_WORD")
    assert "Incorrect API key" in str(refused.value)
    assert "sk-of-the-wrong-kind" not in str(refused.value)


def test_a_key_that_is_not_set_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="'NOT_SET_ANYWHERE' is not set"):
        run(tmp_path, "http://127.0.0.1:1", "NOT_SET_ANYWHERE")


def test_nobody_there_ends_the_study_with_the_address(tmp_path: Path) -> None:
    port = fresh_port()
    with pytest.raises(EnvironmentFault, match=rf"127\.0\.0\.1:{port}/v1 can't be reached"):
        run(tmp_path, f"http://127.0.0.1:{port}")


def test_an_url_that_is_none_is_told_at_its_line(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match=r"study\.yaml:5: engine\.url: .*scheme is 'ftp'"):
        read_study(study(tmp_path, "ftp://h"))
