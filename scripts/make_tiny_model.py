"""Write a 23M-parameter Llama with random weights and a byte-level BPE tokenizer: `make_tiny_model.py DIRECTORY`.

Runs in vLLM's Python, which brings torch, safetensors and tokenizers; nothing is fetched. The tokenizer is trained on
Python's own standard library, text that is everywhere. The weights come from a fixed seed.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<s>", "</s>", "<unk>", "<pad>"]
VOCAB = 8192
HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 512, 6, 8, 4, 1536
MAX_LENGTH = 4096
SEED = 1
INIT_STD = 0.02

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,
    "intermediate_size": INTERMEDIATE,
    "vocab_size": VOCAB,
    "max_position_embeddings": MAX_LENGTH,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 3,
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "mlp_bias": False,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "model_max_length": MAX_LENGTH,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE of exactly VOCAB tokens, trained on the top modules of the standard library."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in sources], trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {VOCAB}: too little text")
    return tokenizer


def shapes() -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight, as the Llama checkpoint format names them; the head is tied to the embedding."""
    head = HIDDEN // HEADS
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (HEADS * head, HIDDEN),
        "self_attn.k_proj.weight": (KV_HEADS * head, HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * head, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * head),
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    named = {f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    return {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), **named}


def weights() -> dict[str, torch.Tensor]:
    """Random weights from SEED; norms are ones."""
    generator = torch.Generator().manual_seed(SEED)
    return {
        name: (torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * INIT_STD).bfloat16()
        for name, shape in shapes().items()
    }


def write_model(directory: Path) -> int:
    """Write the model to `directory` and return its number of parameters."""
    tensors = weights()
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
    train_tokenizer().save(str(directory / "tokenizer.json"))
    texts = {
        "config.json": CONFIG,
        "tokenizer_config.json": TOKENIZER_CONFIG,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
    }
    for name, content in texts.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")
    return sum(tensor.numel() for tensor in tensors.values())


def main() -> None:
    """Write to a temporary directory beside the target, then put it in place."""
    target = Path(sys.argv[1])
    if target.exists():
        for old in target.iterdir():
            old.unlink()
        target.rmdir()
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        parameters = write_model(made)
        made.rename(target)
    print(f"{target}: {parameters / 1e6:.1f} million parameters, {VOCAB} tokens")


if __name__ == "__main__":
    main()
