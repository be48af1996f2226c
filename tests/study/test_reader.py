from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import InputError, Problem, StudyFileError
from autotune.records.spec import (
    Args,
    Bound,
    CapacitySpec,
    Choice,
    Direction,
    EngineKind,
    FixedLength,
    IntRange,
    LogNormalLength,
    Slo,
    StudySpec,
    TraceArrivals,
    UniformLength,
)
from autotune.study import load_study, shipped_spaces
from tests.study.writing import SOUND, changed, refusal, write


def test_a_sound_study_becomes_a_spec(tmp_path: Path) -> None:
    spec = load_study(write(tmp_path, SOUND))
    assert (spec.name, spec.model, spec.engine.kind) == ("test", "some/model", EngineKind.VLLM)
    assert spec.engine.args == {"max_model_len": 4096}
    seqs, block = spec.search_space.parameters
    assert (seqs.name, seqs.domain) == ("max_num_seqs", IntRange(low=1, high=64, log=True))
    assert (block.name, block.domain) == ("block_size", Choice(values=(16, 32)))
    assert spec.objective.direction is Direction.MAXIMIZE
    assert spec.objective.slos == (Slo(metric="ttft_ms.p90", limit=500), Slo(metric="error_ratio", limit=0.01))
    assert spec.objective.workload.input_tokens == FixedLength(tokens=128)
    assert spec.objective.load.concurrency == 8
    assert (spec.budget.trials, spec.seed, spec.hardware.gpus, spec.incumbent) == (5, 1, None, None)


def test_every_form_of_length_slo_and_command(tmp_path: Path) -> None:
    text = changed("input_tokens: 128", "input_tokens: {uniform: [8, 16]}")
    text = text.replace("output_tokens: 32", "output_tokens: {lognormal: {median: 20, sigma: 0.5, high: 90}}")
    text = text.replace("error_ratio: 0.01", "request_rps: {min: 2}, e2e_ms.p50: {max: 9000}")
    text = text.replace("  kind: vllm", "  kind: vllm\n  command: python -m 'my vllm'")
    spec = load_study(write(tmp_path, text.replace("maximize:", "minimize:")))
    assert spec.objective.workload.input_tokens == UniformLength(low=8, high=16)
    assert spec.objective.workload.output_tokens == LogNormalLength(median=20, sigma=0.5, low=1, high=90)
    assert spec.objective.slos[1:] == (
        Slo(metric="request_rps", limit=2, bound=Bound.MIN),
        Slo(metric="e2e_ms.p50", limit=9000, bound=Bound.MAX),
    )
    assert spec.engine.command == ("python", "-m", "my vllm")
    assert spec.objective.direction is Direction.MINIMIZE


def test_references_to_secrets_are_kept_and_never_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    spec = load_study(write(tmp_path, changed("  args:", '  env: {HF_TOKEN: "${HF_TOKEN}"}\n  args:')))
    assert spec.engine.env == {"HF_TOKEN": "${HF_TOKEN}"}


def test_a_simulated_study_may_use_a_vllm_space(tmp_path: Path) -> None:
    text = changed("  kind: vllm", "  kind: simulated\n  simulate: {gpu: h200, faults: [oom]}")
    spec = load_study(write(tmp_path, text))
    assert spec.engine.simulate is not None
    assert (spec.engine.simulate.gpu, spec.engine.simulate.faults) == ("h200", ("oom",))


def test_shipped_names_paths_and_datasets_are_resolved(tmp_path: Path) -> None:
    objective = """\
minimize: ttft_ms.p99
workload: {dataset: rows.jsonl, output_tokens: 64}
load: {poisson_rps: 2}
"""
    write(tmp_path, "{}", "own/rows.jsonl")
    write(tmp_path, objective, "own/mine.yaml")
    text = "name: x\nmodel: m\nengine: {kind: vllm}\nsearch_space: vllm/cpu\nobjective: own/mine.yaml\n"
    spec = load_study(write(tmp_path, text))
    assert spec.search_space.name == "vllm/cpu"
    assert spec.objective.name == "mine"
    assert spec.objective.workload.dataset == str(tmp_path / "own/rows.jsonl")
    assert spec.objective.slos == ()


def test_every_problem_is_told_at_once_with_its_line_and_a_hint(tmp_path: Path) -> None:
    text = """\
name: bad/name
modell: m
engine: {kind: vlm, container: {img: x}, env: {HF_TOKEN: abc, 1X: y}}
search_space:
  engine: vllm
  parameters:
    a: {int: [3, 1]}
    b: {int: [1, 2], lgo: true}
    c: {}
objective:
  maximize: output_tok_per_sec
  slos:
    ttft_ms.p999999: 3
    tpot_ms.p99: -1
  workload: {input_tokens: 5}
  load: {poisson_rps: 3, concurrency: 4, duration: 1}
budget: {trials: true}
seed: .nan
name: again
"""
    assert refusal(write(tmp_path, text)) == [
        (
            '1: name: "bad/name" can\'t be used as a name; '
            "start with a letter or digit, then letters, digits, '.', '_' or '-', at most 100"
        ),
        "1: model: is missing; add it",
        "2: modell: unknown key; did you mean model?",
        '3: engine.kind: "vlm" is not known here; did you mean vllm?',
        "3: engine.env.1X: \"1X\" can't be used as a name; use letters, digits and '_', as HF_HOME",
        "3: engine.container.image: is missing; add it",
        "3: engine.container.img: unknown key; did you mean image?",
        '3: engine.env.HF_TOKEN: a secret must not stand in a study; write "${HF_TOKEN}" and set it outside',
        "7: search_space.parameters.a.int: lower bound 3 is above upper bound 1; write [1, 3]",
        "8: search_space.parameters.b.lgo: unknown key; did you mean log?",
        (
            "9: search_space.parameters.c: needs exactly one of int, float and choice; "
            "as {int: [1, 8]} or {choice: [a, b]}"
        ),
        "11: objective.maximize: there is no metric 'output_tok_per_sec'; did you mean output_tok_per_s?",
        "13: objective.slos.ttft_ms.p999999: there is no metric 'ttft_ms.p999999'; did you mean ttft_ms.p99?",
        "14: objective.slos.tpot_ms.p99: must be above 0, got -1; give it in the unit of tpot_ms",
        "15: objective.workload: needs input_tokens and output_tokens, or a dataset; give the lengths in tokens",
        "16: objective.load.duration: unknown key; did you mean duration_s?",
        (
            "16: objective.load: needs exactly one kind of load, got poisson_rps and concurrency; "
            "give one of poisson_rps, constant_rps, gamma, bursts, ramp, trace, concurrency, capacity"
        ),
        "17: budget.trials: expected a whole number, got true",
        "18: seed: .nan is not a finite number; give a finite number",
        "19: name: given twice, first in line 1; keep one of the two",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("[1, 64]", "[64, 1]", "9: search_space.parameters.max_num_seqs.int: lower bound 64 is above upper bound 1"),
        ("[1, 64]", "[0, 64]", "9: search_space.parameters.max_num_seqs.int: a logarithmic range must start above 0"),
        ("log: true", "log: true, step: 2", "9: search_space.parameters.max_num_seqs.step: log and step don't go tog"),
        ("[1, 64]", "[1, 64.5]", "9: search_space.parameters.max_num_seqs.int[1]: expected a whole number, got 64.5"),
        ("[1, 64]", "[1]", "9: search_space.parameters.max_num_seqs.int[1]: a value is missing"),
        ("[1, 64]", "[1, 2, 3]", "9: search_space.parameters.max_num_seqs.int: has too many values: [1, 2, 3]"),
        ("[16, 32]", "[]", "10: search_space.parameters.block_size.choice: is empty"),
        ("[16, 32]", "[1, true]", "10: search_space.parameters.block_size.choice[1]: True equals an earlier value"),
        ("[16, 32]", "[16, null]", "10: search_space.parameters.block_size.choice[1]: expected true or false or a"),
        ("max_num_seqs: {", "max-num-seqs: {", '9: search_space.parameters.max-num-seqs: "max-num-seqs" can\'t be'),
        ("max_num_seqs >= 1", "5", "12: search_space.rules[0]: expected text, got 5; put it in quotes"),
        ("error_ratio: 0.01", "error_ratio: 1.5", "15: objective.slos.error_ratio: a ratio lies in 0 to 1, got 1.5"),
        ("error_ratio: 0.01", "error_ratio: true", "15: objective.slos.error_ratio: expected a number, got true"),
        ("error_ratio: 0.01", "e2e_ms.p9: {mx: 1}", "15: objective.slos.e2e_ms.p9: expected a number, {min: x} or"),
        ("error_ratio: 0.01", "e2e_ms.p9: {min: 0}", "15: objective.slos.e2e_ms.p9.min: must be above 0, got 0"),
        ("input_tokens: 128", "input_tokens: 0", "16: objective.workload.input_tokens: must be at least 1, got 0"),
        ("input_tokens: 128", "input_tokens: {uniform: [9, 1]}", "16: objective.workload.input_tokens.uniform: lower"),
        ("input_tokens: 128", "input_tokens: {normal: 1}", "16: objective.workload.input_tokens: expected a number of"),
        (
            "input_tokens: 128",
            "input_tokens: {lognormal: {median: 5, sigma: 1, high: 4}}",
            "16: objective.workload.input_tokens.lognormal.median: median 5 is outside 1 to 4",
        ),
        (
            "input_tokens: 128",
            "prefix: {tokens: 128}, input_tokens: 128",
            "16: objective.workload.prefix.tokens: a shared prefix of 128 tokens does not fit the shortest prompt, 128",
        ),
        ("input_tokens: 128", "dataset: no.jsonl", "16: objective.workload.dataset: there is no file 'no.jsonl'"),
        ("concurrency: 8", "", "17: objective.load: needs exactly one kind of load, got none; give one of"),
        ("concurrency: 8", "capacity: rp", '17: objective.load.capacity: "rp" is not known here; did you mean rps?'),
        ("concurrency: 8", "capacity: 8", "17: objective.load.capacity: expected rps, concurrency or a mapping, got 8"),
        ("concurrency: 8", "capacity: {low: 3, high: 2}", "17: objective.load.capacity.low: lower bound 3 is not bel"),
        ("concurrency: 8", "capacity: {of: concurrency, low: 1.5}", "17: objective.load.capacity.low: expected a who"),
        ("concurrency: 8", "gamma: {rps: 3}", "17: objective.load.gamma.burstiness: is missing"),
        ("concurrency: 8", "ramp: {from_rps: 0, to_rps: 3}", "17: objective.load.ramp.from_rps: must be above 0"),
        ("concurrency: 8", "bursts: {rps: 1, factor: 2, burst_s: 9, every_s: 9}", "17: objective.load.bursts.burst_s:"),
        (
            "concurrency: 8",
            "bursts: {rps: 1, factor: 1, burst_s: 1, every_s: 9}",
            "17: objective.load.bursts.factor: m",
        ),
        ("concurrency: 8", "trace: t.jsonl", '17: objective.load.trace: expected a mapping, got "t.jsonl"'),
        ("128, output_tokens: 32", "{uniform: [1, 2]}", "16: objective.workload: needs input_tokens and output_tokens"),
        (
            "{input_tokens: 128, output_tokens: 32}",
            "{}",
            "16: objective.workload: needs input_tokens and output_tokens",
        ),
        ("input_tokens: 128", "correlation: 0.3, input_tokens: 128", "16: objective.workload.correlation: has no eff"),
        ("input_tokens: 128", "correlation: 1, input_tokens: 128", "16: objective.workload.correlation: must be below"),
        ("input_tokens: 128", "text: real, input_tokens: 128", '16: objective.workload.text: "real" is not known'),
        ("input_tokens: 128", "sessions: {}, input_tokens: 128", "16: objective.workload.sessions.turns: is missing"),
        (
            "input_tokens: 128",
            "sessions: {turns: {a: 1}}, input_tokens: 128",
            "16: objective.workload.sessions.turns: expected a number, {uniform",
        ),
        (
            "maximize: output_tok_per_s",
            "maximize: capacity_rps",
            "14: objective.maximize: capacity_rps is found by a search for it only; write load: {capacity: rps}",
        ),
        ("error_ratio: 0.01", "capacity_concurrency: {min: 3}", "15: objective.slos.capacity_concurrency: capacity_c"),
        ("  kind: vllm", "  kind: endpoint\n  container: {image: a}", "5: engine.container: has no effect: nothing is"),
        ("  kind: vllm", "  kind: vllm\n  container: {image: ' '}", "5: engine.container.image: is empty"),
        ("  kind: vllm", "  kind: vllm\n  container: {image: a, mounts: [b]}", "5: engine.container.mounts[0]: 'b' is"),
        ("name: test", "name: test\nhardware: {when_busy: queue}", '2: hardware.when_busy: "queue" is not known here'),
        ("concurrency: 8", "poisson_rps: -1", "17: objective.load.poisson_rps: must be above 0, got -1"),
        ("trials: 5", "trials: 0", "18: budget.trials: must be at least 1, got 0"),
        (
            "trials: 5",
            "trials: 5}\nfinals: {rounds: 0",
            "19: finals.rounds: expected auto or a whole number from 1 to 50, g",
        ),
        (
            "trials: 5",
            "trials: 5}\nfinals: {rounds: many",
            "19: finals.rounds: expected auto or a whole number from 1 to",
        ),
        ("trials: 5", "hours: .inf", "18: budget.hours: .inf is not a finite number"),
        ("trials: 5", "trials: " + "9" * 30, "18: budget.trials: " + "9" * 30 + " is not a number that fits"),
        ("  kind: vllm", "  kind: vllm\n  simulate: {}", "5: engine.simulate: has no effect with kind vllm"),
        ("  kind: vllm", '  kind: vllm\n  command: "\'"', "5: engine.command: can't be split into words"),
        ("  kind: vllm", "  kind: vllm\n  command: []", "5: engine.command: is empty"),
        ("  kind: vllm", "  kind: vllm\n  command: 5", "5: engine.command: expected text or a list, got 5"),
        ("  kind: vllm", "  kind: vllm\n  env: {A: 1}", "5: engine.env.A: expected text, got 1; put it in quotes"),
        ("max_model_len: 4096", "a: null", "5: engine.args.a: has no value"),
        ("name: test", "name: " + "n" * 101, "1: name: "),
        ("name: test", "name: ..", "1: name: "),
        ("name: test", "name: test\nhardware: {gpus: [0, 0]}", "2: hardware.gpus[1]: GPU 0 is named twice"),
        ("name: test", "name: test\nhardware: {gpus: [-1]}", "2: hardware.gpus[0]: there is no GPU -1"),
        ("name: test", "name: test\nincumbent: gone.yaml", "2: incumbent: there is no file 'gone.yaml'"),
        ("name: test", "name: test\nsampler: {kind: tp}", '2: sampler.kind: "tp" is not known here; did you mean tpe?'),
        ("name: test", "name: test\nquality: high", '2: quality: "high" is not known here'),
        ("name: test", "name: test\nseed: -1", "2: seed: must be at least 0, got -1"),
        ("  engine: vllm", "  engine: tensorrt_llm", "6: search_space: the search space inline is for tensorrt_llm"),
    ],
)
def test_each_problem_has_its_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    told = refusal(write(tmp_path, changed(old, new)))
    assert len(told) == 1, told
    assert told[0].startswith(line)


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ("[-e, HF_TOKEN=abc]", 1),
        ("[--rm, --env, HF_TOKEN=abc]", 2),
        ("['-e HF_TOKEN=abc']", 0),
        ("[-eHF_TOKEN=abc]", 0),
        ("[--env=HF_TOKEN=abc]", 0),
    ],
)
def test_values_of_the_environment_must_not_stand_among_a_container_s_options(
    tmp_path: Path, options: str, at: int
) -> None:
    (line,) = refusal(
        write(tmp_path, changed("  kind: vllm", f"  kind: vllm\n  container: {{image: a, options: {options}}}"))
    )
    assert line.startswith(f"5: engine.container.options[{at}]: a value of HF_TOKEN must not stand on a command line; ")
    assert line.endswith('set HF_TOKEN under engine.env, a secret as "${HF_TOKEN}"')
    assert "abc" not in line


def test_other_options_of_a_container_are_its_user_s_choice(tmp_path: Path) -> None:
    options = "[--privileged, --shm-size=8g, -e, HF_TOKEN, --env=OTHER, --network, host]"
    text = changed(
        "  kind: vllm", f"  kind: vllm\n  container: {{image: a, mounts: [hub:/hub, /m:/m:ro], options: {options}}}"
    )
    container = load_study(write(tmp_path, text)).engine.container
    assert container is not None
    assert (container.mounts, len(container.options)) == (("hub:/hub", "/m:/m:ro"), 7)


def test_virtual_time_refuses_sessions_and_containers(tmp_path: Path) -> None:
    text = changed("input_tokens: 128", "sessions: {turns: 3}, input_tokens: 128")
    virtual = text.replace("  kind: vllm", "  kind: simulated\n  container: {image: a}")
    (container,) = refusal(write(tmp_path, virtual))
    assert container.startswith("5: engine.container: has no effect: nothing is launched")
    (sessions,) = refusal(write(tmp_path, text.replace("  kind: vllm", "  kind: simulated")))
    assert sessions.startswith("16: objective.workload.sessions: a simulation in virtual time holds no sessions")
    real = text.replace("  kind: vllm", "  kind: simulated\n  simulate: {face: server}")
    assert load_study(write(tmp_path, real)).objective.workload.sessions is not None


def test_requests_have_one_source(tmp_path: Path) -> None:
    write(tmp_path, "{}", "f.jsonl")
    beside = "dataset: f.jsonl, prefix: {tokens: 3}, text: natural, input_tokens: 128"
    told = refusal(write(tmp_path, changed("input_tokens: 128", beside)))
    assert [line.split(":")[1].strip() for line in told] == [
        f"objective.workload.{key}" for key in ("input_tokens", "prefix", "text")
    ]
    told = refusal(write(tmp_path, changed("input_tokens: 128", "lengths: f.jsonl, correlation: 0.5")))
    assert [line.split(":")[1].strip() for line in told] == [
        f"objective.workload.{key}" for key in ("output_tokens", "correlation")
    ]
    told = refusal(write(tmp_path, changed("concurrency: 8", "trace: {file: f.jsonl}")))
    assert [line.split(":")[1].strip() for line in told] == [
        f"objective.workload.{key}" for key in ("input_tokens", "output_tokens")
    ]


def test_a_trace_brings_its_own_requests(tmp_path: Path) -> None:
    write(tmp_path, "{}", "t.jsonl")
    text = changed("  workload: {input_tokens: 128, output_tokens: 32}\n", "")
    spec = load_study(write(tmp_path, text.replace("concurrency: 8", "trace: {file: t.jsonl, speed: 2}")))
    assert spec.objective.load.trace == TraceArrivals(file=str(tmp_path / "t.jsonl"), speed=2.0)
    (line,) = refusal(write(tmp_path, text.replace("concurrency: 8", "trace: {file: no.jsonl}")))
    assert line.startswith("16: objective.load.trace.file: there is no file 'no.jsonl'")


def test_a_search_for_capacity_has_a_short_form_and_needs_slos(tmp_path: Path) -> None:
    text = changed("concurrency: 8", "capacity: concurrency").replace("output_tok_per_s", "capacity_concurrency")
    spec = load_study(write(tmp_path, text))
    assert spec.objective.load.capacity == CapacitySpec(of="concurrency")
    (line,) = refusal(write(tmp_path, text.replace("slos: {ttft_ms.p90: 500, error_ratio: 0.01}", "slos: {}")))
    assert line.startswith("17: objective.load.capacity: a capacity is the load at which SLOs hold: there are none")


def test_several_faults_of_one_mapping_are_all_told(tmp_path: Path) -> None:
    told = refusal(write(tmp_path, changed("max_model_len: 4096", "a: null, b: null")))
    assert [line.split(": ")[1] for line in told] == ["engine.args.a", "engine.args.b"]


def test_unknown_names_of_shipped_files_get_a_suggestion(tmp_path: Path) -> None:
    text = "name: x\nmodel: m\nengine: {kind: vllm}\nsearch_space: vllm/defualt\nobjective: zzzz\n"
    told = refusal(write(tmp_path, text))
    assert told[0] == "4: search_space: no search space called 'vllm/defualt' is shipped; did you mean vllm/default?"
    assert told[1].startswith("5: objective: no objective called 'zzzz' is shipped; shipped: batch-offline, chat")


@pytest.mark.parametrize("reference", ["no/such.yaml", "./folder", "../" + "x" * 300 + ".yaml"])
def test_a_referenced_file_that_is_not_there_is_told_where_it_is_named(tmp_path: Path, reference: str) -> None:
    (tmp_path / "folder").mkdir()
    text = f"name: x\nmodel: m\nengine: {{kind: vllm}}\nsearch_space: {reference}\nobjective: chat\n"
    (line,) = refusal(write(tmp_path, text))
    assert line.startswith(f"4: search_space: {reference}: ")


def test_problems_of_a_referenced_file_name_that_file(tmp_path: Path) -> None:
    space = write(tmp_path, "engine: vllm\nparameters:\n  a: {int: [2, 1]}\n  a: {int: [1, 2]}\n", "s/space.yaml")
    study = write(tmp_path, "name: x\nmodel: m\nengine: {kind: nope}\nsearch_space: s/space.yaml\nobjective: chat\n")
    with pytest.raises(StudyFileError) as caught:
        load_study(study)
    assert [line.split(": ")[:2] for line in caught.value.lines] == [
        [f"{study}:3", "engine.kind"],
        [f"{space}:3", "parameters.a.int"],
        [f"{space}:4", "parameters.a"],
    ]


def test_a_referenced_file_with_bad_syntax_is_told_beside_the_rest(tmp_path: Path) -> None:
    space = write(tmp_path, "engine: [\n", "space.yaml")
    study = write(tmp_path, "name: x\nmodel: 5\nengine: {kind: vllm}\nsearch_space: space.yaml\nobjective: chat\n")
    with pytest.raises(StudyFileError) as caught:
        load_study(study)
    assert [line.split(" ")[0] for line in caught.value.lines] == [f"{study}:2:", f"{space}:2:"]


def test_problems_of_checks_stand_at_their_lines_or_the_nearest_above(tmp_path: Path) -> None:
    def check(_: StudySpec) -> Iterator[Problem]:
        yield Problem(path=("engine", "args", "max_model_len"), message="one", hint="do")
        yield Problem(path=("search_space", "rules", 0), message="two")
        yield Problem(path=("search_space", "parameters", "max_num_seqs", "when"), message="three")
        yield Problem(path=("nowhere", "at", "all"), message="four\nlines\x1b[31m")

    path = write(tmp_path, SOUND)
    with pytest.raises(StudyFileError) as caught:
        load_study(path, checks=[check])
    assert [line.removeprefix(f"{path}:") for line in caught.value.lines] == [
        "1: nowhere.at.all: four lines [31m",
        "5: engine.args.max_model_len: one; do",
        "9: search_space.parameters.max_num_seqs.when: three",
        "12: search_space.rules[0]: two",
    ]


def test_checks_point_into_shipped_files_too(tmp_path: Path) -> None:
    text = "name: x\nmodel: m\nengine: {kind: vllm}\nsearch_space: vllm/cpu\nobjective: chat\n"
    problem = Problem(path=("search_space", "parameters", "max_num_seqs"), message="no")
    with pytest.raises(StudyFileError) as caught:
        load_study(write(tmp_path, text), checks=[lambda _: [problem]])
    file = shipped_spaces()["vllm/cpu"]
    line = file.read_text().splitlines().index("  max_num_seqs:") + 1
    assert caught.value.lines == (f"{file}:{line}: parameters.max_num_seqs: no",)


def test_checks_don_t_run_on_a_broken_study(tmp_path: Path) -> None:
    def check(_: StudySpec) -> list[Problem]:
        raise AssertionError

    with pytest.raises(StudyFileError):
        load_study(write(tmp_path, changed("trials: 5", "trials: 0")), checks=[check])
    with pytest.raises(StudyFileError):
        load_study(write(tmp_path, SOUND + "name: twice\n"), checks=[check])


# --- incumbent ------------------------------------------------------------------------------------------------------


def _reader(kind: EngineKind, text: str) -> Args:
    if "bad" in text:
        raise ValueError("no such flag")
    if "worse" in text:
        raise InputError("worse flag", "leave it out")
    return {"kind": kind.value, "text": text}


@pytest.mark.parametrize("given", ["vllm serve m --max-num-seqs 8", "'vllm serve m \\\n  --x 1'"])
def test_a_command_line_is_read_as_it_stands(tmp_path: Path, given: str) -> None:
    path = write(tmp_path, f"incumbent: {given}\n{SOUND}")
    spec = load_study(path, read_incumbent=_reader)
    assert spec.incumbent is not None
    assert spec.incumbent["kind"] == "vllm"
    assert spec.incumbent["text"].startswith("vllm serve m ")


@pytest.mark.parametrize("name", ["prod.yaml", "my prod.yaml"])
def test_a_file_is_read_relative_to_the_study(tmp_path: Path, name: str) -> None:
    write(tmp_path, "max-num-seqs: 8\n", name)
    spec = load_study(write(tmp_path, f"incumbent: {name}\n{SOUND}"), read_incumbent=_reader)
    assert spec.incumbent == {"kind": "vllm", "text": "max-num-seqs: 8\n"}


def test_a_mapping_is_the_arguments(tmp_path: Path) -> None:
    spec = load_study(write(tmp_path, f"incumbent: {{max_num_seqs: 8}}\n{SOUND}"))
    assert spec.incumbent == {"max_num_seqs": 8}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("serve bad", "1: incumbent: no such flag; see the engine's own arguments"),
        ("serve worse", "1: incumbent: worse flag; leave it out"),
        ("binary.txt", "1: incumbent: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("5", "1: incumbent: expected a path, a command line or a mapping, got 5"),
    ],
)
def test_an_incumbent_that_can_t_be_used_is_a_problem_of_the_study(tmp_path: Path, given: str, line: str) -> None:
    write(tmp_path, b"\xff\xfe", "binary.txt")
    path = write(tmp_path, f"incumbent: {given}\n{SOUND}")
    with pytest.raises(StudyFileError) as caught:
        load_study(path, read_incumbent=_reader)
    assert caught.value.lines[0].startswith(f"{path}:{line}")
    assert len(caught.value.lines) == 1
