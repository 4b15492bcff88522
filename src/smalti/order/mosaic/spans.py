"""Spans of sample ids: shards laid end to end in some order, cut where a canonical node ends.

All of MosaicML's shuffles but `naive` begin with them. Here they are arrays instead of lists of pairs. The only
randomness is in the permutations drawn by the caller's generators.
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
    """Return int32 if it holds range(count), which halves the memory, else int64."""
    return np.int32 if count <= _INT32_IDS else np.int64


def expand(firsts: Ints, sizes: Ints, dtype: DTypeLike) -> Ids:
    """Return the ranges [first, first + size), one after the other; shape (sizes.sum(),). Uses no further memory."""
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
    """Shards, or parts of them, in layout order, divided among canonical nodes."""

    firsts: Ints
    """First place of every span in the layout (for sample ids: the first id)."""
    sizes: Ints
    """Places of every span."""
    bounds: list[int]
    """Node c holds the spans [bounds[c], bounds[c + 1])."""

    @property
    def ends(self) -> list[int]:
        """The end of every span, laid one after the other, after a leading 0."""
        return [0, *np.cumsum(self.sizes).tolist()]

    def shuffled_within_nodes(self, rng: np.random.Generator) -> "Spans":
        """Return the same spans, those of every node in an order drawn by `rng`, node by node."""
        order = np.arange(self.sizes.size)
        for begin, end in pairwise(self.bounds):
            rng.shuffle(order[begin:end])
        return Spans(self.firsts[order], self.sizes[order], self.bounds)


def cut_at_nodes(firsts: Ints, sizes: Ints, canonical_nodes: int) -> Spans:
    """Return spans laid end to end and cut so that canonical node c of C holds the places [c*N/C, (c+1)*N/C).

    A span is cut only where a node ends inside it; an empty span at a boundary belongs to the earlier node.

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
