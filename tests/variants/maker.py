"""A command that makes a checkpoint, or fails to: `maker.py MODEL OUTPUT [how]`. Standard library only.

It writes down each start in `$MAKER_STARTS`, so that tests can count them.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "fp8"},
}


def weights(path: Path, values: int = 8) -> None:
    """Write a safetensors file of one tensor."""
    header = json.dumps({"weight": {"dtype": "I8", "shape": [values], "data_offsets": [0, values]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(values))


def checkpoint(folder: Path) -> None:
    """Write what every engine would load."""
    (folder / "tokenizer.json").write_text("{}")
    weights(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))


def main() -> None:
    """Make it as `how` says."""
    output, how = Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "well"
    if starts := os.environ.get("MAKER_STARTS"):
        with Path(starts).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (output / "half").write_text("done so far")
        time.sleep(600)
    if how == "fails":
        sys.stderr.write("loading\n")
        sys.exit("Traceback (most recent call last):\nValueError: group size 128 does not divide 100")
    if how == "disk-full":
        sys.exit("OSError: [Errno 28] No space left on device")
    if how == "cut-off":
        checkpoint(output)
        data = (output / "model.safetensors").read_bytes()
        (output / "model.safetensors").write_bytes(data[:-1])
        return
    if how == "hangs-once" and not (output / "half").exists():
        (output / "half").write_text("done so far")
        time.sleep(600)
    (output / "seen").write_text(str(sorted(path.name for path in output.iterdir())))
    checkpoint(output)


if __name__ == "__main__":
    main()
