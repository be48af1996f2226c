"""Why a vLLM ended: the first line of its log that is a cause, by the rules of failures.yaml."""

from __future__ import annotations

import re

from autotune.engines import failures
from autotune.engines.failures import Knowledge, LogReader, Rule, knowledge_of
from autotune.engines.lines import telling_lines
from autotune.engines.vllm.edges import edges
from autotune.records.trial import Failure, Phase

__all__ = ["Knowledge", "Rule", "diagnose", "knowledge", "known_cause"]

READER = LogReader(
    package="autotune.engines.vllm",
    lines=telling_lines,
    edges=edges,
    error=re.compile(
        r"^[\w.]*(?:Error|Exception|Interrupt|NotSupported|OfflineModeIsEnabled)\b(?::|$)"  # a traceback's last line
        r"|^Value error, |: error: ",
    ),
)


def knowledge() -> Knowledge:
    """The rules of vLLM."""
    return knowledge_of(READER.package)


def diagnose(exit_code: int | None, phase: Phase, log_text: str) -> Failure:
    """Classify the end of a vLLM by its log, as `engines.failures.diagnose` does. Pure."""
    return failures.diagnose(READER, exit_code, phase, log_text)


def known_cause(phase: Phase, log_text: str) -> Failure | None:
    """What a log tells of a vLLM that has not ended, None when no rule knows a line of it."""
    return failures.known_cause(READER, phase, log_text)
