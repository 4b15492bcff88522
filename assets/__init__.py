"""The data sets of this deployment in Python, one module each.

`flowers` builds its assets one by one, from images that `drawing` draws by default. `tokens` has the functions that
`pipelines/defs/tokens/defs.yaml` names.
"""
