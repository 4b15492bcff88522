"""Base classes of the readers and writers of all formats, and the places at which sets appear. Read `reader` first."""

from smalti.compat.streaming.base.format.base.reader import FileInfo, Reader

__all__ = ["FileInfo", "Reader"]
