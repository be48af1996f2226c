"""The SLO stage: a measurement in, a verdict out."""
