"""Rules by which vLLM can't start or can't serve, from the model's config.json: arguments in, reasons in words out.

Each holds for every vLLM from 0.10 to 0.32 (vllm/config/model.py, vllm/model_executor/layers/linear.py,
.../quantization/utils/fp8_utils.py); where a release may make an exception, no rule says anything. A missing figure
breaks no rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.models.config import GIB
from autotune.models.facts import Machine, plain_decoder
from autotune.records.spec import Args

BF16_CAPABILITY = 80  # vllm/platforms/cuda.py, check_if_supports_dtype
FP8_WEIGHTS_CAPABILITY = 75  # get_min_capability of vLLM's fp8 method; below, there is no kernel at all
OFFLOADS = ("cpu_offload_gb", "swap_space")  # GiB a GPU
MANY_NODES = frozenset(
    {"distributed_executor_backend", "nnodes", "data_parallel_address", "data_parallel_size_local",
     "data_parallel_external_lb", "data_parallel_hybrid_lb"}
)  # fmt: skip
EXPERT_KEYS = ("num_local_experts", "num_experts", "moe_num_experts", "n_routed_experts")
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What rules see: arguments, the model's config.json, the machine, and the workload's longest request in tokens.

    `may_stretch`: the environment allows a max_model_len beyond the model's positions.
    """

    args: Args
    config: Mapping[str, Any]
    machine: Machine
    longest_request_tokens: int | None
    may_stretch: bool = False

    def size(self, name: str) -> int:
        """Return a degree of parallelism."""
        value = self.args.get(name)
        return value if isinstance(value, int) and value > 0 else 1

    def number(self, *names: str) -> int | None:
        """Return the first of these keys of config.json that is a whole number."""
        found = (self.config.get(name) for name in names)
        return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.size("tensor_parallel_size")

    @property
    def experts(self) -> int | None:
        """Experts of a mixture-of-experts model."""
        return self.number(*EXPERT_KEYS)


def broken_rules(setting: Setting) -> Iterator[str]:
    """Yield why vLLM could not start with these arguments, or could not serve the workload."""
    for rule in _RULES:
        yield from rule(setting)


def _heads(setting: Setting) -> Iterator[str]:
    heads, tp = setting.number("num_attention_heads", "n_head"), setting.tp
    if heads and heads % tp:
        yield f"{heads} attention heads can't be divided by tensor_parallel_size {tp}"


def _kv_heads(setting: Setting) -> Iterator[str]:
    """KV heads are split over the GPUs, or each is copied to equally many."""
    heads, tp = setting.number("num_key_value_heads"), setting.tp
    if not heads or setting.config.get("kv_lora_rank"):  # multi-head latent attention keeps no heads apart
        return
    if max(heads, tp) % min(heads, tp):
        yield f"{heads} KV heads can neither be divided by tensor_parallel_size {tp} nor copied evenly to its GPUs"


def _layers(setting: Setting) -> Iterator[str]:
    layers, pp = setting.number("num_hidden_layers", "n_layer"), setting.size("pipeline_parallel_size")
    if layers and pp > layers:
        yield f"pipeline_parallel_size {pp} is more than the model's {layers} layers"


def _gpus(setting: Setting) -> Iterator[str]:
    sizes = {n: setting.size(n) for n in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")}
    needed, gpus = 1, setting.machine.gpus
    for size in sizes.values():
        needed *= size
    if gpus and needed > gpus and not MANY_NODES & setting.args.keys():
        spelled = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        yield f"{spelled} takes {needed} GPUs; the engine is given {gpus}"


def _experts(setting: Setting) -> Iterator[str]:
    if not setting.args.get("enable_expert_parallel"):
        return
    experts, ranks = setting.experts, setting.tp * setting.size("data_parallel_size")
    if experts and ranks > experts and not setting.args.get("enable_eplb"):
        yield f"enable_expert_parallel spreads {experts} experts over {ranks} GPUs: some would have none"
    if not experts and plain_decoder(setting.config):
        yield "enable_expert_parallel needs a model with experts; this one has none"


def _blocks(setting: Setting) -> Iterator[str]:
    """Weights quantised in blocks can only be cut between blocks."""
    quantization = setting.config.get("quantization_config")
    if not isinstance(quantization, Mapping) or quantization.get("modules_to_not_convert"):
        return
    block = quantization.get("weight_block_size")
    if not isinstance(block, list | tuple) or len(block) != 2 or setting.tp == 1 or not plain_decoder(setting.config):
        return  # how experts are cut, and which layers are left as they are, differs by release and kernel
    for name, size in _sharded(setting):
        if size % setting.tp == 0 and (size // setting.tp) % max(block):
            yield (
                f"{name} {size} over tensor_parallel_size {setting.tp} is {size // setting.tp} a GPU, which is no "
                f"multiple of the quantisation's block of {max(block)}"
            )


def _sharded(setting: Setting) -> Iterator[tuple[str, int]]:
    if ffn := setting.number("intermediate_size"):
        yield "intermediate_size", ffn
    heads, head_dim = setting.number("num_attention_heads"), setting.number("head_dim")
    if heads and head_dim and not setting.config.get("kv_lora_rank"):
        yield "num_attention_heads x head_dim", heads * head_dim


def _capability(setting: Setting) -> Iterator[str]:
    gpu = setting.machine.gpu
    if gpu is None:
        return
    if setting.args.get("dtype") == "bfloat16" and gpu.capability < BF16_CAPABILITY:
        yield f"bfloat16 needs compute capability 8.0; {gpu.name} has {gpu.capability / 10}"
    if str(setting.args.get("quantization")).startswith("fp8") and gpu.capability < FP8_WEIGHTS_CAPABILITY:
        yield f"FP8 weights need compute capability 7.5; {gpu.name} has {gpu.capability / 10}"


def _lengths(setting: Setting) -> Iterator[str]:
    longest, given = setting.longest_request_tokens, setting.args.get("max_model_len")
    limit = setting.number(*LENGTH_KEYS)
    if setting.may_stretch or "hf_overrides" in setting.args or _stretched(setting.config):
        limit = None
    length = given if isinstance(given, int) and given > 0 else limit
    if limit and isinstance(given, int) and given > limit:
        yield f"max_model_len {given} is more than the model's {limit} positions"
    if longest and length and longest > length:
        what = "max_model_len" if isinstance(given, int) and given > 0 else "the model's number of positions"
        yield f"the workload's longest request takes {longest} tokens; {what} is {length}"


def _stretched(config: Mapping[str, Any]) -> bool:
    """Whether RoPE scaling makes the model's context longer than config.json's positions."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, Mapping) else "unknown"
    return kind not in (None, "default", "llama3")  # llama3's positions count the scaling in already


def _host_memory(setting: Setting) -> Iterator[str]:
    present = setting.machine.host_memory_bytes
    asked = [(name, setting.args.get(name)) for name in OFFLOADS]
    given = [(name, float(value)) for name, value in asked if isinstance(value, int | float) and value > 0]
    ranks = setting.tp * setting.size("pipeline_parallel_size")
    needed = sum(value for _, value in given) * GIB * ranks
    if present and needed > present:
        names = " + ".join(f"{name} {value:g}" for name, value in given)
        yield f"{names} on {ranks} GPUs takes {needed / GIB:.0f} GiB of host memory; there are {present / GIB:.0f} GiB"


_RULES = (_heads, _kv_heads, _layers, _gpus, _experts, _blocks, _capability, _lengths, _host_memory)
