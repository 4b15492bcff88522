"""New versions of a set that reuse the shards of the last one: changed files re-sharded, columns added.

Writing a whole DataFrame is in `writing`; compaction, which needs no Spark, is in `smalti.writer`. Read `reshard.py`
first.
"""
