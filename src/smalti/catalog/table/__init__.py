"""The table of a version's shards: its Arrow file, and `ShardTable`, which creates shards from its rows on demand.

Knows no versions. Read `shard_table` first, then `arrow` for the file, `content` for how it is read and checked.
"""
