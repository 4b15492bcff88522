"""Shard sets that are read: declared (`Stream`), and opened as one run of samples (`OpenStreams`).

Wiring only: manifests, stores and one cache. Which sample is read when is `smalti.order`'s.
"""

from smalti.stream.opened import OpenStreams, Version, open_streams
from smalti.stream.shard_set import ShardSet
from smalti.stream.stream import Stream, StreamOptions, options_of, weight_of

__all__ = [
    "OpenStreams",
    "ShardSet",
    "Stream",
    "StreamOptions",
    "Version",
    "open_streams",
    "options_of",
    "weight_of",
]
