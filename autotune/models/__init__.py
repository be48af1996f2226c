"""Models of LLM serving (not the LLMs): what can be known without an engine."""
