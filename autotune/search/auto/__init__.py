"""`sampler: auto`: a simulator's prediction of every candidate, corrected by what launches showed.

`history` reads Optuna's trials, `prior` predicts candidates (`traffic`, `responses`), `calibration` refits its
constants, `gaussian` and `averaging` say what is believed between the two, `launchable` whether an engine will start,
`candidates` what could be asked at all, `choice` which of it is worth most, `sampler` is the Optuna sampler,
`settled` when to stop. docs/search.md explains the method.
"""

from autotune.search.auto.prior import Prediction, Prior
from autotune.search.auto.sampler import AutoSampler
from autotune.search.auto.simulated import simulator_prior

__all__ = ["AutoSampler", "Prediction", "Prior", "simulator_prior"]
