"""`autotune bench` as its users and their pipelines meet it, against the simulated server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from autotune.bench.export import exporter_to
from autotune.cli import main
from autotune.engines.net import fresh_port
from autotune.errors import EnvironmentFault, ExitCode, InputError
from tests.engines.children import wait_until
from tests.simulated.running import Server, serving
from tests.test_cli import Ended

pytestmark = pytest.mark.integration

Bench = Callable[..., Ended]

OBJECTIVE = """\
maximize: output_tok_per_s
slos: {ttft_ms.p90: 500}
workload: {input_tokens: 64, output_tokens: 16}
load: {concurrency: 4, duration_s: 1.5, warmup_s: 0.3}
confidence: 0.9
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--max-model-len", "512", "--served-model-name", "m") as server:
        yield server


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Bench:
    """Run `autotune bench …` in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["autotune", "bench", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return Ended(code=end.value.code, out=out, err=err)

    return run


@pytest.fixture
def objective(tmp_path: Path) -> str:
    (tmp_path / "o.yaml").write_text(OBJECTIVE)
    return "--objective=o.yaml"


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def measured(ended: Ended) -> bool:
    """It was measured. A machine too busy for the load client makes that unsure or client-limited: no fault here."""
    limited = ended.code == ExitCode.ENVIRONMENT and "client" in ended.out
    return limited or ended.code in (ExitCode.OK, ExitCode.NOTHING_FEASIBLE)


def test_a_measurement_is_a_table_on_stdout_and_its_progress_on_stderr(
    bench: Bench, server: Server, objective: str
) -> None:
    ended = bench(url(server), objective)
    assert measured(ended), ended
    for text in ("SIMULATED", "output tok/s", "p90 TTFT ms", "SLOs", ": ttft_ms.p90"):
        assert text in ended.out
    assert ("Meets the objective o" in ended.out) == (ended.code == ExitCode.OK)
    assert "measuring" in ended.err
    assert "measuring" not in ended.out


def test_a_missed_slo_ends_with_3(bench: Bench, server: Server, objective: str, tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text(OBJECTIVE.replace("500", "0.001"))
    ended = bench(url(server), objective)
    assert ended.code != ExitCode.OK
    assert measured(ended), ended
    assert "missed: ttft_ms.p90" in ended.out


def test_json_requests_and_record_are_the_same_measurement(
    bench: Bench,
    server: Server,
    objective: str,
    tmp_path: Path,
) -> None:
    ended = bench(url(server), objective, "--rate", "50", "--json", "--output", "out", "--export", "r.jsonl")
    record = json.loads(ended.out)
    assert record["schema_version"] == 1
    assert (record["model"], record["simulated"], record["objective"]["load"]["poisson_rps"]) == ("m", True, 50.0)
    assert json.loads((tmp_path / "out/bench.json").read_text()) == record
    assert (tmp_path / "out/requests.jsonl").read_text() == (tmp_path / "r.jsonl").read_text()
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert sum(row["measured"] for row in rows) == record["measurements"][0]["requests"]
    assert not any(row["measured"] for row in rows if row["warmup"])
    assert all(row["ttft_ms"] == pytest.approx((row["chunk_s"][0] - row["scheduled_s"]) * 1e3) for row in rows)


def test_parquet_holds_what_jsonl_holds(bench: Bench, server: Server, objective: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ended = bench(url(server), objective, "--export", "r.parquet", "--output", "out")
    assert measured(ended), ended
    rows = [json.loads(line) for line in (tmp_path / "out/requests.jsonl").read_text().splitlines()]
    assert parquet.read_table(tmp_path / "r.parquet").to_pylist() == rows


def test_equal_levels_are_compared_in_pairs(bench: Bench, server: Server, objective: str) -> None:
    ended = bench(url(server), objective, "--aa", "4", "--duration", "0.5", "--warmup", "0.1", "--json")
    record = json.loads(ended.out)
    assert len(record["measurements"]) == 4
    (noise,) = [noise for noise in record["noise"] if noise["metric"] == "output_tok_per_s"]
    assert [pair["levels"] for pair in noise["pairs"]] == [[1, 2], [3, 4]]
    values = [level["values"]["output_tok_per_s"]["value"] for level in record["measurements"]]
    assert [noise["pairs"][1][which] for which in ("first", "second")] == values[2:]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--objective", "chatt"], ExitCode.BAD_INPUT, "did you mean chat"),
        (["--objective", "nothing.yaml"], ExitCode.BAD_INPUT, "no such file"),
        (["--rate", "3", "--concurrency", "4"], ExitCode.BAD_INPUT, "exclude each other"),
        (["--rate", "-1"], ExitCode.BAD_INPUT, "--rate must be above 0"),
        (["--aa", "1"], ExitCode.BAD_INPUT, "too few"),
        (["--aa", "2", "--capacity"], ExitCode.BAD_INPUT, "excludes"),
        (["--model", "x"], ExitCode.BAD_INPUT, "it serves: m"),
        (["--export", "r.csv"], ExitCode.BAD_INPUT, ".jsonl or .parquet"),
        (["--export", "nowhere/r.jsonl"], ExitCode.BAD_INPUT, "folder does not exist"),
        (["--api-key-env", "NOT_SET_ANYWHERE"], ExitCode.BAD_INPUT, "NOT_SET_ANYWHERE"),
        (["--cross-check", "wrk"], ExitCode.BAD_INPUT, "vllm-bench, aiperf"),
        (
            ["--cross-check", "aiperf", "--cross-check-command", "/no/aiperf"],
            ExitCode.ENVIRONMENT,
            "pip install aiperf",
        ),
        (["--objective", "summarise"], ExitCode.BAD_INPUT, "the engine holds 512"),
        (["--objective", "summarise", "--capacity"], ExitCode.BAD_INPUT, "the engine holds 512"),
        (["--objective", "natural.yaml"], ExitCode.BAD_INPUT, "there is no tokenizer.json of"),
    ],
)
def test_what_cannot_be_done_is_told_before_the_server_is_loaded(
    bench: Bench,
    server: Server,
    arguments: list[str],
    code: ExitCode,
    words: str,
) -> None:
    Path("natural.yaml").write_text(OBJECTIVE.replace("output_tokens: 16", "output_tokens: 16, text: natural"))
    before = served(server)
    ended = bench(url(server), *arguments)
    assert ended.code == code
    assert words in ended.err
    assert "Traceback" not in ended.err
    assert served(server) - before <= 1  # the canary


def served(server: Server) -> float:
    """How many requests the server has begun."""
    found = re.search(r"^vllm:prompt_tokens_total\S* (\S+)", server.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found.group(1)) / 64


def test_nobody_at_the_address_ends_with_4(bench: Bench) -> None:
    ended = bench(f"http://127.0.0.1:{fresh_port()}")
    assert ended.code == ExitCode.ENVIRONMENT
    assert "can't be reached" in ended.err


def test_a_server_that_dies_under_load_ends_with_4_and_says_so(bench: Bench, objective: str) -> None:
    with serving("--served-model-name", "m", "--sim-fault", "dies_after:40") as dying:
        ended = bench(url(dying), objective, "--output", "out")
    assert ended.code == ExitCode.ENVIRONMENT
    assert re.search(r"Failed: .*answers no more: Connection refused", ended.out), ended.out


def test_a_key_reaches_the_server_and_no_file(
    bench: Bench,
    objective: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("THE_KEY", "sk-very-secret")
    with serving("--served-model-name", "m", "--api-key", "sk-very-secret") as guarded:
        refused = bench(url(guarded), objective)
        ended = bench(url(guarded), objective, "--api-key-env", "THE_KEY", "--output", "out")
    assert refused.code == ExitCode.ENVIRONMENT
    assert "--api-key-env" in refused.err
    assert measured(ended), ended
    assert not any(b"sk-very-secret" in path.read_bytes() for path in tmp_path.rglob("*.json*"))


@contextmanager
def ended_at_last(child: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever the test comes to, nothing of it runs on."""
    try:
        yield
    finally:
        child.kill()


def interrupted(server: Server, folder: Path, *options: str) -> Ended:
    """Run the command in a child, and interrupt it once it measures."""
    (folder / "o.yaml").write_text(OBJECTIVE.replace("duration_s: 1.5", "duration_s: 60"))
    argv = [
        sys.executable,
        "-m",
        "autotune.cli",
        "bench",
        url(server),
        "--objective",
        "o.yaml",
        "--output",
        "out",
        *options,
    ]
    errors = folder / "stderr"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            argv,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        ) as child,
        ended_at_last(child),
    ):
        family = psutil.Process(child.pid)
        wait_until(lambda: "measuring" in errors.read_text(), "the level began")
        clients = family.children(recursive=True)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=20)
        wait_until(lambda: not any(client.is_running() for client in clients), "the load client has ended")
    return Ended(code=child.returncode, out=out, err=errors.read_text())


@pytest.mark.parametrize("options", [(), ("--aa", "4"), ("--capacity",)])
def test_ctrl_c_keeps_what_was_measured_and_ends_with_130(
    server: Server, tmp_path: Path, options: tuple[str, ...]
) -> None:
    ended = interrupted(server, tmp_path, *options)
    assert ended.code == ExitCode.INTERRUPTED, ended
    assert "Interrupted: figures of what came until then" in ended.out
    assert ("SLOs" in ended.out) == ((tmp_path / "out/requests.jsonl").stat().st_size > 0)
    assert json.loads((tmp_path / "out/bench.json").read_text())["interrupted"] is True
    assert "Traceback" not in ended.err


def test_a_missing_pyarrow_is_told_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match=r"autotune-llm\[parquet\]"):
        exporter_to(tmp_path / "r.parquet")
    with pytest.raises(InputError, match="suffix"):
        exporter_to(tmp_path / "requests")
