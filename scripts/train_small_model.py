"""Train a small Llama on sentences of a grammar of ours, so that its answers mean something: `train_small_model.py DIR`

Runs in vLLM's Python, which brings torch, safetensors and tokenizers; nothing is fetched. Random weights answer noise
with noise, which hides what quantisation or a damaged checkpoint does; this one knows its grammar after some minutes on
a CPU. Writes the model, and `prompts.txt` beside it: sentences of the same grammar that it was not trained on.
`--damage` writes a copy whose weights are partly shuffled, as a broken conversion leaves them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import shutil
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional

SPECIAL = ["<s>", "</s>", "<unk>", "<pad>"]
VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 1024, 128, 4, 4, 2, 384
HEAD = HIDDEN // HEADS  # 32, the least that vLLM's attention takes on a CPU
MAX_LENGTH = 1024
ROPE_THETA, NORM_EPS, INIT_STD = 10_000.0, 1e-5, 0.02
SEED = 1
TEXT_CHARS, HELD_OUT_CHARS = 1_500_000, 20_000
BATCH, CONTEXT, PEAK_RATE, WARMUP_STEPS = 32, 128, 3e-3, 40
SENTENCES_A_PROMPT, PROMPTS = 4, 48
DAMAGED_LAYER = 2

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "intermediate_size": INTERMEDIATE,
    "vocab_size": VOCAB,
    "max_position_embeddings": MAX_LENGTH,
    "rms_norm_eps": NORM_EPS,
    "rope_theta": ROPE_THETA,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 3,
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "mlp_bias": False,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "model_max_length": MAX_LENGTH,
    "clean_up_tokenization_spaces": False,
}


def grammar() -> ModuleType:
    """`autotune.load.english` by its file: vLLM's Python has no autotune."""
    path = Path(__file__).parents[1] / "autotune/load/english.py"
    spec = importlib.util.spec_from_file_location("english", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_tokenizer(text: str) -> Tokenizer:
    """A byte-level BPE of at most VOCAB tokens: it can write any text, and the grammar's words are mostly one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


# --- the model --------------------------------------------------------------------------------------------------------

Weights = dict[str, torch.Tensor]


def shapes() -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight, as the Llama checkpoint format names them; the head is tied to the embedding."""
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
        "self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    named = {f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    return {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), **named}


def initial_weights() -> Weights:
    generator = torch.Generator().manual_seed(SEED)
    return {
        name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * INIT_STD)
        for name, shape in shapes().items()
    }


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (HIDDEN,), weight, NORM_EPS)


def rotation(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of rotary embeddings, in the half-split form that Llama checkpoints use."""
    frequencies = ROPE_THETA ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attention(weights: Weights, layer: str, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    batch, length, _ = x.shape

    def heads(which: str, count: int) -> torch.Tensor:
        return (
            (x @ weights[f"{layer}.self_attn.{which}_proj.weight"].T).view(batch, length, count, HEAD).transpose(1, 2)
        )

    q, k = rotated(heads("q", HEADS), *turn), rotated(heads("k", KV_HEADS), *turn)
    mixed = functional.scaled_dot_product_attention(q, k, heads("v", KV_HEADS), is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).reshape(batch, length, HIDDEN) @ weights[f"{layer}.self_attn.o_proj.weight"].T


def logits(weights: Weights, ids: torch.Tensor) -> torch.Tensor:
    x, turn = weights["model.embed_tokens.weight"][ids], rotation(ids.shape[1])
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        x = x + attention(weights, layer, normed(x, weights[f"{layer}.input_layernorm.weight"]), turn)
        h = normed(x, weights[f"{layer}.post_attention_layernorm.weight"])
        gate = functional.silu(h @ weights[f"{layer}.mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ weights[f"{layer}.mlp.up_proj.weight"].T)) @ weights[f"{layer}.mlp.down_proj.weight"].T
    return normed(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T


def loss_of(weights: Weights, ids: torch.Tensor) -> torch.Tensor:
    """Mean negative log-probability of each token after those before it, in nats."""
    return functional.cross_entropy(logits(weights, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def train(ids: torch.Tensor, steps: int) -> Weights:
    weights = initial_weights()
    for weight in weights.values():
        weight.requires_grad_()
    optimiser = torch.optim.AdamW(list(weights.values()), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator().manual_seed(SEED)
    offsets = torch.arange(CONTEXT + 1)
    for step in range(steps):
        rate = min(1.0, (step + 1) / WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.param_groups[0]["lr"] = PEAK_RATE * rate
        starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH, 1), generator=generator)
        loss = loss_of(weights, ids[starts + offsets])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
        if step % 50 == 0:
            print(f"step {step}: perplexity {math.exp(loss.item()):.1f}", flush=True)
    return {name: weight.detach() for name, weight in weights.items()}


def held_out_perplexity(weights: Weights, ids: torch.Tensor) -> float:
    rows = ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    with torch.no_grad():
        return math.exp(loss_of(weights, rows).item())


# --- files ------------------------------------------------------------------------------------------------------------


def prompts(module: ModuleType, rng: np.random.Generator) -> list[str]:
    """Some sentences each, the last one broken off in its middle, where a model has to go on."""
    found = []
    for _ in range(PROMPTS):
        whole = " ".join(module.sentences(rng, 1) for _ in range(SENTENCES_A_PROMPT))
        words = whole.split(" ")
        found.append(" ".join(words[: len(words) - int(rng.integers(2, 5))]))
    return found


def write_model(directory: Path, weights: Weights, tokenizer: Tokenizer, lines: list[str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.bfloat16() for name, weight in weights.items()}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    texts = {
        "config.json": CONFIG,
        "tokenizer_config.json": TOKENIZER_CONFIG,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
    }
    for name, content in texts.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")
    (directory / "prompts.txt").write_text("\n".join(lines) + "\n")


def damage(source: Path, target: Path) -> None:
    """A copy of a model in which the rows of one layer's output projections are in another order: every file is whole,
    every shape is right, and what the model says is not."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    tensors = load_file(str(source / "model.safetensors"))
    generator = torch.Generator().manual_seed(SEED)
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        name = f"model.layers.{DAMAGED_LAYER}.{part}.weight"
        tensors[name] = tensors[name][torch.randperm(HIDDEN, generator=generator)].contiguous()
    save_file(tensors, str(target / "model.safetensors"), metadata={"format": "pt"})


def build(directory: Path, steps: int) -> None:
    begun = time.monotonic()
    module, rng = grammar(), np.random.default_rng(SEED)
    text = module.sentences(rng, TEXT_CHARS)
    tokenizer = train_tokenizer(text)
    ids = torch.tensor(tokenizer.encode(text).ids)
    weights = train(ids, steps)
    held_out = torch.tensor(tokenizer.encode(module.sentences(rng, HELD_OUT_CHARS)).ids)
    perplexity = held_out_perplexity(weights, held_out)
    write_model(directory, weights, tokenizer, prompts(module, rng))
    parameters = sum(weight.numel() for weight in weights.values())
    print(
        f"{directory}: {parameters / 1e6:.2f} million parameters, {steps} steps in {time.monotonic() - begun:.0f} s, "
        f"perplexity {perplexity:.2f} on text it has not seen (uniform: {VOCAB})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=600, help="batches of 32 times 128 tokens")
    parser.add_argument("--damage", type=Path, metavar="DIR", help="copy DIR with some of its weights shuffled instead")
    options = parser.parse_args()
    if options.damage is not None:
        damage(options.damage, options.directory)
    else:
        build(options.directory, options.steps)


if __name__ == "__main__":
    main()
