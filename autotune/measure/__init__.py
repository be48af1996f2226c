"""The measure stage: request records in, figures with intervals out."""
