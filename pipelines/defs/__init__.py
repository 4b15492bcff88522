"""The data sets: `flowers` of `assets.flowers`, and a folder with a `defs.yaml` for each that is declared in YAML."""
