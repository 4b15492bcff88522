"""CanonicalOrder: the order of ids in MosaicML's partition before a world divides it. Arithmetic, no arrays.

N ids are cut into C canonical nodes, and one id is taken from each node in turn. N = 22, C = 4, one host:

    place        0   1   2   3 |  4   5   6   7 | ... | 16  17  18  19 | 20  21  22  23
    node         0   1   2   3 |  0   1   2   3 | ... |  0   1   2   3 |  0   1   2   3
    id           0   5  11  16 |  1   6  12  17 | ... |  4   9  15  20 |  4*  10  15* 21      * a repeat

A node with fewer ids than the longest repeats its last one. With more hosts than canonical nodes, rows are added so
that each node's ids can be shared evenly among its hosts; added rows repeat earlier ids.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from smalti.errors import WorldMismatch
from smalti.order.mosaic.spans import Ints

RowT = TypeVar("RowT", int, Ints)


@dataclass(frozen=True)
class CanonicalOrder:
    """The id at each of `len(order)` places; C divides the hosts, or the hosts divide C."""

    num_samples: int
    """Ids, N, from 1."""
    canonical_nodes: int
    """Nodes that the ids are cut into, C."""
    hosts: int
    """Physical nodes; they determine the number of added rows, and nothing else."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "canonical_nodes", "hosts"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, found {getattr(self, name)}.")
        if not divides(self.canonical_nodes, self.hosts):
            raise WorldMismatch(
                f"{self.canonical_nodes} canonical nodes cannot be divided among {self.hosts} hosts: one number must "
                "divide the other. Use another number of hosts, or, when resuming, the partition 'relaxed'.",
                canonical_nodes=self.canonical_nodes,
                hosts=self.hosts,
            )
        if self.added_rows and not self.is_tiny and self._source(self.longest) < 0:
            raise WorldMismatch(
                f"{self.num_samples} samples of {self.canonical_nodes} canonical nodes are too few to be shared by "
                f"{self.hosts} hosts; use fewer hosts, or as many canonical nodes as hosts.",
                num_samples=self.num_samples,
                canonical_nodes=self.canonical_nodes,
                hosts=self.hosts,
            )

    def __len__(self) -> int:
        return self.canonical_nodes * self.rows

    @cached_property
    def hosts_per_node(self) -> int:
        """Hosts that share one canonical node, if there are more hosts than nodes; else 1."""
        return max(1, self.hosts // self.canonical_nodes)

    @cached_property
    def longest(self) -> int:
        """Ids of the longest canonical node."""
        return -(-self.num_samples // self.canonical_nodes)

    @cached_property
    def added_rows(self) -> int:
        """Rows of repeats that make each node's ids divisible among its hosts."""
        return -self.longest % self.hosts_per_node

    @cached_property
    def rows(self) -> int:
        """Places of one canonical node."""
        return self.longest + self.added_rows

    @cached_property
    def is_tiny(self) -> bool:
        """True if there are too few ids to be cut into nodes: the places then go round all ids repeatedly."""
        few = self.num_samples < self.canonical_nodes
        return few or (self.num_samples == self.canonical_nodes and self.canonical_nodes < self.hosts)

    def ids_at(self, places: Ints) -> Ints:
        """Return the ids at the given places, each in [0, len(order))."""
        row, node = np.divmod(places, self.canonical_nodes)
        if self.is_tiny:
            return (node * self.rows + row) % self.num_samples
        begin, size = self._node(node)
        if self.added_rows:
            row = np.where(row < self.longest, row, self._source(row))
        return begin + np.minimum(row, size - 1)

    def is_repeat(self, places: Ints) -> NDArray[np.bool_]:
        """Return, for each place, whether its id is a repeat that also occurs at another place."""
        row, node = np.divmod(places, self.canonical_nodes)
        if self.is_tiny:
            return node * self.rows + row >= self.num_samples
        return row >= self._node(node)[1]

    def _node(self, node: Ints) -> tuple[Ints, Ints]:
        begin = node * self.num_samples // self.canonical_nodes
        return begin, (node + 1) * self.num_samples // self.canonical_nodes - begin

    def _source(self, row: RowT) -> RowT:
        """Return the row that an added row repeats."""
        return row - self.added_rows - self.hosts_per_node + 1


def divides(one: int, other: int) -> bool:
    """Return whether one of two numbers is a multiple of the other."""
    return one % other == 0 or other % one == 0
