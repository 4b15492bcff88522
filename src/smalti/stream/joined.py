"""A cache for shard sets whose later columns lie in shards of their own, aligned with the set's shards.

The cache numbers the shards of all streams first, as the order does, and then the shards of added columns:

    streams          a0 a1 a2 | b0 b1        shard numbers 0 1 2 | 3 4
    added columns    x0 x1 x2 (of a)         5 6 7: shard 6 is aligned with shard 1

Only `OpenStreams` uses numbers beyond the streams' own. Plans, prefetching and costs refer to a stream's shard together
with all shards that are aligned with it.
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
class AlignedShards:
    """The shards of added columns that hold the same samples as each shard of the streams."""

    ends: Ids
    """The end of each stream's shard numbers; int64, shape (streams,)."""
    shifts: Ids
    """By level (the first addition, the second, ...) and stream, what to add to a shard's number for that of its
    aligned shard; -1 where the stream has fewer additions; int64, shape (levels, streams)."""

    @classmethod
    def of(cls, num_shards: Sequence[int], num_added: Sequence[int]) -> "AlignedShards":
        """Return the alignment for streams with this many shards each, and this many additions of columns each."""
        ends = np.cumsum(np.array(num_shards, np.int64))
        shifts = np.full((max(num_added, default=0), len(num_shards)), _NONE, np.int64)
        begin = int(ends[-1]) if ends.size else 0
        for stream, (count, added) in enumerate(zip(num_shards, num_added, strict=True)):
            for level in range(added):
                shifts[level, stream] = begin - (ends[stream] - count)
                begin += count
        return cls(ends, shifts)

    @property
    def num_levels(self) -> int:
        """The most shards that are aligned with one."""
        return len(self.shifts)

    def at(self, level: int, shards: Ids) -> Ids:
        """Return the shards aligned with `shards` at a level; -1 where there is none; int64, the shape of `shards`."""
        shifts = self.shifts[level][np.searchsorted(self.ends, shards, side="right")]
        return np.where(shifts == _NONE, _NONE, shards + shifts)

    def of_shard(self, shard: int) -> list[int]:
        """Return all shards aligned with one."""
        found = (int(self.at(level, np.array([shard]))[0]) for level in range(self.num_levels))
        return [number for number in found if number != _NONE]

    def with_aligned(self, shards: Ids) -> tuple[Ids, Ids]:
        """Return the shards, each followed by its aligned ones, and the place in `shards` that each belongs to."""
        both = np.stack([shards, *(self.at(level, shards) for level in range(self.num_levels))], axis=1)
        places = np.broadcast_to(np.arange(len(shards))[:, None], both.shape)
        return both[both != _NONE], places[both != _NONE]


class JoinedCache(ShardCache):
    """A cache that plans, fetches and counts each shard together with the shards aligned with it."""

    def __init__(self, *sources: Source, limit: int | None, aligned: AlignedShards) -> None:
        """As `ShardCache`; the sources are those of the streams, then those of added columns, as in `aligned`."""
        self.aligned = aligned
        super().__init__(*sources, limit=limit)

    def plan(self, future: Iterator[Uses] | None, order: str = "", *, is_of_many: bool = False) -> None:
        """As `ShardCache.plan`; a use of a shard is a use of the shards aligned with it."""
        # A partial, not a method: the cache keeps the plan, which must not refer to the cache.
        with_aligned = None if future is None else map(partial(_with_aligned, self.aligned), future)
        super().plan(with_aligned, order, is_of_many=is_of_many)

    def prefetch(self, shard_ids: Iterable[int]) -> None:
        """As `ShardCache.prefetch`, with all aligned shards."""
        found, _ = self.aligned.with_aligned(np.fromiter(shard_ids, np.int64))
        super().prefetch(found.tolist())

    def costs(self) -> tuple[list[int], list[int]]:
        """As `ShardCache.costs`, by shard of the streams; aligned shards are counted with it."""
        held, fetched = map(np.array, super().costs())
        count = int(self.aligned.ends[-1]) if self.aligned.ends.size else 0
        numbers, places = self.aligned.with_aligned(np.arange(count))
        sums = [np.zeros(count, np.int64), np.zeros(count, np.int64)]
        for total, each in zip(sums, (held, fetched), strict=True):
            np.add.at(total, places, each[numbers])
        return sums[0].tolist(), sums[1].tolist()

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "aligned": self.aligned}


def _with_aligned(aligned: AlignedShards, uses: Uses) -> Uses:
    shards, places = aligned.with_aligned(uses.shards)
    return replace(uses, shards=shards, steps=uses.steps[places])
