"""Small search problems with known answers: a space with conditions and rules, truths, and priors right and wrong."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import optuna

from autotune import space
from autotune.records.spec import Choice, EngineKind, FloatRange, IntRange, ParameterSpec, SpaceSpec
from autotune.records.trial import TrialRecord
from autotune.search.auto import AutoSampler, Prediction, Prior
from autotune.search.told import LAUNCH
from autotune.space import RuledOut, Space
from tests.builders import study_spec

Params = Mapping[str, Any]
Truth = Callable[[Params], float]

SPACE = SpaceSpec(
    name="test",
    engine=EngineKind.VLLM,
    parameters=(
        ParameterSpec(name="max_num_seqs", domain=IntRange(low=8, high=1024, log=True)),
        ParameterSpec(name="max_num_batched_tokens", domain=IntRange(low=256, high=16384, log=True)),
        ParameterSpec(name="gpu_memory_utilization", domain=FloatRange(low=0.8, high=0.95, step=0.01)),
        ParameterSpec(name="enable_chunked_prefill", domain=Choice(values=(True, False))),
        ParameterSpec(
            name="long_prefill_token_threshold", domain=Choice(values=(0, 512, 2048)), when="enable_chunked_prefill"
        ),
        ParameterSpec(name="kv_cache_dtype", domain=Choice(values=("auto", "fp8"))),
        ParameterSpec(name="block_size", domain=Choice(values=(16, 32, 64))),
    ),
    rules=("max_num_batched_tokens >= max_num_seqs", "enable_chunked_prefill or max_num_batched_tokens >= 1024"),
)
BEST = 100.0


def build() -> Space:
    """The space above."""
    return space.build_space(study_spec(search_space=SPACE), gpus=1)


def truth(params: Params) -> float:
    """BEST at max_num_seqs 128 and 4,096 tokens with chunks and an FP8 cache; half an e-fold off costs an eighth."""
    off = math.log(params["max_num_seqs"] / 128) ** 2 / 4 + math.log(params["max_num_batched_tokens"] / 4096) ** 2 / 6
    off += 0.0 if params["enable_chunked_prefill"] else 0.3
    off += 0.0 if params["kv_cache_dtype"] == "fp8" else 0.25
    return BEST * math.exp(-off)


@dataclass(slots=True)
class Scripted:
    """A prior that says what a function says."""

    says: Truth
    version: int = 0

    def predict(self, args: Params) -> Prediction | None:
        return Prediction(objective=self.says(args))

    def learn(self, record: TrialRecord) -> None:
        """Stays as it is."""


def inverted(params: Params) -> float:
    """The best is said to be the worst."""
    return BEST**2 / max(truth(params), 1.0) / 10


def scrambled(params: Params) -> float:
    """Nothing to do with the truth."""
    digest = hashlib.sha256(repr(sorted(params.items())).encode()).digest()
    return float(np.random.default_rng(int.from_bytes(digest[:4])).lognormal(3.0, 1.0))


def study(
    prior: Prior | None, *, seed: int = 1, direction: Literal["minimize", "maximize"] = "maximize"
) -> optuna.Study:
    """An Optuna study in memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=AutoSampler(build(), prior=prior, seed=seed, trials=40), direction=direction)


def launch(
    of: optuna.Study, where: Space, says: Truth = truth, crashes: Callable[[Params], bool] = lambda _: False
) -> Params:
    """One round: ask, evaluate with 2 % of noise that depends on the trial's number, tell; returns the parameters."""
    trial = of.ask()
    candidate = where.suggest(trial)
    assert not isinstance(candidate, RuledOut), candidate.reason
    noise = np.random.default_rng(trial.number).normal(0.0, 0.02)
    if crashes(candidate.params):
        trial.set_constraint(LAUNCH, 1.0)
        of.tell(trial, state=optuna.trial.TrialState.PRUNED)
    else:
        trial.set_constraint(LAUNCH, 0.0)
        of.tell(trial, says(candidate.params) * math.exp(noise))
    return dict(candidate.params)


def launches_until(of: optuna.Study, share: float, most: int, **how: Any) -> int:
    """How many launches it took to come within `share` of BEST by the truth; `most` where it did not."""
    where = build()
    for count in range(1, most + 1):
        params = launch(of, where, **how)
        if truth(params) >= share * BEST and not how.get("crashes", lambda _: False)(params):
            return count
    return most


def continued(of: optuna.Study, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    """The same trials under another sampler."""
    other = optuna.create_study(sampler=sampler, direction=of.direction)
    other.add_trials(of.get_trials())
    return other
