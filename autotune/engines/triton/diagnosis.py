"""Why a Triton ended: TensorRT-LLM's causes first, which it relays, then its own, by failures.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autotune.engines import failures
from autotune.engines.failures import Knowledge, LogReader, knowledge_of
from autotune.engines.lines import telling_lines
from autotune.engines.tensorrt_llm import diagnosis as trtllm
from autotune.engines.tensorrt_llm.logs import edges
from autotune.engines.tensorrt_llm.logs import split_head as trtllm_head
from autotune.records.trial import Failure, Phase

_HEAD = re.compile(r'(?P<letter>[IWEF])\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] "?')
_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}
_RELAYED = re.compile(r"^failed to load '\w+' version \d+: (?:Internal|Invalid argument): ")


def split_head(line: str) -> tuple[str, str, str]:
    """`E0117 09:50:01.977892 4096 model_lifecycle.cc:626] "text"` and TensorRT-LLM's lines, without their heads; of an
    error that Triton relays what follows the name of the model."""
    match = _HEAD.match(line)
    if match is None:
        return trtllm_head(line)
    text = line[match.end() :].removesuffix('"')
    return "[triton]", _LEVELS[match["letter"]], _RELAYED.sub("", text)


def _lines(log_text: str, counted: re.Pattern[str]) -> Iterator[str]:
    return telling_lines(log_text, counted, split_head)


READER = LogReader(
    package="autotune.engines.triton",
    lines=_lines,
    edges=edges,
    error=trtllm.READER.error,
)
_OF_TRTLLM = LogReader(package=trtllm.READER.package, lines=_lines, edges=edges, error=trtllm.READER.error)


def knowledge() -> Knowledge:
    """The rules of Triton itself."""
    return knowledge_of(READER.package)


def diagnose(exit_code: int | None, phase: Phase, log_text: str) -> Failure:
    """Classify the end of a Triton by its log, as `engines.failures.diagnose` does. Pure."""
    known = failures.known_cause(_OF_TRTLLM, phase, log_text) or failures.known_cause(READER, phase, log_text)
    return known or failures.diagnose(_OF_TRTLLM, exit_code, phase, log_text)


def known_cause(phase: Phase, log_text: str) -> Failure | None:
    """What a log tells of one that has not ended, None when it tells nothing that is known."""
    return trtllm.known_cause(phase, log_text) or failures.known_cause(READER, phase, log_text)
