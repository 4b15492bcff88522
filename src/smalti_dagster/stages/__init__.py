"""The assets of a data set up to its shards, a module each, and the op that makes them, here or on a cluster.

Read `raw`, `prepared` and `shards`, in this order: each is configuration, one library call, and metadata. `data` makes
the three one op, `running` runs a stage. The input and the result of a stage are in `smalti_dagster.stage`.
"""
