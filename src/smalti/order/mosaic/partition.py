"""MosaicML's partitions, `orig` and `relaxed`: the id at each position of an epoch, for one world.

Positions are counted as in `smalti.order.Division`, which therefore divides them as MosaicML does: position p goes to
host p % H, and a host's n-th position from the start on to its rank n % R. Step s is then the span
[start + s*B, start + (s+1)*B) of the canonical order for the global batch B, in every world. Only the tail depends on
the world: positions are added there that repeat earlier ids:

    canonical order   | step 0 | step 1 | ... | last step, incomplete |
    world of 3 ranks  | step 0 | step 1 | ... | last step .. + 0 to 2 repeats of each host |

`relaxed` also continues in a world whose hosts neither divide the canonical nodes nor are divided by them: every global
batch is then the one that the first world would have read, divided differently. Its last one may be uneven: positions
with id -1 are empty, and a rank may end with fewer samples than others or one step early, which MosaicML does not
prevent.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from smalti.errors import CursorError, WorldMismatch
from smalti.order.mosaic.canonical import CanonicalOrder, divides
from smalti.order.mosaic.shape import WorldShape
from smalti.order.mosaic.spans import Ints

PARTITIONS = ("orig", "relaxed")


@dataclass(frozen=True)
class Partition:
    """Ids by position, in [0, len(partition)); positions before `start` were read before."""

    order: CanonicalOrder
    """The order that is partitioned."""
    shape: WorldShape
    """The world that reads."""
    start: int
    """First position that is read: samples consumed before."""
    dealt_as: WorldShape
    """The world that the order is partitioned for: `shape`, or the first world of the run."""

    @cached_property
    def _host_samples(self) -> int:
        """Places of every host of `dealt_as` from the start on."""
        return max(0, len(self.order) - self.start) // self.dealt_as.hosts

    @cached_property
    def _rank_samples(self) -> int:
        """Places of every rank from the start on, including repeats that pad."""
        return -(-self._host_samples // self.dealt_as.ranks_on_host)

    @property
    def num_steps(self) -> int:
        """Steps from the start; the last one may be incomplete."""
        return -(-self._rank_samples // self.dealt_as.batch_size)

    @property
    def full_steps(self) -> int:
        """Steps from the start in which no rank lacks a sample."""
        return self._rank_samples // self.dealt_as.batch_size

    def __len__(self) -> int:
        if self.dealt_as != self.shape:
            return self.start + self.num_steps * self.shape.global_batch
        return self.start + self._rank_samples * self.shape.num_ranks

    def ids_at(self, positions: Ints) -> Ints:
        """Return the ids at the given positions; -1 for empty positions."""
        places = self._places(positions)
        if (places >= 0).all():
            return self.order.ids_at(places)
        return np.where(places >= 0, self.order.ids_at(np.maximum(places, 0)), -1)

    def is_repeat(self, positions: Ints) -> NDArray[np.bool_]:
        """Return, for each position, whether its id is a repeat that only pads there; True for empty positions."""
        dealt = self._dealt(positions)
        inside = (dealt >= 0) & (dealt < len(self.order))
        return ~inside | self.order.is_repeat(np.where(inside, dealt, 0))

    def _places(self, positions: Ints) -> Ints:
        """Return the places of the canonical order at the given positions; -1 for none."""
        dealt = self._dealt(positions)
        late = dealt >= len(self.order)
        if not late.any():
            return dealt
        places = dealt.copy()
        places[late] = self._repeated(dealt[late])
        return places

    def _repeated(self, dealt: Ints) -> Ints:
        """Return the places that pad the ranks of a host: those just before the host's last full row."""
        world, count = self.dealt_as, self._host_samples
        lacking = -count % world.ranks_on_host
        if not lacking:
            return np.full(dealt.shape, -1, dtype=np.int64)
        turn, host = np.divmod(dealt - self.start, world.hosts)
        back = world.ranks_on_host + lacking - 1
        source = turn - back if back <= count else (turn - count) % count
        return np.where(turn < count + lacking, self.start + source * world.hosts + host, -1)

    def _dealt(self, positions: Ints) -> Ints:
        """Return the positions as `dealt_as` counts them: the same ones, or others of the same step.

        MosaicML lists a step host by host, rank by rank, sample by sample, and divides that list anew for `shape`.
        """
        if self.dealt_as == self.shape:
            return positions
        new, old = self.shape, self.dealt_as
        step, within = np.divmod(positions - self.start, new.global_batch)
        turn, offset = np.divmod(within, new.hosts)
        host = (self.start + offset) % new.hosts
        sample, rank = np.divmod(turn, new.ranks_on_host)
        listed = (host * new.ranks_on_host + rank) * new.batch_size + sample
        old_rank, old_sample = np.divmod(listed, old.batch_size)
        old_host, old_rank = np.divmod(old_rank, old.ranks_on_host)
        old_turn = (step * old.batch_size + old_sample) * old.ranks_on_host + old_rank
        return np.where(positions < self.start, positions, self.start + old_turn * old.hosts + old_host)


def make_partition(
    algorithm: str,
    num_samples: int,
    shape: WorldShape,
    *,
    canonical_nodes: int,
    start: int = 0,
    initial_hosts: int | None = None,
) -> Partition:
    """Return the partition of `num_samples` ids for one world, from sample `start` of the epoch on. O(1).

    Args:
        algorithm: One of `PARTITIONS`.
        num_samples: Ids of the epoch, from 1.
        shape: The world that reads.
        canonical_nodes: Nodes that the ids are cut into.
        start: Samples of the epoch that were consumed before; rounded down to a multiple of the hosts, as in MosaicML.
        initial_hosts: Hosts that the run began with; `relaxed` needs it where `shape` does not divide.

    Raises:
        ValueError: an argument is out of range.
        CursorError: the epoch ends before `start`.
        WorldMismatch: hosts and canonical nodes do not divide, or there are too few ids for them; with `relaxed`: the
            global batch does not divide among the first world's ranks.
    """
    if algorithm not in PARTITIONS:
        raise ValueError(f"`algorithm` must be one of {', '.join(PARTITIONS)}, found {algorithm!r}.")
    if start < 0:
        raise ValueError(f"`start` must be at least 0, found {start}.")
    # MosaicML stops at the first of these limits, although samples may lie between it and the second.
    rows = -(-num_samples // max(1, canonical_nodes))
    if start > max(num_samples + shape.num_ranks - num_samples % shape.num_ranks, rows * canonical_nodes):
        raise CursorError(
            f"cannot resume at sample {start}: the epoch has {num_samples}. The state was saved with another data set "
            "or epoch size: open those again, or begin a new epoch.",
            start=start,
            num_samples=num_samples,
        )
    dealt_as = shape
    if algorithm == "relaxed" and initial_hosts is not None and not divides(canonical_nodes, shape.hosts):
        dealt_as = _first_world(shape, initial_hosts)
    order = CanonicalOrder(num_samples, canonical_nodes, dealt_as.hosts)
    return Partition(order, shape, start - start % dealt_as.hosts, dealt_as)


def _first_world(shape: WorldShape, initial_hosts: int) -> WorldShape:
    ranks = initial_hosts * shape.ranks_on_host
    if initial_hosts < 1 or shape.global_batch % ranks:
        raise WorldMismatch(
            f"partition 'relaxed': a global batch of {shape.global_batch} cannot be divided among the {ranks} ranks "
            f"({initial_hosts} hosts) with which the run began; choose a `batch_size` that keeps the global batch of "
            "that run.",
            global_batch=shape.global_batch,
            initial_hosts=initial_hosts,
        )
    return WorldShape(initial_hosts, shape.ranks_on_host, shape.workers, shape.global_batch // ranks)
