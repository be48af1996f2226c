"""The lines of an engine's log that can tell a cause of death: heads taken off, chatter and frames left out.

Several processes write to one log, each line with its own head: `(Worker_TP1 pid=34) ERROR 11-30 10:43 [a.py:1] text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_HEAD = re.compile(
    r"\([^()]*\bpid=\d+[^()]*\) ?"  # a process, also of Ray
    r"|\[rank ?\d+\]: ?"  # torchrun
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-][\d:]+)? ?(?:std(?:out|err) [FP] )?"  # a container runtime
    r"|\[\d{4}-\d\d-\d\dT[\d:.]+Z\] ?"  # a build server
    r"|[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ \S+\[\d+\]: ?"  # journald
    r"|[\w.-]+ +\| ?"  # docker compose
    r"|\s+\| ?(?=[\w ]+)"  # an exception group
)
_LEVEL = re.compile(
    r"(?:- [\w.]+ - )?\[?(DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b\]?:?(?: -)? *"
    r"(?:\d\d-\d\d [\d:.]+ ?)?(?:\[?[\w./-]+:\d+\] ?)?"
)
_CHATTER = re.compile(r"\[?[IWD]\d{4} [\d:.]+ |.{0,80}\bNCCL INFO\b|.{0,200}\w*Warning: ")
_FRAMES_BEGIN = re.compile(
    r"[\s+]*(?:\w+ )*Traceback \(most recent call last\):"
    r"|\s+File \".*\", line \d+"  # where the log's beginning is cut off
    r"|\s+(?:raise|return|assert|await) "
)
QUIET = frozenset({"DEBUG", "INFO", "WARN", "WARNING"})


SplitHead = Callable[[str], tuple[str, str, str]]
"""A line to its heads (process, rank), its level, and its text with its indentation; "" for what it doesn't have."""


def telling_lines(log_text: str, counted: re.Pattern[str], split: SplitHead | None = None) -> Iterator[str]:
    """Each distinct line that may tell a cause, in order, without its head. A quiet line counts if it has `counted`.

    `split` takes the heads of an engine's own form off; default: `split_head`.
    """
    seen: set[str] = set()
    in_frames: set[str] = set()
    for line in log_text.splitlines():
        writer, level, text = (split or split_head)(line)
        if level in QUIET or _CHATTER.match(text):
            if not counted.search(text):
                continue
        elif _is_frame(writer, text, in_frames):
            continue
        if (stripped := text.strip()) and stripped not in seen:
            seen.add(stripped)
            yield stripped


def split_head(line: str) -> tuple[str, str, str]:
    """(heads of process and rank, level, text with its indentation); "" for what the line doesn't have."""
    text = _COLOURS.sub("", line)
    writer, level = "", ""
    while match := _HEAD.match(text):
        writer += match.group()
        text = text[match.end() :]
    if match := _LEVEL.match(text):
        level, text = match.group(1), text[match.end() :]
    return writer, level, text


def _is_frame(writer: str, text: str, in_frames: set[str]) -> bool:
    """Whether a line is a traceback's frame or source; a writer's traceback ends at its line that is not indented."""
    if _FRAMES_BEGIN.match(text):
        in_frames.add(writer)
        return True
    if writer in in_frames and (not text or text[0].isspace()):
        return True
    in_frames.discard(writer)
    return False
