"""JSON shards: their reader, writer and encodings, each name imported on first use."""

from typing import TYPE_CHECKING

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming.base.format.json import encodings as encodings
    from smalti.compat.streaming.base.format.json import reader as reader
    from smalti.compat.streaming.base.format.json import writer as writer
    from smalti.compat.streaming.base.format.json.reader import JSONReader as JSONReader
    from smalti.compat.streaming.base.format.json.writer import JSONWriter as JSONWriter

__all__ = ["JSONReader", "JSONWriter"]

__getattr__, __dir__ = lazy_package(
    __name__, {"JSONReader": "reader", "JSONWriter": "writer"}, ("encodings", "reader", "writer")
)
