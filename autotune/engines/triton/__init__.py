"""Triton Inference Server with TensorRT-LLM's LLM API backend, behind its OpenAI-compatible frontend."""
