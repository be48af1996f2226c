"""Files that try to run code, eat memory or slip through."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import StudyFileError
from autotune.study import load_study
from tests.study.writing import SOUND, changed, refusal, write


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "1: the file is empty"),
        ("# only a comment\n", "1: the file is empty"),
        ("- a\n- b\n", "1: the file must hold a mapping"),
        ("just text\n", "1: the file must hold a mapping"),
        ("null\n", "1: the file must hold a mapping"),
        ("a: [1\n", "2: not valid YAML: "),
        ("a: 1\n\tb: 2\n", "2: not valid YAML: found character '\\t' that cannot start any token; indent with spaces"),
        ("a: 'open\n", "2: not valid YAML: "),
        ("a: *nowhere\n", "1: not valid YAML: found undefined alias"),
        ("a: b\x07\n", "1: not valid YAML: special characters are not allowed"),
        ("[" * 20_000, "1: not valid YAML: nested deeper than 32 levels"),
        ("a: " + "{b: " * 40 + "}" * 40, "1: not valid YAML: nested deeper than 32 levels"),
        (b"name: caf\xe9\nx: 1\n", "1: not UTF-8 text"),
        (b"a: 1\nb: \xff\n", "2: not UTF-8 text"),
        ("name: x\n".encode("utf-16"), "1: not UTF-8 text"),
        (b"a: " + b"x" * 300_000, "1: larger than 256 KiB"),
        ("a: &a [*a]\n", "1: expands to more than"),
    ],
)
def test_a_file_that_can_t_be_read_has_one_problem(tmp_path: Path, content: str | bytes, line: str) -> None:
    (told,) = refusal(write(tmp_path, content))
    assert told.startswith(line)


def test_an_alias_bomb_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    begin = time.monotonic()
    (told,) = refusal(write(tmp_path, "\n".join(lines)))
    assert told.startswith("1: expands to more than 10000 values")
    assert time.monotonic() - begin < 5


def test_a_few_aliases_are_fine(tmp_path: Path) -> None:
    text = changed("[16, 32]", "&sizes [16, 32]").replace("[1, 64], log: true", "[1, 2]").replace("block_size:", "b:")
    spec = load_study(write(tmp_path, text.replace("    b:", "    c: {choice: [1]}\n    b:")))
    assert [parameter.name for parameter in spec.search_space.parameters] == ["max_num_seqs", "c", "b"]


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!mine", "!!binary"])
def test_tags_never_run_or_pass(tmp_path: Path, tag: str) -> None:
    victim = tmp_path / "victim"
    text = changed("some/model", f"{tag} [touch {victim}]" if "apply" in tag else f"{tag} 'touch {victim}'")
    (told,) = refusal(write(tmp_path, text))
    assert told == f"2: model: the tag {tag} is not allowed; leave the tag out"
    assert not victim.exists()


def test_standard_tags_mean_what_they_say(tmp_path: Path) -> None:
    spec = load_study(write(tmp_path, changed("some/model", "!!str 5").replace("trials: 5", "trials: !!int '7'")))
    assert (spec.model, spec.budget.trials) == ("5", 7)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (SOUND + "---\nname: y\n", "20: a second document starts here"),
        (SOUND + "<<: {seed: 3}\n", "19: merge keys (<<) are not supported"),
        (SOUND + "5: x\n", "19: a key must be text, got '5'"),
        (SOUND + "? [a]\n: x\n", "19: a key must be text, got a list or mapping"),
        (SOUND + "storage: yes\n", "19: storage: yes is read differently by different programs"),
        (SOUND + "storage: 010\n", "19: storage: 010 is read differently by different programs"),
        (SOUND + 'storage: "a\\0b"\n', "19: storage: the text has characters that no program can take"),
        (SOUND + 'storage: "\\ud800"\n', "19: storage: the text has characters that no program can take"),
        (SOUND + "seed: 1e999\n", "19: seed: 1e999 is not a finite number"),
        (SOUND + "seed: " + "9" * 5000 + "\n", "19: seed: 9999999999999999999999999999999999999... is not a number"),
        (SOUND + "seed: 2.0\n", "19: seed: expected a whole number, got 2.0"),
        (SOUND + 'seed: "2"\n', '19: seed: expected a whole number, got "2"'),
        (SOUND + "storage:\n  - 1\n", "19: storage: expected text, got [1]"),
    ],
)
def test_what_must_not_slip_through(tmp_path: Path, text: str, line: str) -> None:
    (told,) = refusal(write(tmp_path, text))
    assert told.startswith(line)


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    assert load_study(write(tmp_path, b"\xef\xbb\xbf" + SOUND.replace("\n", "\r\n").encode())).name == "test"


def test_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = changed("max_model_len: 4096", "a: 1e3, b: 0x10, c: 1:30, d: 2024-01-01, e: .5, f: '010', g: -0.0")
    args = load_study(write(tmp_path, text)).engine.args
    assert dict(args) == {"a": 1000.0, "b": 16, "c": "1:30", "d": "2024-01-01", "e": 0.5, "f": "010", "g": 0.0}


def test_folders_pipes_and_missing_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path) == ["1: this is a folder; give a file"]
    assert refusal(tmp_path / "pipe") == ["1: this is not a regular file; give a file"]
    assert refusal(tmp_path / "none.yaml") == ["1: there is no such file; check the path"]
    assert refusal(tmp_path / ("x" * 300))[0].startswith("1: can't be read: ")


FRAGMENTS = [
    *"{}[]:-'\"x|>%?@`,",
    "null",
    "true",
    "-1",
    "1e9",
    ".nan",
    "&a",
    "*a",
    "!!str",
    "!x",
    "<<:",
    "max_num_seqs",
]
EDITS = st.tuples(st.integers(0, len(SOUND)), st.integers(0, 8), st.sampled_from([*FRAGMENTS, "\n", "\t", "  ", "- "]))


@settings(max_examples=80, deadline=None)
@given(st.lists(EDITS, min_size=1, max_size=5))
def test_a_damaged_study_is_read_or_refused_and_nothing_else(edits: list[tuple[int, int, str]]) -> None:
    text = SOUND
    for start, length, fragment in edits:
        text = text[:start] + fragment + text[start + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), text)
        lines = _read_or_refused(path)
        assert all(re.match(rf"{re.escape(str(path))}:\d+: \S", line) for line in lines)


def _read_or_refused(path: Path) -> tuple[str, ...]:
    try:
        load_study(path)
    except StudyFileError as error:
        return error.lines
    return ()


def test_unknown_keys_inside_what_is_itself_refused(tmp_path: Path) -> None:
    """Found by the test above: both are told, and the one inside goes first when they are set aside."""
    told = refusal(
        write(tmp_path, changed("max_num_seqs: {int: [1, 64], log: true}", "max-seqs: {int: [1, 64], lg: 1}"))
    )
    assert [line.split(": ")[1] for line in told] == [
        "search_space.parameters.max-seqs",
        "search_space.parameters.max-seqs.lg",
    ]
