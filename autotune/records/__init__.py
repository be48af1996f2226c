"""The frozen types that cross stages: `spec` (what is asked), `metrics` (what is measured), `trial` (what came out)."""
