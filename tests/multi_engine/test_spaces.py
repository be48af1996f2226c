"""Two spaces as one: conditional under the engine, no clash of names or distributions, and back again."""

from __future__ import annotations

import random
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.records.spec import ENGINE
from autotune.records.trial import Candidate
from autotune.space import EngineSpaces, build_spaces
from tests.multi_engine.studies import SPACE, entry, study


def spaces() -> EngineSpaces:
    found = build_spaces(study(), gpus=1)
    assert isinstance(found, EngineSpaces)
    return found


class Drawn:
    """A trial that draws at random and remembers what it was asked for."""

    def __init__(self, seed: int) -> None:
        self.rng, self.params = random.Random(seed), dict[str, Any]()

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        return self.params.setdefault(name, self.rng.choice(list(choices)))

    def suggest_int(self, name: str, low: int, high: int, **_: Any) -> int:
        return int(self.params.setdefault(name, self.rng.randint(low, high)))


@given(st.integers(0, 10_000))
def test_a_candidate_has_the_parameters_of_its_engine_alone_under_the_names_that_optuna_has(seed: int) -> None:
    trial = Drawn(seed)
    candidate = spaces().suggest(trial)  # type: ignore[arg-type]
    assert isinstance(candidate, Candidate)
    engine = candidate.params[ENGINE]
    assert candidate.engine == engine
    assert candidate.params == trial.params
    assert all(name == ENGINE or name.startswith(f"{engine}.") for name in candidate.params)
    assert not any(name.startswith(f"{engine}.") for name in candidate.args)


@given(st.integers(0, 10_000))
def test_what_was_launched_is_told_to_optuna_as_what_was_proposed(seed: int) -> None:
    joined = spaces()
    candidate = joined.suggest(Drawn(seed))  # type: ignore[arg-type]
    assert isinstance(candidate, Candidate)
    assert joined.in_domain({**candidate.args, **candidate.params}) == candidate.params


def test_a_parameter_that_both_have_keeps_a_distribution_for_each() -> None:
    known = spaces().distributions()
    assert set(known) == {
        "engine",
        "a.max_num_seqs",
        "a.enable_prefix_caching",
        "a.block_size",
        "b.max_num_seqs",
        "b.kv_cache_config.dtype",
    }
    assert known["a.max_num_seqs"] != known["b.max_num_seqs"]


def test_what_an_engine_suggests_is_taken_to_the_ends_of_its_own_ranges() -> None:
    near = spaces().nearest({ENGINE: "b", "max_num_seqs": 999, "kv_cache_config": {"dtype": "fp8"}})
    assert near == {ENGINE: "b", "b.max_num_seqs": 4, "b.kv_cache_config.dtype": "fp8"}


def test_two_engines_of_one_kind_are_never_taken_for_each_other() -> None:
    """Two versions of vLLM, say: the same arguments are another launch."""
    joined = build_spaces(study(entry("old"), entry("new", SPACE)), gpus=1)
    assert isinstance(joined, EngineSpaces)
    old, new = (space.reference(None) for space in joined.spaces.values())
    assert old.args == new.args
    assert old.fingerprint != new.fingerprint


@pytest.mark.parametrize("sampler", [optuna.samplers.TPESampler(seed=1), optuna.samplers.RandomSampler(seed=1)])
def test_optuna_takes_the_conditional_space_however_it_samples(sampler: optuna.samplers.BaseSampler) -> None:
    joined, tuner = spaces(), optuna.create_study(sampler=sampler)
    for value in range(25):
        trial = tuner.ask()
        assert isinstance(joined.suggest(trial), Candidate)
        tuner.tell(trial, float(value % 7))
    assert {trial.params[ENGINE] for trial in tuner.trials} == {"a", "b"}
