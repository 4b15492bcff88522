"""Shard sets opened for reading: declared (`Stream`), found (`ShardSet`), read as one run of samples (`OpenStreams`).

This package connects manifests, stores and one cache. It does not decide which sample is read when (`smalti.order`),
nor how shards are fetched and evicted (`smalti.cache`). Read `opened` first.
"""

from smalti.stream.opened import OpenStreams, Version, open_streams
from smalti.stream.shard_set import ShardSet
from smalti.stream.stream import Stream, StreamOptions, options_of

__all__ = ["OpenStreams", "ShardSet", "Stream", "StreamOptions", "Version", "open_streams", "options_of"]
