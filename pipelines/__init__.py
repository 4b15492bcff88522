"""The code location of this deployment: its data sets below `defs/`, and the demo.

Read `definitions` first. The data sets in Python are in `assets`; storage, Spark and trainer are in `resources`.
"""
