"""The prompt set: the shipped one, the user's file in either form, and files that can't be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.quality import read_prompts
from autotune.quality.prompts import FEWEST

LINES = [f"This is line number {n}, which goes on" for n in range(FEWEST)]


def test_the_shipped_prompts_are_many_and_short_enough_for_small_contexts() -> None:
    found = read_prompts(None)
    assert len(found) >= 3 * FEWEST
    assert all(40 < len(prompt) < 400 for prompt in found)
    assert any("\n    return" in prompt for prompt in found), "code keeps its lines"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.txt", "\n".join(LINES)),
        ("lines.txt", "\r\n".join(LINES) + "\r\n"),
        ("paragraphs.txt", "\n\n\n".join(LINES)),
        ("doubled.txt", "\n".join(LINES * 2)),
        ("rows.jsonl", "\n".join(f'{{"prompt": "{line}"}}' for line in LINES)),
        ("rows.jsonl", "\n\n".join(f'{{"text": "{line}", "id": 3}}' for line in LINES)),
    ],
)
def test_a_file_of_the_users_own(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_prompts(str(tmp_path / name)) == tuple(LINES)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("few.txt", b"one\ntwo\n", "2 prompts are too few, 8 is the least"),
        ("empty.txt", b"", "0 prompts are too few"),
        ("latin.txt", "é".encode("latin-1"), "it is not UTF-8"),
        ("broken.jsonl", b'{"prompt": "a"}\n{"prompt": \n', "broken.jsonl:2: not JSON"),
        ("other.jsonl", b'{"question": "a"}\n', "other.jsonl:1: no text under `prompt` or `text`"),
        ("list.jsonl", b"[1]\n", "list.jsonl:1: no text"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        read_prompts(str(tmp_path / name))
    assert said in error.value.message
    assert error.value.hint


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_prompts(str(tmp_path / "nowhere.txt"))
