"""An engine that tells what it knows: prints its environment and arguments, then is the simulated server, or fails."""

from __future__ import annotations

import os
import sys

from autotune.engines.simulated.__main__ import main

sys.stdout.write(f"environment: {dict(os.environ)} arguments: {sys.argv}\n")
sys.stdout.flush()
if "TELLTALE_FAILS" in os.environ:
    sys.exit(f"ValueError: the key {os.environ['GIVEN_KEY']!r} and {os.environ['FOUND_API_KEY']} are of no use")
if "TELLTALE_WANTS" in os.environ:
    os.environ["VLLM_API_KEY"] = os.environ["TELLTALE_WANTS"]
sys.exit(main(sys.argv[1:]))
