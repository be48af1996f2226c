"""Why a TensorRT-LLM ended, or serves no more: the first line of its log that is a cause, by failures.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autotune.engines import failures
from autotune.engines.failures import Knowledge, LogReader, knowledge_of
from autotune.engines.lines import telling_lines
from autotune.engines.tensorrt_llm.logs import edges, longest_sequence, split_head
from autotune.records.trial import Failure, Fault, Outcome, Phase

_SPAWNING = re.compile(r"start MpiSession with \d+ workers|using MpiPoolSession to spawn MPI processes", re.IGNORECASE)


def _lines(log_text: str, counted: re.Pattern[str]) -> Iterator[str]:
    return telling_lines(log_text, counted, split_head)


READER = LogReader(
    package="autotune.engines.tensorrt_llm",
    lines=_lines,
    edges=edges,
    error=re.compile(r"^[\w.]*(?:Error|Exception|Interrupt)\b(?::|$)|^Value error, |^Assertion failed: "),
)


def knowledge() -> Knowledge:
    """The rules of TensorRT-LLM."""
    return knowledge_of(READER.package)


def diagnose(exit_code: int | None, phase: Phase, log_text: str) -> Failure:
    """Classify the end of a TensorRT-LLM by its log, as `engines.failures.diagnose` does. Pure."""
    return failures.diagnose(READER, exit_code, phase, log_text)


def known_cause(phase: Phase, log_text: str) -> Failure | None:
    """What a log tells of an engine that has not ended, None when it tells nothing that is known."""
    return failures.known_cause(READER, phase, log_text) or _hanging(phase, log_text)


def _hanging(phase: Phase, log_text: str) -> Failure | None:
    """Ranks that never came up: the log ends with their spawning. It may be the machine, so nothing is learned."""
    last = next((line for line in reversed(log_text.splitlines()) if line.strip()), "")
    if not _SPAWNING.search(last):
        return None
    return Failure(
        outcome=Outcome.UNKNOWN,
        fault=Fault.CANDIDATE,
        phase=phase,
        cause=f"the ranks did not come up; last line: {last.strip()}",
        remedy="GPUs that can't reach each other hang here: try NCCL_P2P_DISABLE=1 in engine.env",
    )


def too_short(need_tokens: int | None, log_text: str) -> Failure | None:
    """Why an engine that has started can't hold the workload: it shortened its sequences to what its KV cache holds.

    `need_tokens`: the longest prompt plus answer; None where nobody knows.
    """
    holds = longest_sequence(log_text)
    if holds is None or need_tokens is None or holds >= need_tokens:
        return None
    return Failure(
        outcome=Outcome.OOM_STARTUP,
        fault=Fault.CANDIDATE,
        phase=Phase.LAUNCH,
        cause=f"Adjusted max_seq_len to {holds}: the KV cache can't hold one request of {need_tokens} tokens",
        remedy="more memory for the KV cache: a higher kv_cache_config.free_gpu_memory_fraction, a lower "
        "max_batch_size or max_num_tokens, an FP8 KV cache, more GPUs",
        edges=edges(log_text),
    )
