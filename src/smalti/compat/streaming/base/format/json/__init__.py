"""JSON shards: their reader, writer and encodings, each name imported on first use."""

from smalti.compat.streaming.lazy import lazy_package

__all__ = ["JSONReader", "JSONWriter"]

__getattr__, __dir__ = lazy_package(
    __name__, {"JSONReader": "reader", "JSONWriter": "writer"}, ("encodings", "reader", "writer")
)
