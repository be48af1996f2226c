"""Whether an engine runs with what it was asked for: its arguments against what it said it resolved.

An engine may accept a flag and drop it (vLLM's `--config` file loses `enable-prefix-caching: false`), or overrule it by
its environment (VLLM_CPU_KVCACHE_SPACE). Figures of such a trial are another configuration's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any

from autotune.records.spec import Args
from autotune.trial.differences import flatten

_ENUM = re.compile(r"^(?:torch|[A-Z]\w+)\.(?=\w+$)")  # torch.bfloat16, LoadFormat.AUTO

LEFT_TO_THE_ENGINE = frozenset({"auto", "none", "-1", ""})
"""Values that ask the engine to choose: whatever it resolved is right."""

SPELLINGS: Mapping[str, str] = {
    "half": "float16",
    "float": "float32",
    "fp8": "fp8_e4m3",  # vLLM's own short form of the KV cache's dtype
    "gptq": "gptq_marlin",  # taken instead where the device has the kernel: the same weights
    "awq": "awq_marlin",
    "auto_gptq": "gptq_marlin",
    "auto_awq": "awq_marlin",
}
"""What engines resolve a value to without changing what it means."""

TOLD_DIFFERENTLY = frozenset({"data_parallel_size"})
"""Settings that each replica tells of itself: the log of one of two says 1 (vLLM, models without experts)."""

SUFFIXES: Mapping[str, float] = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "K": 2**10, "M": 2**20, "G": 2**30}
"""`8k` is 8000 and `8K` is 8192, as vLLM reads whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Arguments compared, by name: `differing` with the reason in words, `untold` what the engine is silent on."""

    confirmed: tuple[str, ...]
    differing: Mapping[str, str]
    untold: tuple[str, ...]


def applied(asked: Args, resolved: Mapping[str, Any]) -> Applied:
    """Compare what an engine was asked for with what it resolved; names may be dotted."""
    told = flatten(resolved)
    confirmed: list[str] = []
    differing: dict[str, str] = {}
    untold: list[str] = []
    for name, value in flatten(asked).items():
        if value is None:
            continue
        if not _comparable(name, value, told.get(name)):
            untold.append(name)
        elif _means(value, told[name]):
            confirmed.append(name)
        else:
            differing[name] = f"asked {name}={_shown(value)}, the engine resolved {_shown(told[name])}"
    return Applied(confirmed=tuple(confirmed), differing=differing, untold=tuple(untold))


def _comparable(name: str, asked: Any, resolved: Any) -> bool:  # noqa: ANN401 - an argument may be anything
    """Whether two values say anything of each other: a number says nothing of an enumeration's name."""
    if resolved is None or name in TOLD_DIFFERENTLY or isinstance(resolved, Mapping):
        return False
    is_number = isinstance(asked, int | float) and not isinstance(asked, bool)
    return not is_number or isinstance(resolved, bool) or _number(resolved) is not None


def _means(asked: Any, resolved: Any) -> bool:  # noqa: ANN401
    """Whether `resolved` is what `asked` asks for."""
    if isinstance(asked, list | tuple):
        return _same_list(asked, resolved if isinstance(resolved, list | tuple) else [resolved])
    if str(asked).lower() in LEFT_TO_THE_ENGINE:
        return True
    if isinstance(asked, bool) or isinstance(resolved, bool):
        return str(asked).lower() == str(resolved).lower()
    numbers = _number(asked), _number(resolved)
    if numbers[0] is not None and numbers[1] is not None:
        return isclose(numbers[0], numbers[1], rel_tol=1e-6)
    return _canonical(asked) == _canonical(resolved)


def _same_list(asked: list[Any] | tuple[Any, ...], resolved: list[Any] | tuple[Any, ...]) -> bool:
    """An engine sorts a list, drops what it holds twice, and shows the first of several names."""
    ours, theirs = ({_canonical(item) for item in items} for items in (asked, resolved))
    return bool(theirs) and theirs <= ours


def _number(value: Any) -> float | None:  # noqa: ANN401
    text = str(value).strip()
    factor = SUFFIXES.get(text[-1:], 1)
    try:
        return float(text.removesuffix(text[-1:]) if factor != 1 else text) * factor
    except ValueError:
        return None


def _canonical(value: Any) -> str:  # noqa: ANN401
    text = _ENUM.sub("", str(value)).lower()
    return SPELLINGS.get(text, text)


def _shown(value: Any) -> str:  # noqa: ANN401
    return value if isinstance(value, str) else json.dumps(value, default=str)
