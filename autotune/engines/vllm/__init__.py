"""The vLLM engine. `render_argv` and `render_yaml` write arguments the way vLLM reads them; deploy uses them too."""

from autotune.engines.vllm.flags import render_argv, render_yaml

__all__ = ["render_argv", "render_yaml"]
