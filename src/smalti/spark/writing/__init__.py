"""`dataframe_to_mds`: a DataFrame as a version of a shard set, written by Spark's executors.

Committing versions is in `smalti.catalog`, and encoding shards in `smalti.format`. Read `dataframe.py` first: it has
the whole pipeline, and each of its steps is a function there, or of `smalti.writer.tables.versions`.
"""
