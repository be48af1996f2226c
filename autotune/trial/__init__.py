"""One trial: launch, load, measure, judge, stop; and its record on disk."""
