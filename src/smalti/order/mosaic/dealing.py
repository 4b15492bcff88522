"""The positions that each host, rank and worker reads, in the shapes of MosaicML's arrays.

One host of two ranks, two workers each, batches of 3; positions from the start:

    rank 0   worker 0   [0  2  4]            [12 14 16]
             worker 1              [6 8 10]              [18 20 22]
    rank 1   worker 0   [1  3  5]            [13 15 17]
             worker 1              [7 9 11]              [19 21 23]
               step         0          1         2           3
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from smalti.order.mosaic.partition import make_partition
from smalti.order.mosaic.shape import WorldShape
from smalti.order.mosaic.spans import Ids, Ints


class Positioned(Protocol):
    """Ids by position."""

    def __len__(self) -> int: ...

    def ids_at(self, positions: Ints) -> Ids:
        """Return the ids at positions in [0, len); -1 for empty positions."""


def rank_positions(shape: WorldShape, start: int, steps: Ints, host: Ints | int, rank: Ints | int) -> Ints:
    """Return the positions that ranks read at the given steps; int64, shape (..., batch_size), by broadcasting."""
    sample = np.arange(shape.batch_size, dtype=np.int64)
    turn = (np.asarray(steps, dtype=np.int64)[..., None] * shape.batch_size + sample) * shape.ranks_on_host
    host_first = start + (np.asarray(host) - start) % shape.hosts
    positions: Ints = host_first[..., None] + (turn + np.asarray(rank)[..., None]) * shape.hosts
    return positions


def worker_ids(source: Positioned, shape: WorldShape, start: int, num_steps: int, place: tuple[int, int, int]) -> Ints:
    """Return the ids of one worker (host, rank of the host, worker of the rank); int64, shape (batches, batch_size).

    All workers have equally many batches: -1 is padding, as in MosaicML's array.
    """
    host, rank, worker = place
    steps = worker + shape.workers * np.arange(-(-num_steps // shape.workers), dtype=np.int64)
    return _ids_or_padding(source, rank_positions(shape, start, steps, host, rank))


def all_ids(source: Positioned, shape: WorldShape, start: int, num_steps: int) -> Ints:
    """Return all ids; int64, shape (hosts, ranks of a host, workers of a rank, batches, batch_size); -1 is padding."""
    host, rank, worker, batch = np.ix_(
        np.arange(shape.hosts),
        np.arange(shape.ranks_on_host),
        np.arange(shape.workers),
        np.arange(-(-num_steps // shape.workers)),
    )
    return _ids_or_padding(source, rank_positions(shape, start, worker + shape.workers * batch, host, rank))


def partition_ids(algorithm: str, num_samples: int, shape: WorldShape, **options: Any) -> Ints:
    """Return MosaicML's whole partition; int64, shape (hosts, ranks of a host, workers of a rank, batches, batch_size).

    -1 is padding. Arguments and errors are those of `make_partition`. O(N) memory.
    """
    partition = make_partition(algorithm, num_samples, shape, **options)
    return all_ids(partition, shape, partition.start, partition.num_steps)


def _ids_or_padding(source: Positioned, positions: Ints) -> Ints:
    inside: NDArray[np.bool_] = positions < len(source)
    if inside.all():
        return source.ids_at(positions).astype(np.int64, copy=False)
    ids = np.full(positions.shape, -1, dtype=np.int64)
    ids[inside] = source.ids_at(positions[inside])
    return ids
