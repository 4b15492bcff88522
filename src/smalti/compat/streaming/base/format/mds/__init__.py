"""MDS shards: their reader, writer and encodings, each name imported on first use."""

from typing import TYPE_CHECKING

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming.base.format.mds import encodings as encodings
    from smalti.compat.streaming.base.format.mds import reader as reader
    from smalti.compat.streaming.base.format.mds import writer as writer
    from smalti.compat.streaming.base.format.mds.reader import MDSReader as MDSReader
    from smalti.compat.streaming.base.format.mds.writer import MDSWriter as MDSWriter

__all__ = ["MDSReader", "MDSWriter"]

__getattr__, __dir__ = lazy_package(
    __name__, {"MDSReader": "reader", "MDSWriter": "writer"}, ("encodings", "reader", "writer")
)
