"""The code location: declared data sets below `defs/`, the component that builds their definitions, and the stages.

Read `definitions` first, then `data_set`. What an asset does is in `assets`; credentials and places are in `resources`.
"""
