from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.deploy import Asked, Deployment, best_schema, exporter, make_deployment, write_best
from autotune.deploy.evidence import best_file
from autotune.engines.vllm.command import serve_argv
from autotune.errors import InputError
from autotune.records.spec import EngineKind, EngineSpec, StudySpec
from autotune.records.summary import StudySummary
from autotune.records.trial import TrialRecord
from autotune.trial.store import RunDirectory
from tests.runs import FIXED, HOSTILE, dozen, study, summary, write_run

REFERENCE, BEST = dozen()[0], dozen()[5]


def written(
    path: Path,
    *,
    spec: StudySpec | None = None,
    best: TrialRecord = BEST,
    summarised: StudySummary | None = None,
    reference: TrialRecord | None = REFERENCE,
) -> Path:
    run = write_run(path / "run", dozen(), None)
    return write_best(run, spec or study(), best, reference, summarised or summary())


def evidence(folder: Path) -> Any:
    return json.loads((folder / "best.json").read_text())


def env_study(env: dict[str, str], command: tuple[str, ...] = ()) -> StudySpec:
    return study(engine=EngineSpec(kind=EngineKind.VLLM, command=command, args=FIXED, env=env))


# --- best.json ------------------------------------------------------------------------------------------------------

FIELDS = [
    *("schema_version", "study", "created_utc", "simulated", "confirmed", "quality", "model", "engine", "hardware"),
    *(
        "workload",
        "load",
        "objective",
        "slos",
        "reference",
        "gain_ratio",
        "trial",
        "fingerprint",
        "versions",
        "warnings",
        "cost",
        "suggested_limits",
        "finals",
        "checkpoint",
        "engines",
    ),
]


def test_best_json_has_the_fields_that_pipelines_rely_on_and_follows_its_schema(tmp_path: Path) -> None:
    data = evidence(written(tmp_path))
    assert list(data) == FIELDS
    jsonschema.validate(data, best_schema(), cls=jsonschema.Draft202012Validator)
    assert data["engine"] == {"kind": "vllm", "version": "0.11.2", "command": [], "args": dict(BEST.args)}
    assert data["objective"]["value"] == 312.0
    assert set(data["slos"][0]) == {"metric", "bound", "limit", "value", "low", "high", "n", "verdict"}
    assert data["reference"] == {"kind": "incumbent", "args": dict(REFERENCE.args), "objective": 238.0}
    assert data["gain_ratio"] == {"value": 1.31, "low": 1.18, "high": 1.45}
    assert (data["confirmed"], data["trial"], data["fingerprint"]) == (True, 5, BEST.fingerprint)


def test_the_schema_refuses_what_is_no_best_json(tmp_path: Path) -> None:
    data = evidence(written(tmp_path))
    for broken in ({**data, "quality": "good"}, {**data, "objective": None}, {**data, "schema_version": 2}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, best_schema())


def test_a_simulated_study_is_never_confirmed_and_says_so_in_every_file(tmp_path: Path) -> None:
    folder = written(tmp_path, best=replace(BEST, simulated=True), summarised=summary(confirmed=True))
    assert (evidence(folder)["simulated"], evidence(folder)["confirmed"]) == (True, False)
    for name in ("vllm.yaml", "serve.sh"):
        assert "# SIMULATED: no real engine ran; not evidence\n" in (folder / name).read_text()
        assert "# NOT CONFIRMED" in (folder / name).read_text()


def test_unconfirmed_and_unchecked_are_said_in_every_file(tmp_path: Path) -> None:
    folder = written(tmp_path, summarised=summary(confirmed=False, quality="unchecked"))
    for name in ("vllm.yaml", "serve.sh"):
        text = (folder / name).read_text()
        assert "# NOT CONFIRMED" in text
        assert "# QUALITY UNCHECKED" in text
        assert "SIMULATED" not in text
    assert evidence(folder)["quality"] == "unchecked"


@pytest.mark.parametrize(
    ("incumbent", "first", "kind"),
    [(REFERENCE.args, REFERENCE, "incumbent"), (None, REFERENCE, "defaults"), (REFERENCE.args, None, "nearest")],
)
def test_the_reference_says_what_it_is(
    tmp_path: Path, incumbent: dict[str, Any] | None, first: TrialRecord | None, kind: str
) -> None:
    run = RunDirectory(tmp_path / "run")
    run.write_trial(first or replace(REFERENCE, fingerprint="could-not-run"))
    stand_in = replace(REFERENCE, number=1)
    if first is None:
        run.write_trial(stand_in)
    content = best_file(run, study(incumbent=incumbent), BEST, first or stand_in, summary())
    assert content.reference is not None
    assert content.reference.kind == kind


def test_without_a_reference_there_is_no_gain(tmp_path: Path) -> None:
    data = evidence(written(tmp_path, reference=None, summarised=summary(gain=None, reference=None)))
    assert data["reference"] is None
    assert data["gain_ratio"] is None


def test_an_unmeasured_trial_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trial 2 has no output_tok_per_s"):
        written(tmp_path, best=dozen()[2])


# --- the folder -----------------------------------------------------------------------------------------------------


def test_an_older_best_is_replaced_whole(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "stale").touch()
    written(tmp_path, best=replace(BEST, number=7))
    assert sorted(path.name for path in folder.iterdir()) == ["best.json", "serve.sh", "vllm.yaml"]
    assert evidence(folder)["trial"] == 7
    assert [path.name for path in folder.parent.glob(".best*")] == []


def test_what_cannot_be_written_leaves_the_older_best(tmp_path: Path) -> None:
    folder = written(tmp_path)
    with pytest.raises(InputError, match="NUL"):
        written(tmp_path, best=replace(BEST, number=7, args={"served_model_name": "a\0b"}))
    assert evidence(folder)["trial"] == 5
    assert [path.name for path in folder.parent.glob(".best*")] == []


@pytest.mark.parametrize("fresh_in_place", [False, True])
def test_a_swap_that_was_cut_short_is_repaired(tmp_path: Path, fresh_in_place: bool) -> None:
    folder = written(tmp_path)
    folder.rename(folder.with_name(".best.old"))
    if fresh_in_place:
        folder.mkdir()
    written(tmp_path)
    assert evidence(folder)["trial"] == 5
    assert [path.name for path in folder.parent.glob(".best*")] == []


def test_pipelines_may_read_the_files_and_run_the_script(tmp_path: Path) -> None:
    folder = written(tmp_path)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.iterdir()]}
    assert modes == {"best": 0o755, "best.json": 0o644, "vllm.yaml": 0o644, "serve.sh": 0o755}


# --- the arguments deployed are exactly those measured --------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
SCALAR = st.one_of(st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), TEXT)
JSON = st.recursive(SCALAR, lambda inner: st.dictionaries(TEXT, inner, max_size=3), max_leaves=4)
ARGS = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.integers(1, 4096),
        "gpu_memory_utilization": st.floats(0.1, 1.0),
        "enable_prefix_caching": st.booleans(),
        "async_scheduling": st.booleans(),
        "served_model_name": st.lists(TEXT, min_size=1, max_size=3),
        "chat_template": TEXT,
        "compilation_config": st.dictionaries(TEXT, JSON, max_size=3),
        "compilation_config.mode": st.integers(0, 3),
    },
).filter(lambda args: not {"compilation_config", "compilation_config.mode"} <= set(args))
NASTY = {"served_model_name": ["a b", "-c", "'\"\n$(id)`id`\\", "ünï"], "chat_template": "--port\n1"}


@settings(max_examples=60, deadline=None)
@given(ARGS)
@example(NASTY)
def test_the_script_starts_exactly_what_was_measured(args: dict[str, Any]) -> None:
    """A real shell reads the script; only `exec` is replaced, by telling the words."""
    script, measured = script_of(args), serve_argv((), BEST.model, args, port=8000)
    command = script[script.index("\nexec ") + 1 :].replace("exec ", "printf '%s\\0' ", 1)
    told = subprocess.run(["sh"], input=command.encode(), env={}, capture_output=True, check=True).stdout
    assert tuple(told.decode().split("\0")[:-1]) == measured


@settings(max_examples=100, deadline=None)
@given(ARGS)
@example({"served_model_name": ["a b", "-c", "'\"\n: #", "ünï\u2028\x85\ufeff"], "enable_prefix_caching": False})
def test_the_file_says_exactly_what_was_measured(args: dict[str, Any]) -> None:
    text = exporter("vllm-yaml")(deployed(args))["vllm.yaml"]
    assert as_vllm_reads(text) == [
        "--model",
        BEST.model,
        *serve_argv((), BEST.model, args, port=8000)[3:-4],
    ]


def script_of(args: dict[str, Any]) -> str:
    return exporter("shell")(deployed(args))["serve.sh"]


def deployed(args: dict[str, Any]) -> Deployment:
    best = replace(BEST, args=args)
    return make_deployment(RunDirectory(Path("nowhere")), study(), best, None, summary(), asked=Asked(here=True))


def as_vllm_reads(text: str) -> list[str]:
    """`load_config_file` of vLLM 0.32, its lookup of `--no-x` left out: older releases drop a false boolean."""
    words: list[str] = []
    for key, value in yaml.safe_load(text).items():
        if value is True:
            words.append("--" + key)
        elif isinstance(value, list) and value:
            words.append("--" + key)
            words.extend(str(item) for item in value)
        elif isinstance(value, dict):
            words.extend(["--" + key, json.dumps(value)])
        elif value is not False and value != []:
            words.extend(["--" + key, str(value)])
    return words


def test_the_shell_passes_on_every_word(tmp_path: Path) -> None:
    """The same through a real shell, into a program that only tells its arguments."""
    teller = tmp_path / "my tools" / "tell"
    teller.parent.mkdir()
    teller.write_text('#!/bin/sh\nprintf "%s\\0" "$HF_HOME" "$TOKEN_FILE" "$@"\n')
    teller.chmod(0o755)
    spec = env_study({"HF_HOME": "it's $HOME `id`", "TOKEN_FILE": "/x/${WHO}'s/$(id)"}, command=(str(teller),))
    folder = written(tmp_path, spec=spec, best=replace(BEST, args=NASTY))
    subprocess.run(["sh", "-n", folder / "serve.sh"], check=True)
    environ = {"PATH": os.environ["PATH"], "WHO": "a b", "PORT": "9 1"}
    told = subprocess.run([folder / "serve.sh"], env=environ, capture_output=True, check=True).stdout.decode()
    home, token, *words = told.split("\0")[:-1]
    assert (home, token) == ("it's $HOME `id`", "/x/a b's/$(id)")
    assert words[-4:] == ["--host", "127.0.0.1", "--port", "9 1"]
    assert tuple(words[:-1]) == serve_argv((), BEST.model, NASTY, port=0)[1:-1]


# --- words of strangers, and secrets --------------------------------------------------------------------------------


def test_a_hostile_name_cannot_leave_the_comment(tmp_path: Path) -> None:
    folder = written(tmp_path, spec=study(name=HOSTILE + "\x85rm\u2028-rf\r/"))
    plain = written(tmp_path / "plain")
    for name in ("vllm.yaml", "serve.sh"):
        text, expected = (folder / name).read_text(), (plain / name).read_text()
        uncommented = [line for line in re.split("[\n\r\x85\u2028]", text) if not line.startswith("#")]
        assert uncommented == [line for line in expected.split("\n") if not line.startswith("#")]


def test_secrets_are_named_but_never_written(tmp_path: Path) -> None:
    spec = env_study({"HF_TOKEN": "${HF_TOKEN}", "HUB_TOKEN": "${MINE}", "MY_API_KEY": "sk-123", "HF_HOME": "/models"})
    folder = written(tmp_path, spec=spec)
    script = (folder / "serve.sh").read_text()
    assert "# Needs these in the environment: HF_TOKEN, MINE, MY_API_KEY\n" in script
    assert "export HF_HOME=/models\n" in script
    assert not [path for path in folder.iterdir() if "sk-123" in path.read_text()]


def test_a_missing_variable_is_named_by_the_script(tmp_path: Path) -> None:
    folder = written(tmp_path, spec=env_study({"HF_TOKEN": "${HF_TOKEN}"}))
    done = subprocess.run(
        [folder / "serve.sh"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "set HF_TOKEN, which the engine needs" in done.stderr


@pytest.mark.parametrize(
    ("best", "spec", "message"),
    [
        (replace(BEST, model="--trust-remote-code"), study(), "begins with a dash"),
        (replace(BEST, args={"chat_template": "\ud800"}), study(), "no valid text"),
        (BEST, env_study({"A B": "x"}), "is no name for an environment variable"),
    ],
)
def test_what_no_command_line_can_carry_is_refused(
    tmp_path: Path, best: TrialRecord, spec: StudySpec, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        written(tmp_path, best=best, spec=spec)
    assert not (tmp_path / "run" / "best").exists()


def test_a_model_in_a_folder_whose_name_begins_with_a_dash_is_deployed_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "-model").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = written(tmp_path, best=replace(BEST, model="-model"), spec=study())
    assert f" {tmp_path}/-model " in (folder / "serve.sh").read_text()
