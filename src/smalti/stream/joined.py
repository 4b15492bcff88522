"""Columns that were added beside a set's shards, read joined with them: which shards belong together.

The cache counts the shards of all streams first, as the order does, and then those that lie beside them:

    streams   a0 a1 a2 | b0 b1        shard numbers 0 1 2 | 3 4
    beside    x0 x1 x2 (of a)         5 6 7: beside shard 1 lies shard 6

Nobody but `OpenStreams` sees numbers behind the streams' own: what is planned, looked ahead and told of costs is told
of a shard with all that lies beside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from smalti.cache import ShardCache, Source, Uses

Ids = NDArray[np.int64]
_NONE = -1


@dataclass(frozen=True, eq=False)
class Beside:
    """Which shards lie beside which."""

    ends: Ids
    """Of every stream, the end of its shards' numbers; int64, shape (streams,)."""
    shifts: Ids
    """What to add to the number of a stream's shard for that of its neighbour, at each level; -1 where a stream has no
    so many neighbours; int64, shape (levels, streams)."""

    @classmethod
    def of(cls, num_shards: Sequence[int], num_added: Sequence[int]) -> "Beside":
        """The neighbours of streams with so many shards each, and so many sets of as many shards beside them."""
        ends = np.cumsum(np.array(num_shards, np.int64))
        shifts = np.full((max(num_added, default=0), len(num_shards)), _NONE, np.int64)
        begin = int(ends[-1]) if ends.size else 0
        for stream, (count, added) in enumerate(zip(num_shards, num_added, strict=True)):
            for level in range(added):
                shifts[level, stream] = begin - (ends[stream] - count)
                begin += count
        return cls(ends, shifts)

    @property
    def levels(self) -> int:
        """The most shards that lie beside one."""
        return len(self.shifts)

    def at(self, level: int, shards: Ids) -> Ids:
        """The neighbours at this level; -1 where there is none; int64, the shape of `shards`."""
        shifts = self.shifts[level][np.searchsorted(self.ends, shards, side="right")]
        return np.where(shifts == _NONE, _NONE, shards + shifts)

    def of_one(self, shard: int) -> list[int]:
        """All neighbours of a shard."""
        found = (int(self.at(level, np.array([shard]))[0]) for level in range(self.levels))
        return [number for number in found if number != _NONE]

    def with_neighbours(self, shards: Ids) -> tuple[Ids, Ids]:
        """The shards, each followed by its neighbours, and which of `shards` each belongs to."""
        both = np.stack([shards, *(self.at(level, shards) for level in range(self.levels))], axis=1)
        places = np.broadcast_to(np.arange(len(shards))[:, None], both.shape)
        return both[both != _NONE], places[both != _NONE]


class JoinedCache(ShardCache):
    """A cache of shards and of those beside them, which come and go with them."""

    def __init__(self, *sources: Source, limit: int | None, beside: Beside) -> None:
        """As `ShardCache`; the sources are the streams', and then those beside them, in the order of `Beside.of`."""
        self.beside = beside
        super().__init__(*sources, limit=limit)

    def plan(self, future: Iterator[Uses] | None, order: str = "", *, is_of_many: bool = False) -> None:
        """As `ShardCache.plan`; who needs a shard needs its neighbours."""
        # The plan must not refer to the cache, which keeps it.
        joined = None if future is None else map(partial(_joined, self.beside), future)
        super().plan(joined, order, is_of_many=is_of_many)

    def prefetch(self, shard_ids: Iterable[int]) -> None:
        """As `ShardCache.prefetch`, with all neighbours."""
        found, _ = self.beside.with_neighbours(np.fromiter(shard_ids, np.int64))
        super().prefetch(found.tolist())

    def costs(self) -> tuple[list[int], list[int]]:
        """As `ShardCache.costs`, by shard of the streams; its neighbours are counted with it."""
        held, fetched = map(np.array, super().costs())
        count = int(self.beside.ends[-1]) if self.beside.ends.size else 0
        numbers, places = self.beside.with_neighbours(np.arange(count))
        sums = [np.zeros(count, np.int64), np.zeros(count, np.int64)]
        for total, each in zip(sums, (held, fetched), strict=True):
            np.add.at(total, places, each[numbers])
        return sums[0].tolist(), sums[1].tolist()

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "beside": self.beside}


def _joined(beside: Beside, uses: Uses) -> Uses:
    shards, places = beside.with_neighbours(uses.shards)
    return replace(uses, shards=shards, steps=uses.steps[places])
