"""The search stage: trial records in, the next candidate out, through Optuna."""
