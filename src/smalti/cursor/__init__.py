"""Cursor: where a run stands in its data. Small, JSON, the same on every rank; it holds no order, only what fixes it.

A saved cursor is input: every field is checked before it is believed.
"""

from smalti.cursor.mixture import MixedStream, Mixture, Weights
from smalti.cursor.place import (
    MOST_BLOCK,
    MOST_CANONICAL_NODES,
    MOST_SEED,
    ORDER_VERSIONS,
    WINDOW,
    Cursor,
)

__all__ = [
    "MOST_BLOCK",
    "MOST_CANONICAL_NODES",
    "MOST_SEED",
    "ORDER_VERSIONS",
    "WINDOW",
    "Cursor",
    "MixedStream",
    "Mixture",
    "Weights",
]
