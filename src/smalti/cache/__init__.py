"""Shards on this machine: mapped in place or fetched, verified before use, shared by all processes of the host.

Here: local copies with their limit, locks and leases, transfers from the store, open maps, and figures about all of
this. Not here: which versions there are (`smalti.catalog`), what the bytes of a shard mean (`smalti.format`), and which
shard is needed when (`smalti.order`). Read `cache.py` first: a numbered list of its intended behaviour, and the
order in which modules call one another.
"""

from smalti.cache.cache import ShardCache
from smalti.cache.eviction import default_cache_limit
from smalti.cache.leases import Outline, Uses, least_bytes
from smalti.cache.mapping import with_descriptors
from smalti.cache.sources import CacheOptions, ShardSource
from smalti.cache.stats import CacheStats, Counters, StepWaits, stats_of

__all__ = [
    "CacheOptions",
    "CacheStats",
    "Counters",
    "Outline",
    "ShardCache",
    "ShardSource",
    "StepWaits",
    "Uses",
    "default_cache_limit",
    "least_bytes",
    "stats_of",
    "with_descriptors",
]
