"""Rows of tables as a version of a shard set: the common part of `convert` and `dataframe_to_mds`.

`columns`, `types` and `values` decide how columns are stored; `plan` has options, output schema and plan of a write,
`task` writes one part of the rows, and `versions` has the other steps of a write. Where rows come from and which
processes run the tasks is in `smalti.conversion` and `smalti.spark`. Read `versions.py` first.
"""
