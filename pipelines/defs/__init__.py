"""The declared data sets: a folder with a `defs.yaml` for each."""
