"""Shards on this machine: mapped in place or fetched, verified before use, shared by all processes of the host.

Here: the local copies, their locks, downloads and open maps. Not here: which versions there are (`smalti.catalog`),
what a shard's bytes mean (`smalti.format`), which shard is needed when (`smalti.order`).
"""

from smalti.cache.options import CacheOptions
from smalti.cache.shards import ShardCache, Source

__all__ = ["CacheOptions", "ShardCache", "Source"]
