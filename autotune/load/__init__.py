"""The load stage: a workload and a server in, a record for each request out.

build_level   workload + load + seed -> LevelPlan, which requests and when
prompt_writer token ids -> text of as many tokens, by the model's tokenizer
run_level     plan + server -> LevelRecord, through the load client (a process of its own, or several)
probe         one request -> its record
negotiate     probes -> Dialect, what a server takes and tells that isn't vLLM
"""

from autotune.load.dialect import UNCOUNTED, Dialect
from autotune.load.negotiation import negotiate
from autotune.load.problems import first_plan, workload_problems
from autotune.load.progress import LevelPhase, Progress
from autotune.load.runner import probe, run_level
from autotune.load.tokenizer import prompt_writer
from autotune.load.workload import build_level

__all__ = [
    "UNCOUNTED",
    "Dialect",
    "LevelPhase",
    "Progress",
    "build_level",
    "first_plan",
    "negotiate",
    "probe",
    "prompt_writer",
    "run_level",
    "workload_problems",
]
