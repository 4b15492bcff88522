"""The assets of a data set, a module each, and the op that makes the first of them, here or on a cluster.

Read `raw`, `prepared`, `shards` and `model`, in this order: each is configuration, one library call, and metadata.
`data` makes the first three one op, `running` runs a stage. The input and the result of a stage are in `assets.stage`.
"""
