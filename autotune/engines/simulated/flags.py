"""The simulated server's command line: `vllm serve`'s flags and YAML as vLLM 0.32 reads them, and `--sim-*` options.

In: argv and the environment. Out: `Options`. Wrong flags and values end the process as the real ones do: a message on
stderr, exit 2. Known flags, types and defaults come from the vLLM adapter's data file.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autotune.engines.simulated.arguments import refuse, rewrite
from autotune.engines.simulated.faults import FaultError, Faults, describe, parse_faults

_PARAMETERS = Path(__file__).parents[1] / "vllm" / "parameters.json"
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_PROGRAM = "python -m autotune.engines.simulated"
_ABOUT = (
    "A stand-in for `vllm serve` that computes nothing: it takes its flags and YAML, speaks its protocol and keeps its "
    "pace, by a model of the scheduler. Its numbers are simulated and never evidence."
)
_TOP_USAGE = """usage: vllm [-h] [-v]
            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}
            ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeArgs:
    """`given` is what command line and YAML said; `values` has a value for every flag, as the engine uses it."""

    model: str
    given: Mapping[str, Any]
    values: Mapping[str, Any]

    @property
    def served_name(self) -> str:
        """The name that requests use for the model."""
        names = self.values.get("served_model_name")
        return str(names[0]) if names else self.model

    @property
    def host(self) -> str:
        """Loopback unless told otherwise: safer than the real engine, which listens everywhere."""
        return str(self.values.get("host") or "127.0.0.1")

    @property
    def port(self) -> int:
        """The port to listen on."""
        return int(self.values["port"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """The machine pretended, and how. `time_scale` 10: what takes a second takes 0.1 s of wall time."""

    gpu: str
    time_scale: float
    startup_s: float
    seed: int
    faults: Faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    serve: ServeArgs
    sim: SimOptions


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Read the whole command line; raises SystemExit(2) for what vLLM refuses, SystemExit(0) after `--help`."""
    rest = list(argv[1:] if argv[:1] == ["serve"] else argv)
    parser = sim_parser(environ, _PROGRAM, "serve MODEL [vllm serve options] [--sim-* options]", _ABOUT)
    if "-h" in rest or "--help" in rest:
        parser.print_help()
        raise SystemExit(0)
    namespace, rest = parser.parse_known_args(rest)
    sim = sim_options(parser, namespace)
    return Options(serve=_serve_args(rest, sim.faults), sim=sim)


# --- the simulator's own options --------------------------------------------------------------------------------------


def sim_parser(environ: Mapping[str, str], program: str, usage: str, about: str) -> argparse.ArgumentParser:
    """The parser of the options that every face has; it leaves the others to their own."""
    parser = argparse.ArgumentParser(
        prog=program,
        usage=f"%(prog)s {usage}",
        description=about,
        epilog=f"faults (several may be on at once):\n{describe()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument_group("options of the simulator; each default may come from the environment").add_argument
    add("--sim-gpu", default=environ.get("AUTOTUNE_SIM_GPU", "h100"), help="GPU model ($AUTOTUNE_SIM_GPU)")
    add(
        "--sim-time-scale",
        type=float,
        default=environ.get("AUTOTUNE_SIM_TIME_SCALE", "1"),
        help="how many times faster than real time it runs ($AUTOTUNE_SIM_TIME_SCALE)",
    )
    add(
        "--sim-startup-s",
        type=float,
        default=environ.get("AUTOTUNE_SIM_STARTUP_S", "0"),
        help="simulated seconds that loading and warm-up take ($AUTOTUNE_SIM_STARTUP_S)",
    )
    add("--sim-seed", type=int, default=environ.get("AUTOTUNE_SIM_SEED", "0"), help="seed ($AUTOTUNE_SIM_SEED)")
    add(
        "--sim-fault",
        action="append",
        metavar="NAME[:VALUE]",
        default=[text for text in environ.get("AUTOTUNE_SIM_FAULTS", "").split(",") if text],
        help="a fault to have; may be repeated ($AUTOTUNE_SIM_FAULTS, separated by commas)",
    )
    return parser


def sim_options(parser: argparse.ArgumentParser, namespace: argparse.Namespace) -> SimOptions:
    """What the parser found; ends with its usage for what can't be."""
    try:
        faults = parse_faults(namespace.sim_fault)
    except FaultError as error:
        parser.error(str(error))
    if namespace.sim_time_scale <= 0:
        parser.error(f"--sim-time-scale must be above 0, got {namespace.sim_time_scale}")
    return SimOptions(
        gpu=namespace.sim_gpu,
        time_scale=namespace.sim_time_scale,
        startup_s=namespace.sim_startup_s,
        seed=namespace.sim_seed,
        faults=faults,
    )


# --- vllm serve's flags -----------------------------------------------------------------------------------------------


def _serve_args(argv: list[str], faults: Faults) -> ServeArgs:
    parameters = _load_parameters()
    parser = _serve_parser(parameters)
    namespace, unknown = parser.parse_known_args(rewrite(argv))
    if unknown:
        refuse(f"{_TOP_USAGE}\nvllm: error: unrecognized arguments: {' '.join(unknown)}")
    given = {name: value for name, value in vars(namespace).items() if value is not None}
    model = given.pop("model_tag", None) or given.get("model") or "Qwen/Qwen3-0.6B"
    dropped = _flag_name(faults.text("drops_flag") or "")
    defaults = {name: parameter.get("default") for name, parameter in parameters.items()}
    values = defaults | {name: value for name, value in given.items() if name != dropped} | {"model": model}
    return ServeArgs(model=model, given=given, values=values)


def _load_parameters() -> dict[str, dict[str, Any]]:
    parameters: dict[str, dict[str, Any]] = json.loads(_PARAMETERS.read_text())["parameters"]
    return parameters


def _flag_name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


class _VllmParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(f"usage: vllm serve [model_tag] [options]\nvllm serve: error: {message}")


def _serve_parser(parameters: Mapping[str, Mapping[str, Any]]) -> _VllmParser:
    parser = _VllmParser(prog="vllm serve", add_help=False, allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    for name, parameter in parameters.items():
        _add_flag(parser, name, parameter)
    return parser


def _add_flag(parser: argparse.ArgumentParser, name: str, parameter: Mapping[str, Any]) -> None:
    flags = (f"--{name.replace('_', '-')}", *parameter.get("aliases", ()))
    if parameter.get("negatable"):
        parser.add_argument(*flags, dest=name, action=argparse.BooleanOptionalAction, default=None)
    elif parameter["type"] == "bool":
        parser.add_argument(*flags, dest=name, action="store_true", default=None)
    else:
        parser.add_argument(
            *flags,
            dest=name,
            type=_TYPES.get(parameter["type"], str),
            choices=[choice for choice in parameter.get("choices", ()) if choice is not None] or None,
            nargs=parameter.get("nargs"),
            default=None,
        )


def human_readable_int(text: str) -> int:
    """`8k` is 8000 and `8K` is 8192, as vLLM reads token counts; `auto` (-1) asks the engine to find what fits."""
    if text in ("auto", "-1"):
        return -1
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text.strip())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * _SUFFIXES.get(match[2], 1))


def _json(text: str) -> Any:  # noqa: ANN401 - whatever JSON the user wrote
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to <function loads>.") from None


_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "human_int": human_readable_int,
    "json": _json,
}
