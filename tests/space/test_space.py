from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.records.spec import Choice, FloatRange, IntRange, StudySpec
from autotune.records.trial import Candidate, Role, fingerprint
from autotune.space import RuledOut, Space, build_space
from autotune.space.expression import parse
from tests.space.specs import ON_OFF, parameter, study

SEQS = parameter("max_num_seqs", IntRange(low=1, high=64, log=True))
TOKENS = parameter("max_num_batched_tokens", IntRange(low=16, high=2048, log=True))
CHUNKED = parameter("enable_chunked_prefill", ON_OFF)
THRESHOLD = parameter("long_prefill_token_threshold", Choice(values=(0, 64, 256)), "enable_chunked_prefill")
TP = parameter("tensor_parallel_size", Choice(values=(1, 2, 4, 8)))

FULL = study(
    THRESHOLD, SEQS, TOKENS, CHUNKED, TP,
    parameter("gpu_memory_utilization", FloatRange(low=0.8, high=0.95, step=0.01)),
    derived={"max_model_len": "longest_request_tokens", "max_cudagraph_capture_size": "max_num_seqs"},
    rules=(
        "tensor_parallel_size <= gpus",
        "max_num_batched_tokens >= max_num_seqs",
        "enable_chunked_prefill or max_num_batched_tokens >= max_model_len",
        "long_prefill_token_threshold <= max_num_batched_tokens",
    ),
)  # fmt: skip


def _proposals(space: Space, seed: int, count: int) -> list[Candidate | RuledOut]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [space.suggest(search.ask()) for _ in range(count)]


def _names(space: Space) -> list[str]:
    return [dimension.name for dimension in space.dimensions]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31 - 1), st.sampled_from([1, 2, 8]))
def test_candidates_pass_every_rule_and_are_reproduced_by_the_seed(seed: int, gpus: int) -> None:
    space = build_space(FULL, gpus=gpus)
    proposals = _proposals(space, seed, 12)
    assert proposals == _proposals(space, seed, 12)
    for proposal in proposals:
        assert proposal.params.keys() <= space.distributions().keys()
        if isinstance(proposal, RuledOut):
            assert proposal.rule in FULL.search_space.rules
            continue
        env = {**proposal.args, "gpus": gpus}
        assert all(parse(rule).holds(env) for rule in FULL.search_space.rules)
        assert proposal.args["max_model_len"] == 160
        assert proposal.args["max_cudagraph_capture_size"] == proposal.args["max_num_seqs"]
        assert proposal.role is Role.SEARCH
        assert proposal.fingerprint == fingerprint("vllm", "m", proposal.args)
        assert space.in_domain(proposal.args) == proposal.params


def test_distributions_contain_what_is_suggested_and_what_is_not_active_is_not_asked() -> None:
    space = build_space(FULL, gpus=4)
    for proposal in _proposals(space, 3, 60):
        for name, value in proposal.params.items():
            distribution = space.distributions()[name]
            assert distribution._contains(distribution.to_internal_repr(value))
        asked = "long_prefill_token_threshold" in proposal.params
        assert asked is proposal.params["enable_chunked_prefill"]


def test_conditions_come_before_what_they_govern() -> None:
    space = build_space(FULL, gpus=4)
    names = _names(space)
    assert names.index("enable_chunked_prefill") < names.index("long_prefill_token_threshold")


def test_floats_with_a_step_are_written_as_people_write_them() -> None:
    values = {proposal.params["gpu_memory_utilization"] for proposal in _proposals(build_space(FULL, gpus=1), 0, 80)}
    assert values <= {round(0.8 + step / 100, 2) for step in range(16)}
    assert len(values) > 8


def test_a_rule_that_is_broken_is_told_with_the_values() -> None:
    space = build_space(study(SEQS, TOKENS, rules=("max_num_batched_tokens >= 100 * max_num_seqs",)), gpus=0)
    ruled_out = next(proposal for proposal in _proposals(space, 1, 50) if isinstance(proposal, RuledOut))
    seqs, tokens = ruled_out.params["max_num_seqs"], ruled_out.params["max_num_batched_tokens"]
    assert ruled_out.rule == "max_num_batched_tokens >= 100 * max_num_seqs"
    assert ruled_out.reason == (
        "`max_num_batched_tokens >= 100 * max_num_seqs` does not hold with "
        f"max_num_batched_tokens {tokens}, max_num_seqs {seqs}"
    )


def test_a_rule_that_fails_for_some_values_rules_them_out() -> None:
    space = build_space(study(parameter("x", IntRange(low=0, high=1)), SEQS, rules=("max_num_seqs // x >= 0",)), gpus=0)
    for proposal in _proposals(space, 0, 20):
        assert isinstance(proposal, RuledOut) is (proposal.params["x"] == 0)
        if isinstance(proposal, RuledOut):
            assert "division" in proposal.reason


# --- what is taken out before the search ----------------------------------------------------------------------------


def test_one_value_left_makes_a_constant() -> None:
    space = build_space(FULL, gpus=1)
    assert "tensor_parallel_size" not in space.distributions()
    assert "tensor_parallel_size is not searched: 1 is the only value left" in space.notes
    candidates = [proposal for proposal in _proposals(space, 0, 20) if isinstance(proposal, Candidate)]
    assert all(candidate.args["tensor_parallel_size"] == 1 for candidate in candidates)
    assert all("tensor_parallel_size" not in candidate.params for candidate in candidates)


@pytest.mark.parametrize(
    ("rule", "low", "high"),
    [
        ("max_num_seqs <= 9.5", 1, 9),
        ("max_num_seqs < 9", 1, 8),
        ("3 < max_num_seqs", 4, 64),
        ("2.5 < max_num_seqs < 9.5", 3, 9),
        ("max_num_seqs >= 4 and max_num_seqs <= longest_output_tokens", 4, 32),
        ("max_num_seqs <= 1000", 1, 64),
        ("max_num_seqs % 4 == 0", 1, 64),
        ("max_num_seqs <= 4 or gpus == 2", 1, 64),
    ],
)
def test_rules_over_one_parameter_narrow_its_range(rule: str, low: int, high: int) -> None:
    distribution = build_space(study(SEQS, rules=(rule,)), gpus=2).distributions()["max_num_seqs"]
    assert isinstance(distribution, optuna.distributions.IntDistribution)
    assert (distribution.low, distribution.high) == (low, high)


@pytest.mark.parametrize(
    ("domain", "rule", "low", "high"),
    [
        (IntRange(low=1, high=30, step=4), "x >= 0", 1, 29),
        (IntRange(low=1, high=30, step=4), "6 < x < 25", 9, 21),
        (FloatRange(low=0.8, high=0.955, step=0.01), "x >= 0", 0.8, 0.95),
        (FloatRange(low=0.8, high=0.95, step=0.01), "x <= 0.9", 0.8, 0.9),
        (FloatRange(low=0.8, high=0.95, step=0.05), "x > 0.81", 0.85, 0.95),
        (FloatRange(low=0.1, high=1.0), "x < 0.5", 0.1, 0.5),
    ],
)
def test_ranges_stay_on_their_grid(domain: IntRange | FloatRange, rule: str, low: float, high: float) -> None:
    distribution: Any = build_space(study(parameter("x", domain), rules=(rule,)), gpus=0).distributions()["x"]
    assert (distribution.low, distribution.high) == (low, high)


def test_constants_narrow_further() -> None:
    spec = study(
        parameter("a", Choice(values=(1, 2, 4))),
        parameter("b", IntRange(low=1, high=64)),
        rules=("b <= 2 * a", "a <= gpus"),
    )
    distribution: Any = build_space(spec, gpus=1).distributions()["b"]
    assert (distribution.low, distribution.high) == (1, 2)


def test_what_the_user_fixes_is_not_searched_and_wins_over_derived_values() -> None:
    spec = study(
        SEQS, TOKENS, parameter("kv.dtype", Choice(values=("auto", "fp8"))),
        derived={"max_model_len": "longest_request_tokens"},
        args={"max_num_seqs": 8, "max_model_len": 4096, "kv": {"dtype": "fp8", "other": 1}},
        rules=("max_num_batched_tokens >= max_model_len // 4 * 1",),
    )  # fmt: skip
    space = build_space(spec, gpus=0)
    assert list(space.distributions()) == ["max_num_batched_tokens"]
    assert "max_num_seqs is not searched: the study fixes it" in space.notes
    (proposal,) = _proposals(space, 0, 1)
    assert isinstance(proposal, Candidate)
    assert proposal.args == {**spec.engine.args, **proposal.params}
    assert int(proposal.params["max_num_batched_tokens"]) >= 1024


def test_dotted_parameters_become_nested_arguments_beside_fixed_ones() -> None:
    spec = study(parameter("kv.dtype", Choice(values=("a", "b"))), args={"kv": {"other": 1}})
    (proposal,) = _proposals(build_space(spec, gpus=0), 0, 1)
    assert isinstance(proposal, Candidate)
    assert proposal.args == {"kv": {"other": 1, "dtype": proposal.params["kv.dtype"]}}
    assert spec.engine.args == {"kv": {"other": 1}}


def test_what_may_change_the_output_needs_the_studys_word() -> None:
    quantized = parameter("kv_cache_dtype", Choice(values=("auto", "fp8")), changes_output=True)
    dependent = parameter("x", ON_OFF, "kv_cache_dtype == 'fp8'")
    dropped = build_space(study(SEQS, quantized, dependent), gpus=0)
    assert _names(dropped) == ["max_num_seqs"]
    assert any(note.startswith("kv_cache_dtype is not searched: it may change") for note in dropped.notes)
    assert set(_names(build_space(study(SEQS, quantized, dependent, quality="unchecked"), gpus=0))) == {
        "max_num_seqs", "kv_cache_dtype", "x",
    }  # fmt: skip


@pytest.mark.parametrize(("fixed", "searched"), [(True, True), (False, False)])
def test_a_condition_that_is_known_is_settled_before_the_search(fixed: bool, searched: bool) -> None:
    space = build_space(study(THRESHOLD, CHUNKED, args={"enable_chunked_prefill": fixed}), gpus=0)
    assert ("long_prefill_token_threshold" in space.distributions()) is searched


def test_a_constant_below_a_condition_is_given_only_where_it_is_active() -> None:
    only = parameter("only", Choice(values=(7,)), "enable_chunked_prefill")
    for proposal in _proposals(build_space(study(CHUNKED, only), gpus=0), 0, 20):
        assert isinstance(proposal, Candidate)
        assert ("only" in proposal.args) is proposal.params["enable_chunked_prefill"]


def test_lengths_of_a_dataset_are_unknown_so_what_needs_them_is_left_out() -> None:
    spec = study(
        TOKENS,
        derived={"max_model_len": "longest_request_tokens"},
        rules=("max_num_batched_tokens >= 10 * longest_input_tokens",),
        dataset="/rows.jsonl",
    )
    space = build_space(spec, gpus=0)
    assert all(isinstance(proposal, Candidate) for proposal in _proposals(space, 0, 20))
    assert all(
        "max_model_len" not in proposal.args for proposal in _proposals(space, 0, 5) if isinstance(proposal, Candidate)
    )


def test_derived_numbers_are_whole_where_they_can_be() -> None:
    space = build_space(study(SEQS, derived={"x": "longest_request_tokens / 2", "y": "max_num_seqs / 1"}), gpus=0)
    (proposal,) = _proposals(space, 0, 1)
    assert isinstance(proposal, Candidate)
    assert repr(proposal.args["x"]) == "80"
    assert isinstance(proposal.args["y"], int)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (study(TP, rules=("tensor_parallel_size <= gpus",)), "no value of tensor_parallel_size obeys"),
        (study(SEQS, rules=("max_num_seqs > 64",)), "no value of max_num_seqs obeys `max_num_seqs > 64`"),
        (
            study(SEQS, rules=("max_model_len >= longest_request_tokens",), args={"max_model_len": 100}),
            "does not hold with longest_request_tokens 160, max_model_len 100",
        ),
        (study(parameter("a", ON_OFF, "b"), parameter("b", ON_OFF, "a")), "conditions go in a circle"),
        (study(SEQS, rules=("max_num_seqs < 'x'",), args={"max_num_seqs": 3}), "can't be evaluated"),
        (study(SEQS, rules=("nonsense(",)), "is not an expression"),
    ],
)
def test_a_space_without_candidates_is_refused(spec: StudySpec, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        build_space(spec, gpus=0)


# --- the reference --------------------------------------------------------------------------------------------------


def test_without_an_incumbent_the_reference_is_the_engine_s_defaults() -> None:
    space = build_space(study(SEQS, derived={"max_model_len": "longest_request_tokens"}, args={"dtype": "x"}), gpus=0)
    reference = space.reference(None)
    assert reference == Candidate(
        params={}, args={"dtype": "x"}, role=Role.REFERENCE, fingerprint=fingerprint("vllm", "m", {"dtype": "x"})
    )


def test_in_place_of_a_reference_that_does_not_fit_come_the_workloads_length_then_more_gpus() -> None:
    rules = ("tensor_parallel_size <= gpus",)
    spec = study(SEQS, TP, derived={"max_model_len": "longest_request_tokens"}, args={"dtype": "x"}, rules=rules)
    found = [candidate.args for candidate in build_space(spec, gpus=2).references({"max_model_len": 9000})]
    assert found == [
        {"dtype": "x", "max_model_len": 9000},
        {"dtype": "x", "max_model_len": 160},
        {"dtype": "x", "max_model_len": 160, "tensor_parallel_size": 2},
    ]
    narrow = build_space(study(SEQS, args={"dtype": "x"}), gpus=1)
    assert [candidate.args for candidate in narrow.references(None)] == [{"dtype": "x"}]


def test_the_incumbent_wins_over_fixed_arguments_and_tells_what_the_space_knows() -> None:
    space = build_space(study(SEQS, TOKENS, args={"dtype": "x", "load_format": "dummy"}), gpus=0)
    reference = space.reference({"dtype": "y", "max_num_seqs": 32, "max_num_batched_tokens": 5, "other": 1})
    assert reference.args == {
        "dtype": "y", "load_format": "dummy", "max_num_seqs": 32, "max_num_batched_tokens": 5, "other": 1,
    }  # fmt: skip
    assert reference.params == {"max_num_seqs": 32}


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.9}),
        ({"gpu_memory_utilization": 0.905}, {}),
        ({"gpu_memory_utilization": 0.99}, {}),
        ({"max_num_seqs": 8.0}, {"max_num_seqs": 8}),
        ({"max_num_seqs": 8.5}, {}),
        ({"max_num_seqs": True}, {}),
        ({"max_num_seqs": "8"}, {}),
        ({"enable_chunked_prefill": 1}, {}),
        ({"long_prefill_token_threshold": 64}, {"long_prefill_token_threshold": 64}),
        ({"long_prefill_token_threshold": 65}, {}),
        ({"long_prefill_token_threshold": 64, "enable_chunked_prefill": False}, {"enable_chunked_prefill": False}),
        ({"unknown": 3}, {}),
    ],
)
def test_only_values_that_the_space_has_are_told_to_optuna(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    found = build_space(FULL, gpus=4).in_domain(given)
    assert found == known
    assert [type(value) for value in found.values()] == [type(value) for value in known.values()]


def test_samples_without_optuna_obey_the_same_laws() -> None:
    space = build_space(FULL, gpus=4)
    drawn = [space.sample(random.Random(seed), ends_ratio=0.3) for seed in range(60)]
    assert drawn == [space.sample(random.Random(seed), ends_ratio=0.3) for seed in range(60)]
    for proposal in drawn:
        if isinstance(proposal, Candidate):
            assert space.in_domain(proposal.args) == proposal.params
    assert any(isinstance(proposal, Candidate) for proposal in drawn)
