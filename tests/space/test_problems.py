from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import StudyFileError
from autotune.records.spec import Choice, IntRange, StudySpec
from autotune.space import space_problems
from autotune.study import load_study
from tests.space.specs import ON_OFF, parameter, study

SEQS = parameter("max_num_seqs", IntRange(low=1, high=64))
TOKENS = parameter("max_num_batched_tokens", IntRange(low=16, high=2048))
TP = parameter("tensor_parallel_size", Choice(values=(2, 4)))


@pytest.mark.parametrize(
    ("spec", "path", "message", "hint"),
    [
        (study(SEQS, rules=("max_num_seq > 1",)), ("rules", 0), "there is no 'max_num_seq' here", "max_num_seqs?"),
        (study(SEQS, rules=("gpu > 1",)), ("rules", 0), "there is no 'gpu' here", "did you mean gpus?"),
        (study(SEQS, rules=("zzz > 1",)), ("rules", 0), "there is no 'zzz' here", "known: experts, gpus, longest"),
        (study(SEQS, rules=("os.system > 1",)), ("rules", 0), "there is no 'os.system' here", "known"),
        (study(SEQS, rules=("1 <", "2 > 1")), ("rules", 0), "is not an expression", "allowed"),
        (study(SEQS, derived={"x": "[1]"}), ("derived",), "not a number, text", "types"),
        (study(SEQS, derived={"x": "y"}), ("derived", "x"), "there is no 'y' here", "known"),
        (study(SEQS, derived={"x": "gpus", "y": "x"}), ("derived", "y"), "there is no 'x' here", "known"),
        (study(SEQS, derived={"max_num_seqs": "1"}), ("derived", "max_num_seqs"), "both derived and", "keep one"),
        (study(parameter("a", ON_OFF, "a")), ("parameters", "a", "when"), "there is no 'a' here", "known"),
        (study(parameter("a", ON_OFF, "(")), ("parameters", "a", "when"), "is not an expression", "allowed"),
        (study(SEQS, rules=("max_num_seqs > 64",)), ("rules", 0), "no value of max_num_seqs obeys", "widen"),
        (study(SEQS, rules=("gpus > 0", "1 > 2")), ("rules", 1), "`1 > 2` does not hold", "change"),
        (study(TP, rules=("tensor_parallel_size <= gpus",), gpus=(0,)), ("rules", 0), "no value of tensor", "widen"),
        (study(SEQS, TOKENS, rules=("max_num_seqs > max_num_batched_tokens + 99",)), ("rules", 0), "none of 300", ""),
        (study(SEQS, TOKENS, rules=("max_num_seqs + max_num_batched_tokens < 'x'",)), ("rules", 0), "none of 300", ""),
        (study(SEQS, rules=("dtype > 1",), args={"dtype": "x"}), ("rules", 0), "can't be evaluated", "types"),
    ],
)
def test_problems_have_their_place(spec: StudySpec, path: tuple[str | int, ...], message: str, hint: str) -> None:
    (problem,) = space_problems(spec)
    assert problem.path == ("search_space", *path)
    assert message in problem.message
    assert hint in problem.hint


def test_conditions_in_a_circle() -> None:
    spec = study(parameter("a", ON_OFF, "b"), parameter("b", ON_OFF, "c"), parameter("c", ON_OFF, "a"))
    (problem,) = space_problems(spec)
    assert problem.path[:2] == ("search_space", "parameters")
    assert problem.path[-1] == "when"
    assert problem.message.startswith("conditions go in a circle: ")
    assert {"a", "b", "c"} <= set(problem.message.split(": ")[1].split(" -> "))


@pytest.mark.parametrize(
    "spec",
    [
        study(SEQS, TOKENS, rules=("max_num_batched_tokens >= max_num_seqs",)),
        study(SEQS, TOKENS, rules=("max_num_seqs * 32 >= max_num_batched_tokens",)),
        study(SEQS, rules=("max_num_seqs % 8 == 0",)),
        study(TP, rules=("tensor_parallel_size <= gpus",)),
        study(TP, rules=("tensor_parallel_size <= gpus",), gpus=(0, 1)),
        study(SEQS, rules=("max_model_len >= 1",), derived={"max_model_len": "longest_request_tokens"}, dataset="/x"),
        study(SEQS, rules=("max_model_len >= 1",), args={"max_model_len": "auto"}),
        study(SEQS, rules=("kv.dtype == 'fp8'",), args={"kv": {"dtype": "fp8"}}),
    ],
)
def test_sound_spaces_have_no_problems(spec: StudySpec) -> None:
    assert list(space_problems(spec)) == []


def test_all_bad_expressions_are_told_at_once() -> None:
    spec = study(SEQS, parameter("a", ON_OFF, "nope"), derived={"d": "1 +"}, rules=("x > 1 and y > 1", "max_num_seqs"))
    paths = [problem.path[1:] for problem in space_problems(spec)]
    assert paths == [("parameters", "a", "when"), ("derived", "d"), ("rules", 0), ("rules", 0)]


def test_the_reader_puts_them_on_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "name: x\nmodel: m\nengine: {kind: vllm, args: {max_model_len: 100}}\nobjective: chat\n"
        "search_space:\n  engine: vllm\n  parameters:\n    max_num_seqs:\n      int: [1, 8]\n      when: nope > 1\n"
        "  rules:\n    - max_num_seqs > 0\n    - __import__('os')\n"
    )
    with pytest.raises(StudyFileError) as caught:
        load_study(file, checks=[space_problems])
    assert [line.split(":", 2)[1:] for line in caught.value.lines] == [
        [
            "10",
            (
                " search_space.parameters.max_num_seqs.when: there is no 'nope' here; known: experts, gpus, "
                "longest_input_tokens, longest_output_tokens, longest_request_tokens, max_model_len"
            ),
        ],
        [
            "13",
            (
                " search_space.rules[1]: only min, max, ceil_div, round_up can be called, with two values or more; "
                "allowed: names, numbers, comparisons, and, or, not, min, max"
            ),
        ],
    ]


def test_a_model_length_below_the_workload_s_is_found_before_any_launch(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "name: x\nmodel: m\nengine: {kind: vllm, args: {max_model_len: 100}}\nobjective: chat\nsearch_space: vllm/cpu\n"
    )
    with pytest.raises(StudyFileError, match="`max_model_len >= longest_request_tokens` does not hold with"):
        load_study(file, checks=[space_problems])
