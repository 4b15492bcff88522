"""Those who are compared, each behind the same few methods; one module per library, imported only where it runs."""

from benchmarks.peers.interface import ImageOptions, OrderOptions, Peer, ReadOptions, Unsupported, WriteOptions
from benchmarks.peers.registry import KNOWN, Known, distributions, find, is_installed

__all__ = [
    "KNOWN",
    "ImageOptions",
    "Known",
    "OrderOptions",
    "Peer",
    "ReadOptions",
    "Unsupported",
    "WriteOptions",
    "distributions",
    "find",
    "is_installed",
]
