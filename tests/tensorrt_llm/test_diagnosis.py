"""Deaths of TensorRT-LLM are classified by their first cause; what is not the candidate's fault is never learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.failures import Rule
from autotune.engines.tensorrt_llm.diagnosis import diagnose, knowledge, known_cause, too_short
from autotune.engines.tensorrt_llm.logs import edges, log_warnings, longest_sequence, resolved_settings
from autotune.records.trial import Fault, Outcome, Phase
from benchmarks.classification.cases import action_of

HEAD = "[12/20/2025-04:21:10] [TRT-LLM] [E] "
END = "RuntimeError: Executor worker returned error"
RULES = knowledge().rules + knowledge().signs
BOTH_SET = (
    "Both free_gpu_memory_fraction and max_tokens are set (to 0.8999999761581421 and 8224, respectively). "
    "The smaller value will be used."
)
SIGNATURES = yaml.safe_load(Path(__file__).with_name("signatures.yaml").read_text())
HEALTHY = Path(__file__).with_name("healthy.log").read_text()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_finds_its_own_examples_first(rule: Rule) -> None:
    assert rule.examples
    for example in rule.examples:
        log = f"{rule.example_log}\n{HEAD}{example}\n{END}"
        assert diagnose(1, Phase.LAUNCH, log).remedy == rule.remedy


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_only_the_candidates_own_fault_teaches(rule: Rule) -> None:
    if rule.fault is not Fault.CANDIDATE:
        assert not rule.outcome.teaches_infeasible
        assert not rule.under_load.teaches_infeasible
    assert rule.outcome.teaches_infeasible or rule.outcome is Outcome.UNKNOWN or rule.fault is not Fault.CANDIDATE


@pytest.mark.parametrize("seen", [row for row in SIGNATURES if row["action"] not in ("short", "hangs")], ids=str)
def test_known_signatures_lead_to_their_action(seen: dict[str, Any]) -> None:
    for log in (seen["log"], f"{HEALTHY}\n{seen['log']}\n{END}"):
        assert action_of(diagnose(1, Phase.LAUNCH, log)) == seen["action"]


def test_all_thirty_four_signatures_are_here() -> None:
    assert len(SIGNATURES) == 34


def test_the_cause_goes_before_the_word_that_memory_is_short() -> None:
    log = (
        f"{HEAD}{knowledge().signs[0].examples[0]}\n{HEAD}The following component could not be created: KV cache\n{END}"
    )
    failure = diagnose(1, Phase.LAUNCH, log)
    assert failure.cause.endswith("KV cache")
    assert "free_gpu_memory_fraction" in failure.remedy


def test_a_healthy_log_holds_no_cause() -> None:
    assert known_cause(Phase.LAUNCH, HEALTHY) is None
    assert log_warnings(HEALTHY) == (
        BOTH_SET,
        "Adjusted max_seq_len to 8224",
        "Adjusted max_seq_len to 86720",
    )


def test_of_the_two_kv_caches_the_last_counts() -> None:
    assert resolved_settings(HEALTHY) == {
        "kv_cache_config.tokens_per_block": 32,
        "kv_cache_config.free_gpu_memory_fraction": pytest.approx(0.9),
        "kv_cache_tokens": 86720,
        "longest_sequence": 86720,
        "max_num_tokens": 8192,
        "max_batch_size": 64,
    }
    assert edges(HEALTHY)["kv_cache_tokens"] == 86720
    assert edges(HEALTHY)["kv_available_bytes"] == pytest.approx(5.95 * 2**30)


def test_a_sequence_that_is_shortened_below_the_need_is_infeasible_with_its_edge() -> None:
    failure = too_short(100_000, HEALTHY)
    assert failure is not None
    assert (failure.outcome, failure.fault) == (Outcome.OOM_STARTUP, Fault.CANDIDATE)
    assert failure.edges["max_model_len_that_fits"] == 86720
    assert too_short(86_720, HEALTHY) is None
    assert too_short(None, HEALTHY) is None


def test_the_small_cache_that_only_measures_shortens_nothing() -> None:
    fits = "\n".join(line for line in HEALTHY.splitlines() if "86720" not in line or "max_num_requests" in line)
    assert "Adjusted max_seq_len to 8224" in fits
    assert longest_sequence(fits) == 86720
    assert too_short(50_000, fits) is None


def test_ranks_that_never_come_up_teach_nothing() -> None:
    [spawning] = [row["log"] for row in SIGNATURES if row["action"] == "hangs"]
    failure = known_cause(Phase.LAUNCH, f"TensorRT-LLM version: 1.2.0\n{spawning}\n")
    assert failure is not None
    assert failure.outcome is Outcome.UNKNOWN
    assert "NCCL_P2P_DISABLE" in failure.remedy


def test_memory_that_runs_out_under_load_is_told_apart() -> None:
    line = f"{HEAD}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert diagnose(None, Phase.LAUNCH, line).outcome is Outcome.OOM_STARTUP
    assert diagnose(None, Phase.LOAD, line).outcome is Outcome.OOM_LOAD


def test_a_warning_that_quotes_an_error_is_no_cause() -> None:
    warned = "[12/20/2025-04:21:10] [TRT-LLM] [W] earlier: CUDA out of memory"
    quoted = f"{warned}\n[TensorRT-LLM][WARNING] CUDA error: out of memory"
    assert known_cause(Phase.LAUNCH, quoted) is None
