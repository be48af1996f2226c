"""The engines stage: a candidate in, a live server out, and nothing left behind."""
