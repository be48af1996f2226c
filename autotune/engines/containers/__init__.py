"""Engines in containers: run line, client of the runtime, keeper of one container, failures, what the dead left."""
