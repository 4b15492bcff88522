"""Spans of sample ids: shards laid end to end in some order, cut where a canonical node ends.

What all of MosaicML's shuffles but `naive` begin with, on arrays instead of lists of pairs. No randomness belongs here
but the permutations that the caller's generators draw.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Ints = NDArray[np.int64]
Ids = NDArray[np.integer[Any]]

_INT32_IDS = 1 << 31


def narrow_dtype(count: int) -> DTypeLike:
    """The smaller of int32 and int64 that holds range(count): half the memory where half of it is enough."""
    return np.int32 if count <= _INT32_IDS else np.int64


def expand(firsts: Ints, sizes: Ints, dtype: DTypeLike) -> Ids:
    """The ranges [first, first + size), one after the other; shape (sizes.sum(),). Takes no memory but the answer's."""
    held = sizes > 0
    firsts, sizes = firsts[held], sizes[held]
    steps = np.ones(int(sizes.sum()), dtype=dtype)
    if steps.size:
        begins = np.cumsum(sizes) - sizes
        steps[0] = firsts[0]
        steps[begins[1:]] = firsts[1:] - (firsts[:-1] + sizes[:-1] - 1)
        np.cumsum(steps, dtype=dtype, out=steps)
    return steps


@dataclass(frozen=True, eq=False)
class Spans:
    """Shards, or parts of them, in the order in which they lie, divided among canonical nodes."""

    firsts: Ints
    """Of every span: its first place in what was laid out (for sample ids: the first id)."""
    sizes: Ints
    """Of every span: how many."""
    bounds: list[int]
    """Node c holds the spans [bounds[c], bounds[c + 1])."""

    @property
    def ends(self) -> list[int]:
        """Where every span ends when they lie one after the other, after a leading 0."""
        return [0, *np.cumsum(self.sizes).tolist()]

    def shuffled_within_nodes(self, rng: np.random.Generator) -> "Spans":
        """The same spans, those of every node in an order that `rng` draws, node by node."""
        order = np.arange(self.sizes.size)
        for begin, end in pairwise(self.bounds):
            rng.shuffle(order[begin:end])
        return Spans(self.firsts[order], self.sizes[order], self.bounds)


def cut_at_nodes(firsts: Ints, sizes: Ints, canonical_nodes: int) -> Spans:
    """Spans laid end to end and cut so that canonical node c of C holds the places [c*N/C, (c+1)*N/C).

    A span is cut only where a node ends inside of it; an empty one belongs to the earlier node of a boundary.

        laid out     | shard 2 | shard 0 |      shard 1       |     4, 6 and 12 samples; the boundary at place 11
        two nodes    | shard 2 | shard 0 | 1 |    shard 1     |
                     -------- node 0 ------- | --- node 1 ----
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    node_ends = np.array([total * (node + 1) // canonical_nodes for node in range(canonical_nodes)], dtype=np.int64)
    inner = np.unique(node_ends[(node_ends > 0) & (node_ends < total)])
    owners = np.searchsorted(ends, inner)
    cut = ends[owners] != inner
    inner, owners = inner[cut], owners[cut]
    piece_ends = np.insert(ends, owners, inner)
    piece_begins = np.concatenate(([0], piece_ends))[: piece_ends.size]
    span_of = np.insert(np.arange(sizes.size), owners, owners)
    piece_firsts = firsts[span_of] + piece_begins - (ends - sizes)[span_of]
    bounds = [0, *np.searchsorted(piece_ends, node_ends, side="right").tolist()]
    return Spans(piece_firsts, piece_ends - piece_begins, bounds)
