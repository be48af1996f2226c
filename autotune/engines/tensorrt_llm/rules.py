"""Rules over several fields by which TensorRT-LLM can't start, or can't serve the workload: arguments in, reasons out.

Checked against the sources of 1.2 to 1.4rc, not run. A missing figure breaks no rule; a field left out has its default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.engines.tensorrt_llm.fields import OFF, documented_defaults, leaves
from autotune.models.shapes import GpuSpec
from autotune.records.spec import Args

BF16_CAPABILITY, FP8_CAPABILITY, NVFP4_CAPABILITY = 80, 89, 100
NEED_A_DRAFT_MODEL = ("Eagle", "Eagle3", "DraftTarget", "Draft_Target")
OTHER_BACKENDS = ("Medusa", "Lookahead")  # of the TensorRT backend only


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What rules see: arguments, GPUs given (None: unknown) and their kind, and the workload's longest request."""

    args: Args
    gpus: int | None = None
    gpu: GpuSpec | None = None
    longest_input_tokens: int | None = None
    longest_request_tokens: int | None = None
    _given: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_given", dict(leaves(self.args)))

    def given(self, name: str) -> Any:  # noqa: ANN401  a field may be anything
        """Return the value that was asked for; None where it was left out."""
        return self._given.get(name)

    def value(self, name: str) -> Any:  # noqa: ANN401
        """Return the value asked for, else the documented default."""
        given = self._given.get(name)
        return documented_defaults().get(name) if given is None else given

    def size(self, name: str) -> int:
        """Return a degree of parallelism."""
        value = self.value(name)
        return value if isinstance(value, int) and value > 0 else 1


def broken_rules(setting: Setting) -> Iterator[tuple[str, str]]:
    """Yield (field, why) of each rule that does not hold."""
    for rule in _RULES:
        yield from rule(setting)


def _gpus(setting: Setting) -> Iterator[tuple[str, str]]:
    sizes = {name: setting.size(f"{name}_parallel_size") for name in ("tensor", "pipeline", "context")}
    needed = sizes["tensor"] * sizes["pipeline"] * sizes["context"]
    if setting.gpus and needed > setting.gpus:
        spelled = " x ".join(f"{name}_parallel_size {size}" for name, size in sizes.items() if size > 1)
        yield "tensor_parallel_size", f"{spelled} takes {needed} GPUs; the engine is given {setting.gpus}"


def _experts(setting: Setting) -> Iterator[tuple[str, str]]:
    tensor, expert = setting.given("moe_tensor_parallel_size"), setting.given("moe_expert_parallel_size")
    tp = setting.size("tensor_parallel_size")
    if expert and tp % expert:
        yield (
            "moe_expert_parallel_size",
            f"tensor_parallel_size {tp} can't be divided by moe_expert_parallel_size {expert}",
        )
    elif tensor and expert and tensor * expert != tp:
        yield (
            "moe_tensor_parallel_size",
            (f"moe_tensor_parallel_size {tensor} x moe_expert_parallel_size {expert} is not tensor_parallel_size {tp}"),
        )


def _prompts(setting: Setting) -> Iterator[tuple[str, str]]:
    longest, tokens = setting.longest_input_tokens, setting.value("max_num_tokens")
    if longest and tokens and longest > tokens and not setting.value("enable_chunked_prefill"):
        yield (
            "max_num_tokens",
            (
                f"without enable_chunked_prefill a prompt must fit max_num_tokens {tokens}; the workload's longest has "
                f"{longest} tokens"
            ),
        )


def _lengths(setting: Setting) -> Iterator[tuple[str, str]]:
    longest, length = setting.longest_request_tokens, setting.given("max_seq_len")
    if longest and length and longest > length:
        yield "max_seq_len", f"the workload's longest request takes {longest} tokens; max_seq_len is {length}"


def _graphs(setting: Setting) -> Iterator[tuple[str, str]]:
    if setting.given("cuda_graph_config.batch_sizes") and setting.given("cuda_graph_config.max_batch_size"):
        yield "cuda_graph_config.batch_sizes", ("cuda_graph_config takes batch_sizes or max_batch_size, not both")


def _speculation(setting: Setting) -> Iterator[tuple[str, str]]:
    kind = setting.value("speculative_config.decoding_type")
    if kind in (None, OFF):
        return
    where = "speculative_config.decoding_type"
    if setting.size("pipeline_parallel_size") > 1:
        yield where, "speculative decoding is refused with pipeline_parallel_size above 1"
    if kind in OTHER_BACKENDS:
        yield where, f"the PyTorch backend has no {kind}"
    models = ("speculative_config.speculative_model", "speculative_config.speculative_model_dir")
    if kind in NEED_A_DRAFT_MODEL and not any(map(setting.given, models)):
        yield where, f"{kind} needs speculative_config.speculative_model"


def _reuse(setting: Setting) -> Iterator[tuple[str, str]]:
    if setting.value("attn_backend") == "FLASHINFER" and setting.given("kv_cache_config.enable_block_reuse"):
        yield "attn_backend", "attn_backend FLASHINFER turns kv_cache_config.enable_block_reuse off"


def _capability(setting: Setting) -> Iterator[tuple[str, str]]:
    if setting.gpu is None:
        return
    dtype, kv_dtype = setting.value("dtype"), setting.value("kv_cache_config.dtype")
    needs = [
        ("dtype", dtype == "bfloat16", BF16_CAPABILITY, "bfloat16"),
        ("kv_cache_config.dtype", str(kv_dtype).startswith("fp8"), FP8_CAPABILITY, "an FP8 KV cache"),
        ("kv_cache_config.dtype", kv_dtype == "nvfp4", NVFP4_CAPABILITY, "an NVFP4 KV cache"),
    ]
    for name, asked, capability, what in needs:
        if asked and setting.gpu.capability < capability:
            has = setting.gpu.capability / 10
            yield name, f"{what} needs compute capability {capability / 10}; {setting.gpu.name} has {has}"


def _backend(setting: Setting) -> Iterator[tuple[str, str]]:
    backend = setting.value("backend")
    if backend not in (None, "pytorch"):
        yield "backend", f"only the pytorch backend is tuned, not {backend}: engine directories are gone after 1.2"


_RULES = (_gpus, _experts, _prompts, _lengths, _graphs, _speculation, _reuse, _capability, _backend)
