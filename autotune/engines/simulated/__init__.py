"""An engine that computes nothing: in virtual time (`engine`, `virtual`), or as a process that speaks like vLLM."""
