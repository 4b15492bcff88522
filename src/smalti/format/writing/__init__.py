"""Writing shards: from samples or Arrow batches to the bytes of finished files, in memory.

Storing the files stands in `smalti.writer`. Read `builder` first (samples to filled shards), then `sealing` (filled
shards to files); `rows` encodes single samples, `arrow` whole columns.
"""
