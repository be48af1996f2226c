"""The load stage: a workload and a server in, a record for each request out.

build_level   workload + load + seed -> LevelPlan, which requests and when
run_level     plan + server -> LevelRecord, through the load client (a process of its own)
probe         one request -> its record
"""

from autotune.load.progress import LevelPhase, Progress
from autotune.load.runner import probe, run_level
from autotune.load.workload import build_level

__all__ = ["LevelPhase", "Progress", "build_level", "probe", "run_level"]
