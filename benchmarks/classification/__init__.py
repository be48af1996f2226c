"""How well the rules of failures.yaml tell what to do about an engine that failed."""
