"""Base classes of the readers and writers of all formats, each name imported on first use."""

from smalti.compat.streaming.lazy import lazy_package

__all__ = ["FileInfo", "Reader"]

__getattr__, __dir__ = lazy_package(__name__, {"FileInfo": "reader", "Reader": "reader"}, ("reader", "writer"))
