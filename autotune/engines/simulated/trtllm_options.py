"""The command line of the stand-in for `trtllm-serve`, and its options file, refused as the real one refuses them.

In: argv and the environment. Out: `Options` as for the other face; `values` holds the options, nested. A wrong command
line ends with exit 2, a wrong option with exit 1 after a validation error in pydantic's words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.engines.nesting import nested
from autotune.engines.simulated.faults import Faults
from autotune.engines.simulated.flags import Options, ServeArgs, sim_options, sim_parser
from autotune.engines.simulated.process import StartupFailure
from autotune.engines.tensorrt_llm.command import served_name
from autotune.engines.tensorrt_llm.fields import complaint, known, leaves

PROGRAM = "python -m autotune.engines.simulated.trtllm"
_USAGE = "serve MODEL --host HOST --port PORT --config FILE [--sim-* options]"
_ABOUT = (
    "A stand-in for `trtllm-serve` that computes nothing: it takes its command line and options file, speaks its "
    "protocol and keeps its pace, by a model of the scheduler. Its numbers are simulated and never evidence."
)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Read the command line; raises SystemExit(2) for one that is wrong, SystemExit(0) after `--help`."""
    rest = list(argv[1:] if argv[:1] == ["serve"] else argv)
    parser = sim_parser(environ, PROGRAM, _USAGE, _ABOUT)
    if "-h" in rest or "--help" in rest:
        parser.print_help()
        raise SystemExit(0)
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--config", "--extra_llm_api_options", type=Path)
    namespace = parser.parse_args(rest)
    given = {"host": namespace.host, "port": namespace.port, "config": namespace.config}
    name = {"served_model_name": [served_name(namespace.model)]}
    return Options(
        serve=ServeArgs(model=namespace.model, given=given, values={**given, **name}),
        sim=sim_options(parser, namespace),
    )


def read_options(serve: ServeArgs, faults: Faults) -> dict[str, Any]:
    """The options file's content, nested; raises StartupFailure as the engine would refuse it."""
    import yaml  # noqa: PLC0415 - only a start reads it

    path: Path | None = serve.given["config"]
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise StartupFailure(f"{type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise StartupFailure("TypeError: the options file is not a mapping")
    return checked_options(content, faults)


def checked_options(content: Mapping[str, Any], faults: Faults) -> dict[str, Any]:
    """Options as TorchLlmArgs takes them; raises StartupFailure in its words for what it refuses."""
    problems = list(_problems(content))
    if problems:
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}"
        lines = "\n".join(problems)
        raise StartupFailure(f"pydantic_core._pydantic_core.ValidationError: {count} for TorchLlmArgs\n{lines}")
    dropped = faults.text("drops_flag")
    return nested({name: value for name, value in leaves(content) if name != dropped})


def _problems(content: Mapping[str, Any]) -> Iterator[str]:
    """In pydantic's words. A dotted key is no way into a group: the file nests."""
    for name, value in leaves(content):
        if any("." in key for key in content if name.startswith(key)) or not known(name):
            yield f"{name}\n  Extra inputs are not permitted [type=extra_forbidden, input_value={value!r}]"
        elif value is not None and (why := complaint(name, value)) is not None:
            yield f"{name}\n  Input should be valid: {why} [type=value_error, input_value={value!r}]"
