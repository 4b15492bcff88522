"""Shard sets that are read: declared (`Stream`), and opened as one run of samples (`OpenStreams`).

Wiring only: manifests, stores and one cache. Which sample is read when is `smalti.order`'s.
"""

from smalti.stream.declared import Stream, options_of, weight_of
from smalti.stream.opened import OpenStreams, Version, open_streams
from smalti.stream.options import StreamOptions
from smalti.stream.shard_set import ShardSet

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
