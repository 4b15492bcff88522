"""Reading uncompressed shards on local disk: single samples, and batches by column.

Fetching, unpacking and caching stand in `smalti.cache`. Read `shard` first (one sample), then `batch` (columns of many
samples), `files` (the numpy under it) and `joining` (several shards as one); text shards stand in `text`.
"""
