"""MosaicPlan: one epoch in MosaicML's order, as a `GlobalOrder` that `smalti.order.Division` can divide.

Planning is O(N) in time and memory, as the shuffles are: 4 bytes per sample, 8 from 2^31 samples on (none without a
shuffle if every sample is taken once). The ids of one rank or worker are then arithmetic and one gather; no array of
the whole cluster is made.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smalti.order.mosaic.dealing import all_ids, worker_ids
from smalti.order.mosaic.partition import Partition
from smalti.order.mosaic.sampling import Resampled
from smalti.order.mosaic.shape import WorldShape
from smalti.order.mosaic.spans import Ids, Ints
from smalti.order.positions import GlobalOrder


@dataclass(frozen=True, eq=False)
class PartitionedIds:
    """Sample ids of a partition, resampled and shuffled: a table of at most N ids."""

    partition: Partition
    """The id of the partition at each position."""
    taken: Resampled
    """The samples that the epoch takes."""
    order: Ids | None
    """The sample id of every id of the partition; None without a shuffle."""

    def __len__(self) -> int:
        return len(self.partition)

    def ids_at(self, positions: Ints) -> Ids:
        """Return the sample ids at the given positions; -1 for empty positions."""
        ids = self.partition.ids_at(positions)
        held = ids >= 0
        if held.all():
            return self._sample_ids(ids)
        return np.where(held, self._sample_ids(np.maximum(ids, 0)), -1)

    def is_repeat(self, positions: Ints) -> NDArray[np.bool_]:
        """Return, for each position, whether its sample is a repeat that only pads there."""
        return self.partition.is_repeat(positions)

    def _sample_ids(self, ids: Ints) -> Ids:
        return self.taken.sample_ids(ids) if self.order is None else self.order[ids]


@dataclass(frozen=True, eq=False)
class ListedIds:
    """Sample ids in a table, position by position."""

    ids: Ids
    """The sample id of every position; -1 for empty positions."""
    repeats: NDArray[np.bool_]
    """True where the sample is a repeat that only pads there."""

    def __len__(self) -> int:
        return int(self.ids.size)

    def ids_at(self, positions: Ints) -> Ids:
        """Return the sample ids at the given positions; -1 for empty positions."""
        return self.ids[positions]

    def is_repeat(self, positions: Ints) -> NDArray[np.bool_]:
        """Return, for each position, whether its sample is a repeat that only pads there."""
        return self.repeats[positions]


class MosaicPlan(GlobalOrder):
    """The order of one epoch for one world, from `start` on; any part of its positions can be looked up alone.

    `Division(len(plan), plan.start, batch_size, world, tail="short")` gives every rank, at every step, exactly the ids
    that MosaicML gives it. What that means for the invariants:

    * I3. Step s is the span [start + s*B, start + (s+1)*B) of positions, and the canonical order behind them does not
      depend on the world, nor on B. So prefix + rest = the uninterrupted order holds for every position below
      C * (N // C), on any world that the partition accepts and, with `orig`, any batch size. There are three
      exceptions, which follow from MosaicML's order: `start` is rounded down to a multiple of the hosts, so that up to
      H - 1 samples are read again; the last C positions and those added after them are padded differently in each
      world; and with `relaxed` on a world that does not divide, the global batch must remain the same.
    * I1. Every sample that the epoch takes is at one position, and again where `is_repeat` is true. The methods
      `stratified`, `per_stream` and `device_per_stream` leave samples out, resume at whole steps only, and fix their
      order for one global batch: prefix + rest holds while that remains the same.
    * I4. No position goes to two ranks, but a repeat may be in the same step as its sample. Ranks take equally many
      steps, but with `relaxed` on a world that does not divide and with `device_per_stream` some positions of the last
      steps are empty (id -1), and a rank may get an empty step.

    For replica groups, give the shape of the groups (`WorldShape.replicated`). Pure and thread-safe.
    """

    def __init__(self, source: PartitionedIds | ListedIds, shape: WorldShape, start: int, num_steps: int) -> None:
        self._source = source
        self._all_steps = num_steps  # including steps without any sample
        self.shape = shape
        self.start = start

    def __len__(self) -> int:
        return max(self.start, len(self._source))

    @property
    def num_steps(self) -> int:
        """Steps from the start that hold at least one sample."""
        return -(-(len(self) - self.start) // self.shape.global_batch)

    def ids_at(self, positions: Ints) -> Ints:
        """Return sample ids at positions in [0, len(plan)); int64, the shape of `positions`; -1 for empty positions."""
        if int(positions.max(initial=-1)) < len(self._source):
            return self._source.ids_at(positions).astype(np.int64, copy=False)
        ids = np.full(positions.shape, -1, dtype=np.int64)
        inside = positions < len(self._source)
        ids[inside] = self._source.ids_at(positions[inside])
        return ids

    def is_repeat(self, positions: Ints) -> NDArray[np.bool_]:
        """Return, for each position, whether its sample is a repeat that only pads there; True for empty positions.

        A sample that the epoch takes several times because of its stream's weight is no repeat.
        """
        repeats = np.ones(positions.shape, dtype=np.bool_)
        inside = positions < len(self._source)
        repeats[inside] = self._source.is_repeat(positions[inside])
        return repeats

    def worker_ids(self, host: int, rank: int, worker: int) -> Ints:
        """Return the ids of one worker; int64, shape (batches, batch_size); -1 is padding, as in MosaicML.

        Raises:
            IndexError: there is no such worker.
        """
        shape = (self.shape.hosts, self.shape.ranks_on_host, self.shape.workers)
        if not all(0 <= number < count for number, count in zip((host, rank, worker), shape, strict=True)):
            raise IndexError(f"no worker {worker} of rank {rank} of host {host}: there are {shape} of each.")
        return worker_ids(self._source, self.shape, self.start, self._all_steps, (host, rank, worker))

    def all_ids(self) -> Ints:
        """Return MosaicML's whole array; int64, shape (hosts, ranks of a host, workers of a rank, batches, batch_size).

        Takes more than 8 bytes per sample while it is computed; -1 is padding.
        """
        return all_ids(self._source, self.shape, self.start, self._all_steps)
