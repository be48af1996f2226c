"""Natural text, and the served tokenizer."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.load import build_level
from autotune.load.english import sentences
from autotune.load.tokenizer import FastTokenizer, Tokenizer, exact_text, find_tokenizer
from autotune.records.spec import FixedLength, LoadSpec, PrefixSpec, UniformLength, WorkloadSpec

tokenizers = pytest.importorskip("tokenizers")

CLOSED = LoadSpec(concurrency=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level BPE that puts <s> first, as Llama's does."""
    folder = tmp_path_factory.mktemp("model")
    made = tokenizers.ByteLevelBPETokenizer()
    text = sentences(np.random.default_rng(1), 20_000)
    made.train_from_iterator([text], vocab_size=600, special_tokens=["<s>"], show_progress=False)
    made._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made.save(str(folder / "tokenizer.json"))
    return folder


def natural(prefix: PrefixSpec | None = None) -> WorkloadSpec:
    return WorkloadSpec(
        input_tokens=UniformLength(low=30, high=90),
        output_tokens=FixedLength(tokens=4),
        text="natural",
        prefix=prefix,
    )


def test_natural_prompts_are_sentences_of_exact_lengths(model: Path) -> None:
    plan = build_level(natural(PrefixSpec(tokens=12, groups=2)), CLOSED, seed=1, model=str(model))
    tokenizer = find_tokenizer(str(model))
    requests = plan.requests[:60]
    assert all(len(request.prompt_ids or ()) == request.prompt_tokens for request in requests)
    assert {request.prompt_tokens for request in requests} <= set(range(30, 91))
    assert len({request.prompt_ids for request in requests}) == 60
    assert len({(request.prompt_ids or ())[:12] for request in requests}) == 2
    words = re.findall("[a-z]+", tokenizer.decode(list(requests[0].prompt_ids or ())[12:]).lower())
    assert len(set(words[1:-1]) & set(sentences(np.random.default_rng(2), 50_000).lower().split())) > 5
    again = build_level(natural(PrefixSpec(tokens=12, groups=2)), CLOSED, seed=1, model=str(model))
    assert again.requests[3] == plan.requests[3]


def test_sentences_are_grammatical_as_far_as_can_be_told() -> None:
    text = sentences(np.random.default_rng(3), 100_000)
    assert all(re.fullmatch(r"[A-Z][a-z ,;A-Z]+", sentence) for sentence in re.split(r"[.?] ?", text)[:-1])
    assert not re.search(r"\b[Aa] [aeiou]", text)
    assert not re.search(r"  |\{|\}", text)


def test_texts_come_back_as_exactly_so_many_tokens(model: Path) -> None:
    tokenizer = find_tokenizer(str(model))
    rng = np.random.default_rng(4)
    for count in (1, 2, 5, 64, 300):
        ids = tuple(rng.integers(1, 600, size=count).tolist())  # random ids: decoding joins them otherwise
        assert len(tokenizer.encode(exact_text(tokenizer, ids), special=True)) == count


class Squeezing:
    """Encodes what it decoded as fewer tokens than there were, as tokenizers do that join spaces."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [1] * (len(text.split()) - text.count("x") + special)

    def decode(self, ids: list[int]) -> str:
        return " ".join("x" if each % 3 == 0 else "w" for each in ids)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80))
def test_any_drift_of_lengths_is_made_good(ids: list[int]) -> None:
    tokenizer: Tokenizer = Squeezing()
    assert len(tokenizer.encode(exact_text(tokenizer, tuple(ids)), special=True)) == len(ids)


def test_a_tokenizer_is_found_in_the_hub_s_cache(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--own--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    assert find_tokenizer("own/model").encode("The") == find_tokenizer(str(model)).encode("The")


def test_natural_text_without_a_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"no tokenizer\.json of not/here on this machine"):
        build_level(natural(), CLOSED, seed=1, model="not/here")
    with pytest.raises(InputError, match="needs the model's tokenizer"):
        build_level(natural(), CLOSED, seed=1)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="is no tokenizer"):
        FastTokenizer(tmp_path / "tokenizer.json")
