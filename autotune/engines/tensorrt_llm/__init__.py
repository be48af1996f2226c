"""The TensorRT-LLM engine: `trtllm-serve` on the PyTorch backend, every tunable in one options file."""
