"""Settings that hold for every test."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# A busy machine is no fault of the code: time limits belong to benchmarks.
settings.register_profile("autotune", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("autotune")

# A shell starts what runs in the background with Ctrl-C ignored, nohup with SIGHUP, and children inherit that: what
# they do at both is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
