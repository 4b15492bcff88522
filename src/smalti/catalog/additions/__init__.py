"""Data that versions have next to their shards: columns that were added later, and the source files of the rows.

Each is an entry of a header's `sidecars`, with objects of its own below a write id. Here are the entries and their
tables; the Spark jobs that make them are in `smalti.spark.incremental`. Read `columns` first.
"""
