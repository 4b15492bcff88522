"""Parquet files as a set whose shards are row groups: places, footers, logs of Delta, rows."""
