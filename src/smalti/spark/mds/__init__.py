"""MDS as a data source of Spark: `format("mds")` reads, writes and streams into shard sets.

`options` reads the options, `reading` and `writing` have one direction each, and `source` has the class that Spark
knows. PySpark 4.0 or later is needed; it is imported by the modules, so import them only when it is there.
"""
