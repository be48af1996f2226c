"""Who competes: a name, and how its session is made. `+pf`: behind the product's own preflight, which is free."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, QMCSampler, RandomSampler, TPESampler

from autotune.records.spec import ParamValue
from autotune.search.auto import AutoSampler, Prior, simulator_prior
from benchmarks.search.annealing import AnnealingSession
from benchmarks.search.asking import OptunaSession, Tell, complete_only, constrained, failing, gate_of, start_of
from benchmarks.search.grids import GridSession
from benchmarks.search.priors import InvertedPrior, RandomPrior
from benchmarks.search.product import Product
from benchmarks.search.protocol import Session, Strategy, Study

CURATED = frozenset({
    "tensor_parallel_size", "gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs",
    "long_prefill_token_threshold", "enable_prefix_caching", "quantization", "kv_cache_dtype",
})  # fmt: skip
"""What an expert would search: seven of a landscape's parameters, as either parallelism or quantisation is fixed."""

OURS = "ours"
VARIANTS = ("ours, no prior", "ours, random prior", "ours, inverted prior")
"""No rivals: what a wrong prior costs. Their prior-free bar is the best of the rivals."""

MakeSampler = Callable[[Study], BaseSampler]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optunas:
    """A strategy that is an Optuna sampler. `needs`: a package that it can't do without."""

    sampler: MakeSampler
    tells: Tell = constrained
    preflight: bool = False
    curated: bool = False
    needs: str | None = None

    def __call__(self, study: Study) -> OptunaSession:
        return OptunaSession(
            study=study,
            sampler=self.sampler(study),
            tells=self.tells,
            gate=gate_of(study) if self.preflight else None,
            fixed=_fixed(study) if self.curated else {},
        )


def _fixed(study: Study) -> dict[str, ParamValue]:
    return {name: value for name, value in start_of(study.space).items() if name not in CURATED}


def _random(study: Study) -> BaseSampler:
    return RandomSampler(seed=study.spec.seed)


def _qmc(study: Study) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return QMCSampler(seed=study.spec.seed, scramble=True, warn_independent_sampling=False)


def _tpe(study: Study) -> BaseSampler:
    return TPESampler(seed=study.spec.seed)


def _gp(study: Study) -> BaseSampler:
    return GPSampler(seed=study.spec.seed)


def _annealing(study: Study, *, preflight: bool) -> Session:
    return AnnealingSession(inner=Optunas(sampler=_tpe, preflight=preflight)(study))


def _grid(study: Study, *, preflight: bool) -> Session:
    return GridSession(study=study, gate=gate_of(study) if preflight else None)


def _auto(study: Study, *, prior: Callable[[Study], Prior | None]) -> Session:
    sampler = AutoSampler(study.space, prior=prior(study), seed=study.spec.seed, trials=study.launches)
    return OptunaSession(study=study, sampler=sampler, gate=gate_of(study), observe=sampler.observe)


def _known(study: Study) -> Prior:
    found = simulator_prior(study.spec)
    assert not isinstance(found, str), found
    return found


def _inverted(study: Study) -> Prior:
    inner = _known(study)
    reference = next(iter(reversed(list(study.space.references(None)))))
    at = inner.predict(reference.args)
    return InvertedPrior(inner=inner, scale=(at.objective if at else None) or 1.0)


def _drawn(study: Study) -> Prior:
    return RandomPrior(inner=_known(study), seed=study.spec.seed)


RIVALS: Mapping[str, Strategy] = {
    "random": Optunas(sampler=_random),
    "random+pf": Optunas(sampler=_random, preflight=True),
    "qmc": Optunas(sampler=_qmc),
    "qmc+pf": Optunas(sampler=_qmc, preflight=True),
    "auto_tune grid": partial(_grid, preflight=False),
    "auto_tune grid+pf": partial(_grid, preflight=True),
    "TPE, crash=FAIL": Optunas(sampler=_tpe, tells=failing),
    "TPE, crash=FAIL+pf": Optunas(sampler=_tpe, tells=failing, preflight=True),
    "TPE, constrained": Optunas(sampler=_tpe),
    "TPE, constrained+pf": Optunas(sampler=_tpe, preflight=True),
    "TBA-TPE": partial(_annealing, preflight=False),
    "TBA-TPE+pf": partial(_annealing, preflight=True),
    "TPE of 7": Optunas(sampler=_tpe, curated=True),
    "TPE of 7+pf": Optunas(sampler=_tpe, curated=True, preflight=True),
    "GP": Optunas(sampler=_gp, tells=complete_only, needs="torch"),
    "GP+pf": Optunas(sampler=_gp, tells=complete_only, preflight=True, needs="torch"),
}

STRATEGIES: Mapping[str, Strategy] = {
    **RIVALS,
    OURS: Product(),
    "ours, no prior": partial(_auto, prior=lambda _: None),
    "ours, random prior": partial(_auto, prior=_drawn),
    "ours, inverted prior": partial(_auto, prior=_inverted),
}


def missing(name: str) -> str | None:
    """Return the package that a strategy needs and that is not installed."""
    needs = getattr(STRATEGIES[name], "needs", None)
    return needs if needs is not None and importlib.util.find_spec(needs) is None else None
