"""Settings that hold for every test."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# A busy machine is no fault of the code: time limits belong to benchmarks.
settings.register_profile("autotune", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# As Hypothesis does by itself: what CI judges is the commit, so its examples are the same each time; elsewhere every
# run looks at new ones.
settings.register_profile("autotune-ci", settings.get_profile("autotune"), derandomize=True, print_blob=True)
settings.load_profile("autotune-ci" if os.environ.get("CI") else "autotune")

# A shell starts what runs in the background with Ctrl-C ignored, nohup with SIGHUP, and children inherit that: what
# they do at both is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
