"""Our load client against `vllm bench serve` on a real vLLM."""
