"""Deaths are classified by their first cause, never by the generic line at the end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.vllm.diagnosis import Rule, diagnose, knowledge, known_cause
from autotune.records.trial import Fault, Outcome, Phase
from benchmarks.classification.cases import Case, cases, is_false_lesson

CORE = "(EngineCore pid=3497) ERROR 11-30 10:43:00 [core.py:1510] "
END = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"

SEEN = yaml.safe_load(Path(__file__).with_name("seen_failures.yaml").read_text())


@pytest.mark.parametrize("seen", SEEN, ids=lambda seen: seen["name"])
def test_failures_seen_with_vllm(seen: dict[str, Any]) -> None:
    failure = diagnose(seen["exit_code"], Phase(seen["phase"]), seen["log"])
    assert (failure.outcome, failure.fault, failure.phase) == (seen["outcome"], seen["fault"], seen["phase"])
    assert seen["cause"] in failure.cause
    assert failure.remedy


RULES = knowledge().rules + knowledge().signs


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_finds_its_own_examples_first(rule: Rule) -> None:
    assert rule.examples
    for example in rule.examples:
        log = f"{rule.example_log}\n{CORE}{example}\n{END}"
        assert diagnose(1, Phase.LAUNCH, log).remedy == rule.remedy


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_only_the_candidates_own_fault_teaches(rule: Rule) -> None:
    if rule.fault is not Fault.CANDIDATE:
        assert not rule.outcome.teaches_infeasible
        assert not rule.under_load.teaches_infeasible
    assert rule.outcome.teaches_infeasible or rule.outcome is Outcome.UNKNOWN or rule.fault is not Fault.CANDIDATE


@pytest.mark.parametrize("case", [case for case in cases() if case.scored], ids=lambda case: case.source)
def test_labelled_failures_give_no_false_lesson_and_no_wrong_action(case: Case) -> None:
    assert not is_false_lesson(case)
    assert case.told in (case.action, "unknown")


@pytest.mark.parametrize(
    ("line", "launching", "loading"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.", "oom_startup", "oom_load"),
        ("RuntimeError: CUDA error: out of memory", "oom_startup", "oom_load"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access", "launch_failed", "crashed_under_load"),
    ],
)
def test_the_phase_decides_between_outcomes(line: str, launching: str, loading: str) -> None:
    assert diagnose(1, Phase.LAUNCH, line).outcome == launching
    assert diagnose(1, Phase.LOAD, line).outcome == loading


def test_what_no_rule_knows_keeps_its_first_error() -> None:
    failure = diagnose(1, Phase.LAUNCH, f"starting\n{CORE}KeyError: 'rope_scaling'\n{END}")
    assert failure.outcome is Outcome.UNKNOWN
    assert failure.cause.startswith("KeyError: 'rope_scaling'")


def test_a_death_without_an_error_keeps_the_last_line_and_the_code() -> None:
    assert diagnose(4, Phase.LAUNCH, "one\ntwo\n").cause == "two (exit code 4)"
    assert diagnose(None, Phase.LAUNCH, "").cause == "the log is empty"


def test_a_kill_from_outside_is_the_environments() -> None:
    failure = diagnose(-signal.SIGKILL, Phase.LOAD, "(APIServer pid=1) INFO 11-30 10:00:00 [a.py:1] all is well")
    assert failure.outcome is Outcome.ENVIRONMENT


def test_a_signal_from_outside_without_a_cause_is_an_interruption() -> None:
    assert diagnose(143, Phase.LOAD, "").outcome is Outcome.INTERRUPTED
    assert diagnose(-signal.SIGTERM, Phase.LAUNCH, f"{CORE}KeyError: 'x'").outcome is Outcome.UNKNOWN


# --- which line decides -----------------------------------------------------------------------------------------------

DIED = "Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor."
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        ((DIED, "ValidationError: 1 validation error for X", "  Value error, max_num_seqs b"), Outcome.BAD_CONFIG),
        (("RuntimeError: NCCL error: unhandled system error", OOM), Outcome.OOM_STARTUP),
        (("RuntimeError: [/torch/gloo] Connection closed by peer [10.0.0.1]:9", OOM), Outcome.OOM_STARTUP),
        (("KeyError: 'rope_scaling'", OOM), Outcome.OOM_STARTUP),
        (("KeyError: 'rope_scaling'", DIED), Outcome.UNKNOWN),
        (("KeyError: 'rope_scaling'", "RuntimeError: NCCL error: unhandled system error"), Outcome.UNKNOWN),
        ((DIED,), Outcome.UNKNOWN),
        (("OSError: [Errno 28] No space left on device", OOM), Outcome.ENVIRONMENT),
    ],
)
def test_a_known_cause_goes_before_an_unknown_one_and_that_before_a_consequence(
    lines: tuple[str, ...], outcome: Outcome
) -> None:
    assert diagnose(1, Phase.LAUNCH, "".join(f"{CORE}{line}\n" for line in (*lines, END))).outcome is outcome


@pytest.mark.parametrize(
    "log",
    [
        "(APIServer pid=1) WARNING 11-30 10:37:55 [a.py:255] This can cause errors like `OSError: Too many open files`",
        'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK CUDA out of memory',
        "2025-08-01 10:00:00,123 INFO worker.py:1843 -- ModuleNotFoundError: No module named 'x'",
        "host:9:9 [0] NCCL INFO Cuda failure 'out of memory'",
        "/x/y.py:1: UserWarning: OSError: No space left on device",
        'Traceback (most recent call last):\n  File "/x.py", line 3, in f\n    raise ValueError("CUDA out of memory")',
        '  File "/x.py", line 3, in f\n    raise ValueError("CUDA out of memory")',  # its beginning is cut off
        '    raise ValueError("CUDA out of memory")',
        f"{CORE}Dumping input data for V1 LLM engine with config: CUDA out of memory",
    ],
)
def test_what_only_quotes_an_error_is_no_cause(log: str) -> None:
    assert known_cause(Phase.LAUNCH, log) is None


HEADS = (
    "",
    "[rank3]: ",
    "(Worker_TP1_EP1 pid=34) ERROR 11-30 10:43:00 [multiproc_executor.py:953] ",
    "ERROR 04-01 10:00:00 multiproc_worker_utils.py:226] ",
    "\x1b[1;36m(EngineCore_DP0 pid=35109)\x1b[0;0m ERROR 09-17 05:40:55 [v1/engine/core.py:712] ",
    "\x1b[36m(RayWorkerWrapper pid=11305, ip=10.0.0.2)\x1b[0m ERROR 08-27 05:12:18 worker_base.py:382] ",
    "(VllmWorker rank=0 pid=305149) ERROR 06-29 19:19:59 [multiproc_executor.py:492] ",
    "vllm-sm120  | (APIServer pid=1) ERROR 06-22 11:29:08 [async_llm.py:704] ",
    "2026-03-11T17:57:10.976518836Z stderr F (EngineCore_DP0 pid=469) ERROR 03-11 17:57:10 [core.py:783] ",
    "[2026-02-24T20:21:58Z] (EngineCore_DP0 pid=6940) ",
    "Aug 17 18:42:18 vllm vllm[8052]: (APIServer pid=8052) ",
)


@pytest.mark.parametrize("head", HEADS)
def test_heads_of_any_kind_are_taken_off(head: str) -> None:
    cause = "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (6)."
    frames = f'{head}Traceback (most recent call last):\n{head}  File "/v.py", line 1, in f\n'
    log = f'{frames}{head}    raise ValueError("CUDA out of memory")\n{head}{cause}\n{head}{END}\n'
    failure = diagnose(1, Phase.LAUNCH, log)
    assert (failure.outcome, failure.cause) == (Outcome.BAD_CONFIG, cause)


def test_tracebacks_of_several_workers_may_interleave() -> None:
    one, two = (f"(Worker_TP{rank} pid={rank}) ERROR 11-30 10:43:00 [m.py:1] " for rank in (0, 1))
    log = f"""\
{one}Traceback (most recent call last):
{two}Traceback (most recent call last):
{one}  File "/v.py", line 1, in f
{two}ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`
{one}    raise OSError("No space left on device")
{one}KeyError: 'rope'
{DIED}
"""
    assert diagnose(1, Phase.LAUNCH, log).outcome is Outcome.OOM_STARTUP


def test_a_server_that_was_told_to_stop_was_not_broken_by_its_load() -> None:
    log = f"""\
(APIServer pid=2056) INFO 11-30 10:38:27 [launcher.py:254] [shutdown] API server: shutdown triggered
(APIServer pid=2056) ERROR 11-30 10:38:27 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=2056) ERROR 11-30 10:38:27 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue.
{DIED}
"""
    assert diagnose(0, Phase.LOAD, log).outcome is Outcome.INTERRUPTED


# --- lines that look alike --------------------------------------------------------------------------------------------


def free_memory(free: float) -> str:
    return (
        f"ValueError: Free memory on device cuda:0 ({free}/22.05 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 19.84 GiB)."
    )


def test_a_little_less_memory_is_the_drivers_and_much_less_a_neighbours() -> None:
    assert diagnose(1, Phase.LAUNCH, free_memory(19.77)).outcome is Outcome.OOM_STARTUP
    assert diagnose(1, Phase.LAUNCH, free_memory(19.40)).fault is Fault.ENVIRONMENT


def test_out_of_memory_beside_another_process_is_not_the_candidates() -> None:
    ours = "Including non-PyTorch memory, this process has 17.98 GiB memory in use."
    assert diagnose(1, Phase.LAUNCH, f"{OOM} {ours}").outcome is Outcome.OOM_STARTUP
    assert diagnose(1, Phase.LAUNCH, f"{OOM} Process 7 has 0.41 GiB memory in use. {ours}").fault is Fault.CANDIDATE
    assert diagnose(1, Phase.LOAD, f"{OOM} Process 7 has 12 GiB memory in use. {ours}").fault is Fault.ENVIRONMENT
    assert (
        diagnose(1, Phase.LAUNCH, f"{OOM} Process 7 has 21 GiB memory in use.").fault is Fault.CANDIDATE
    )  # a container


def test_less_than_no_memory_may_be_a_neighbours_and_teaches_nothing() -> None:
    none = f"{CORE}ValueError: No available memory for the cache blocks."
    said = "(Worker pid=7) INFO 11-30 10:42:10 [gpu_worker.py:360] Available KV cache memory: {} GiB"
    assert diagnose(1, Phase.LAUNCH, f"{said.format('-3.21')}\n{none}").outcome is Outcome.UNKNOWN
    assert diagnose(1, Phase.LAUNCH, f"{said.format('0.0')}\n{none}").outcome is Outcome.OOM_STARTUP


def test_a_missing_kernel_is_the_builds_unless_a_setting_asked_for_it() -> None:
    line = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    asked = "(APIServer pid=1) INFO 11-30 10:00:00 [u.py:1] non-default args: {'model': 'm', 'kv_cache_dtype': 'fp8'}"
    assert diagnose(1, Phase.LAUNCH, line).fault is Fault.SETUP
    assert diagnose(1, Phase.LAUNCH, f"{asked}\n{line}").outcome is Outcome.BAD_CONFIG


def test_a_disk_that_is_full_is_the_users_and_shared_memory_full_of_leftovers_is_not() -> None:
    full = "OSError: [Errno 28] No space left on device"
    assert diagnose(1, Phase.LAUNCH, full).fault is Fault.SETUP
    assert diagnose(1, Phase.LAUNCH, f"{full}: '/psm_1a2b3c4d'").fault is Fault.ENVIRONMENT


# --- figures ----------------------------------------------------------------------------------------------------------


def test_lines_that_name_an_edge_become_numbers() -> None:
    log = f"""\
(Worker_TP0 pid=7) INFO 11-30 10:42:10 [gpu_worker.py:360] Available KV cache memory: 3.20 GiB
(Worker_TP1 pid=8) INFO 11-30 10:42:10 [gpu_worker.py:360] Available KV cache memory: 3.18 GiB
{CORE}ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is needed, \
which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the estimated maximum \
model length is 34736.
"""
    assert diagnose(1, Phase.LAUNCH, log).edges == {
        "max_model_len": 262144,
        "max_model_len_that_fits": 34736,
        "kv_needed_bytes": 24 * 2**30,
        "kv_available_bytes": 3.18 * 2**30,
    }


def test_figures_of_a_start_that_went_well_are_kept_with_a_later_failure() -> None:
    log = f"""\
INFO 11-30 10:38:14 [gpu_model_runner.py:4216] Model loading took 11.5 GiB memory and 19.3 seconds
(EngineCore pid=2068) INFO 11-30 10:38:14 [kv_cache_utils.py:2327] GPU KV cache size: 174,720 tokens, Maximum \
concurrency for 2,048 tokens per request: 85.31x
{CORE}{OOM}
"""
    figures = {"weights_bytes": 11.5 * 2**30, "kv_cache_tokens": 174720, "kv_cache_max_concurrency": 85.31}
    assert diagnose(1, Phase.LOAD, log).edges == figures
    assert diagnose(1, Phase.LAUNCH, free_memory(10.77)).edges == {
        "free_bytes": 10.77 * 2**30,
        "total_bytes": 22.05 * 2**30,
        "wanted_bytes": 19.84 * 2**30,
    }


# --- killed, crashed, or ended without a word -------------------------------------------------------------------------

KERNEL = "\nkernel: oom-kill of 1 process(es) while the engine ran (oom_kill in /sys/fs/cgroup/memory.events)"
KILLED = "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."


@pytest.mark.parametrize(("said", "code"), [(KILLED, 0), (DIED, 0), ("", -9), ("", 137), ("", 0), (DIED, -9)])
@pytest.mark.parametrize("phase", [Phase.LAUNCH, Phase.CANARY, Phase.LOAD])
def test_a_kill_is_learned_where_the_kernel_counted_it_and_nowhere_else(said: str, code: int, phase: Phase) -> None:
    log = f"{CORE}{said}\n{END}" if said else "INFO 11-30 10:00:00 [a.py:1] all is well"
    assert not diagnose(code, phase, log).outcome.teaches_infeasible
    counted = diagnose(code, phase, log + KERNEL)
    assert counted.outcome is (Outcome.OOM_STARTUP if phase is Phase.LAUNCH else Outcome.OOM_LOAD)
    assert counted.fault is Fault.CANDIDATE


@pytest.mark.parametrize("number", sorted({*signal.Signals} - {signal.SIGRTMIN, signal.SIGRTMAX}))
def test_only_signals_that_a_process_brings_upon_itself_teach(number: signal.Signals) -> None:
    own = number.name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
    for code in (-number, 128 + number):
        failure = diagnose(code, Phase.LOAD, "")
        assert failure.outcome.teaches_infeasible is own
        assert (failure.fault is Fault.ENVIRONMENT) is not own


def test_a_worker_that_crashed_is_told_from_one_that_was_killed_by_its_exit_code() -> None:
    assert diagnose(0, Phase.LOAD, KILLED).fault is Fault.ENVIRONMENT
    assert diagnose(0, Phase.LOAD, KILLED.replace("-9", "-11")).outcome is Outcome.CRASHED_UNDER_LOAD
    assert diagnose(0, Phase.LAUNCH, KILLED.replace("-9", "-11")).outcome is Outcome.UNKNOWN


def test_a_cause_in_the_log_goes_before_the_signal_that_it_ended_with() -> None:
    assert diagnose(-9, Phase.LOAD, f"{CORE}{OOM}\n{KILLED}").outcome is Outcome.OOM_LOAD
    assert diagnose(0, Phase.LAUNCH, f"{CORE}KeyError: 'x'\n{KILLED}").outcome is Outcome.UNKNOWN
