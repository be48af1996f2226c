"""What the search itself takes: seconds over a quickstart, milliseconds a choice at 1,000 trials."""
