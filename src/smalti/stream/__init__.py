"""Shard sets that are read: declared (`Stream`), and opened as one run of samples (`OpenStreams`).

Wiring only: manifests, stores and one cache. Which sample is read when is `smalti.order`'s.
"""

from smalti.stream.declared import Stream
from smalti.stream.opened import OpenStreams, open_streams
from smalti.stream.options import StreamOptions
from smalti.stream.shard_set import ShardSet

__all__ = ["OpenStreams", "ShardSet", "Stream", "StreamOptions", "open_streams"]
