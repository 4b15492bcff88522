"""The store of prepared images: versions of a table of Parquet parts, its pointers, and its vacuum.

Preparing images is in `spark.prepare`; shard sets are made of this table by `reshard.py`. Read `table.py` first.
"""
