"""autotune: finds the serving configuration of an LLM inference engine that does best under an SLO."""

__version__ = "0.1.0"
