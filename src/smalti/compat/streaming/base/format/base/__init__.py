"""Base classes of the readers and writers of all formats, each name imported on first use."""

from typing import TYPE_CHECKING

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming.base.format.base import reader as reader
    from smalti.compat.streaming.base.format.base import writer as writer
    from smalti.compat.streaming.base.format.base.reader import FileInfo as FileInfo
    from smalti.compat.streaming.base.format.base.reader import Reader as Reader

__all__ = ["FileInfo", "Reader"]

__getattr__, __dir__ = lazy_package(__name__, {"FileInfo": "reader", "Reader": "reader"}, ("reader", "writer"))
