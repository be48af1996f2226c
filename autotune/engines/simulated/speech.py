"""How likely the stand-in calls its own words, and what a damaged model would make of that. Nothing is computed: every
figure is a hash of the tokens before it, so that equal launches answer equally, alone and in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any
from zlib import crc32

from autotune.engines.simulated.faults import Faults

_LIKELIEST, _SPREAD = 0.05, 3.0  # nats: log-probabilities lie in -3.05 to -0.05, a perplexity of about 4.7
_WRONG_LOSS = 2.0  # nats that a damaged model loses on every token
_JITTER, _SLIGHT_LOSS = 0.02, 0.002  # of a quantised one: each token differs a little, the mean by 0.2 %
_PARTS_ONE_IN, _PARTS_WITHIN_TOK = 8, 32  # of a quantised one's answers, and where they part
_UNIT = 2**32


class Damage(Enum):
    """What has become of the model's weights."""

    NONE = "none"
    SLIGHT = "slight"
    WRONG = "wrong"


def damage_of(faults: Faults, values: Mapping[str, Any]) -> Damage:
    """Return what the faults make of a launch with these values of its flags; `NAME=VALUE` bounds a fault to it."""
    for fault, damage in (("wrong_output", Damage.WRONG), ("perturbed_output", Damage.SLIGHT)):
        condition = faults.text(fault)
        if condition is not None and _holds(condition, values):
            return damage
    return Damage.NONE


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    name, equals, value = condition.partition("=")
    return not equals or str(values.get(name)) == value


def first_wrong_token(damage: Damage, seed: int) -> int | None:
    """Where an answer parts from the sound model's, None for one that doesn't."""
    if damage is Damage.WRONG:
        return 0
    if damage is Damage.SLIGHT and seed % _PARTS_ONE_IN == 0:
        return seed // _PARTS_ONE_IN % _PARTS_WITHIN_TOK
    return None


def logprob(damage: Damage, *about: int) -> float:
    """Log-probability (nats) of a token, by the numbers that it depends on."""
    text = ",".join(map(str, about)).encode()
    sound = -_LIKELIEST - _SPREAD * (crc32(text) / _UNIT)
    if damage is Damage.WRONG:
        return sound - _WRONG_LOSS
    if damage is Damage.SLIGHT:
        return min(0.0, sound - _SLIGHT_LOSS + _JITTER * (2 * crc32(text, 1) / _UNIT - 1))
    return sound


def prompt_logprobs(damage: Damage, prompt: Sequence[int]) -> list[float]:
    """Of a prompt's tokens from the second on, each by itself and the one before."""
    return [logprob(damage, before, token) for before, token in pairwise(prompt)]
