"""Prepared images: versions of the catalogue whose files are Parquet.

Preparing images is in `spark.prepare`; shard sets are made of a version by `rows`. Read `table` first.
"""
