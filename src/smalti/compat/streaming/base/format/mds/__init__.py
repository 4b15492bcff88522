"""MDS shards: their reader, writer and encodings, each name imported on first use."""

from smalti.compat.streaming.lazy import lazy_package

__all__ = ["MDSReader", "MDSWriter"]

__getattr__, __dir__ = lazy_package(
    __name__, {"MDSReader": "reader", "MDSWriter": "writer"}, ("encodings", "reader", "writer")
)
