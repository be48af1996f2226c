"""The options file of `trtllm-serve --config`: every tunable, as it is measured and as it is deployed."""

from __future__ import annotations

from typing import Any

from autotune.engines.nesting import nested, plain
from autotune.engines.tensorrt_llm.fields import OFF
from autotune.records.spec import Args

FILE_NAME = "options.yaml"

ALWAYS: Args = {"enable_iter_perf_stats": True}
"""Given unless the study says otherwise: without it `/metrics` is an empty list. Deployed too, being measured so."""


def options(args: Args, *, always: Args = ALWAYS) -> dict[str, Any]:
    """Arguments as nested options, over those given `always`. A group that a space switches off is left out."""
    folded: dict[str, Any] = plain({**always, **nested(args)})
    speculation = folded.get("speculative_config")
    if isinstance(speculation, dict) and speculation.get("decoding_type", OFF) == OFF:
        del folded["speculative_config"]
    return dict(sorted(folded.items()))


def render_options(args: Args) -> str:
    """The same as the file's text."""
    import yaml  # noqa: PLC0415  only a launch and the deploy stage write files

    text: str = yaml.safe_dump(options(args), sort_keys=False, default_flow_style=False)
    return text
