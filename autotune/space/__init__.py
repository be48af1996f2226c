"""The space stage: a `SpaceSpec` in, candidates that pass every rule out."""
