"""Cursor: the place that a run has reached in its data. Small, JSON-able, the same on every rank.

It holds everything that determines the order, but not the order itself (`smalti.order`). A saved cursor is untrusted
input: every field is checked when it is loaded. Read `place` first.
"""

from smalti.cursor.place import (
    MAX_BLOCK,
    MAX_CANONICAL_NODES,
    MAX_SEED,
    MAX_WEIGHT,
    ORDER_VERSIONS,
    WEIGHT_NAMES,
    WINDOW,
    Cursor,
    MixedStream,
    Mixture,
    Weight,
    Weights,
)

__all__ = [
    "MAX_BLOCK",
    "MAX_CANONICAL_NODES",
    "MAX_SEED",
    "MAX_WEIGHT",
    "ORDER_VERSIONS",
    "WEIGHT_NAMES",
    "WINDOW",
    "Cursor",
    "MixedStream",
    "Mixture",
    "Weight",
    "Weights",
]
