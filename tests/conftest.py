"""Settings that hold for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no fault of the code: time limits belong to benchmarks.
settings.register_profile("autotune", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("autotune")
