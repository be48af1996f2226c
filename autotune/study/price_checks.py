"""What one field's bounds can't say about prices, run by the forms."""

from __future__ import annotations

from autotune.records.metrics import ENERGY, PRICED
from autotune.records.spec import EngineKind, PriceSpec
from autotune.study.checks import Fault, complain, wrong
from autotune.study.objective_forms import ObjectiveForm

_WAYS = ("usd_per_gpu_hour", "usd_per_hour", "usd_per_million_output_tok")


def price_is_sound(price: PriceSpec) -> PriceSpec:
    """One way of paying; prompts have a price only beside answers."""
    given = [way for way in _WAYS if getattr(price, way) is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise wrong(f"needs exactly one of {', '.join(_WAYS)}, got {got}", "give what you are billed by")
    if price.usd_per_million_input_tok is not None and price.tokens is None:
        raise wrong("goes with usd_per_million_output_tok", "remove it, or give both", "usd_per_million_input_tok")
    if price.tokens is not None and price.api is not None:
        raise wrong("is what a price of machines is held against", "remove it", "api")
    return price


def price_fits(kind: EngineKind, price: PriceSpec | None) -> None:
    """What the tuner launches runs on machines, which nobody bills by the token."""
    if price is not None and price.tokens is not None and kind is not EngineKind.ENDPOINT:
        hint = "give usd_per_gpu_hour or usd_per_hour; an API to compare with goes under price.api"
        raise wrong(f"only an endpoint charges by the token, the engine is {kind.value}", hint, "price")


def can_be_known(kind: EngineKind, price: PriceSpec | None, objective: ObjectiveForm) -> None:
    """Cost metrics need a price; energy needs GPUs that tell it."""
    complain([fault for at, name in _named(objective) if (fault := _fault(kind, price, name, at)) is not None])


def _named(objective: ObjectiveForm) -> list[tuple[tuple[str, ...], str]]:
    """Where metrics are named, and which."""
    goals = [((key,), getattr(objective, key)) for key in ("maximize", "minimize")]
    return [*((at, name) for at, name in goals if name), *((("slos", name), name) for name in objective.slos)]


def _fault(kind: EngineKind, price: PriceSpec | None, name: str, at: tuple[str, ...]) -> Fault | None:
    path = ("objective", *at)
    if name in PRICED and price is None:
        return Fault(f"{name} needs a price", "add `price: {usd_per_gpu_hour: …}` to the study", path)
    if name == ENERGY and kind in (EngineKind.ENDPOINT, EngineKind.SIMULATED):
        return Fault(f"{name} can't be known of kind {kind.value}", "only GPUs of this machine tell their energy", path)
    return None
