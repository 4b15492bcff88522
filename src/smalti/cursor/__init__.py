"""Cursor: where a run stands in its data. Small, JSON, the same on every rank; it holds no order, only what fixes it.

A saved cursor is input: every field is checked before it is believed.
"""

from smalti.cursor.mixture import MOST_WEIGHT, WEIGHT_NAMES, MixedStream, Mixture, Weights
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
    "MOST_WEIGHT",
    "ORDER_VERSIONS",
    "WEIGHT_NAMES",
    "WINDOW",
    "Cursor",
    "MixedStream",
    "Mixture",
    "Weights",
]
