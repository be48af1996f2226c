"""One module a format: its name with dashes is the format's, its function `export` the exporter."""
