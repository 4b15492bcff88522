"""Shards on this machine: mapped in place or fetched, verified before use, shared by all processes of the host.

Here: the local copies, their locks, downloads and open maps. Not here: which versions there are (`smalti.catalog`),
what a shard's bytes mean (`smalti.format`), which shard is needed when (`smalti.order`).
"""

from smalti.cache.cache import ShardCache, Source
from smalti.cache.descriptors import with_descriptors
from smalti.cache.eviction import least_bytes
from smalti.cache.free_share import default_cache_limit
from smalti.cache.next_use import Uses
from smalti.cache.options import CacheOptions
from smalti.cache.stats import CacheStats, Counters, StepWaits, stats_of

__all__ = [
    "CacheOptions",
    "CacheStats",
    "Counters",
    "ShardCache",
    "Source",
    "StepWaits",
    "Uses",
    "default_cache_limit",
    "least_bytes",
    "stats_of",
    "with_descriptors",
]
