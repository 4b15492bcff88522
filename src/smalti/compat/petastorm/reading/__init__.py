"""Parquet files as a set whose shards are row groups: places, footers, Delta's logs, and the reader of batches."""
