"""The declared data sets: a folder with a `defs.yaml` for each, and the functions that it names."""
