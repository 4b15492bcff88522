"""Which shards of a version are put together: neighbours that are small, of one split and written alike."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from smalti.format import ShardInfo


@dataclass(frozen=True)
class Run:
    """Shards [begin, end) of a version, which become one run of full ones; with shards beside them, one full one."""

    begin: int
    end: int


@dataclass(frozen=True)
class SmallShards:
    """How small is small, and what full."""

    below: int
    """Shards of fewer bytes uncompressed are small."""
    limit: int
    """Bytes of a full one."""
    tells_apart: Callable[[ShardInfo], object]
    """Shards for which it gives other values are never put together."""

    def runs(self, shards: Sequence[ShardInfo], beside: Sequence[Sequence[ShardInfo]]) -> Iterator[Run]:
        """What to put together so that there are fewer shards afterwards.

        Args:
            shards: of the version.
            beside: shards with further columns of the same samples, place by place; several such rows. What lies beside
                each other stays so: whole shards are joined then, at the same places in every row.
        """
        rows = (shards, *beside)
        begin = 0
        for alike, group in itertools.groupby(zip(*rows, strict=True), key=self._alike):
            sizes = [[shard.raw.num_bytes for shard in column] for column in group]
            end = begin + len(sizes)
            if alike is not None and beside:
                yield from self._packed(begin, sizes)
            elif alike is not None and len(sizes) > 1 and -(-sum(map(sum, sizes)) // self.limit) < len(sizes):
                yield Run(begin, end)
            begin = end

    def _alike(self, column: Sequence[ShardInfo]) -> tuple[object, ...] | None:
        """Equal for small shards that can be put together; None for those that stay."""
        below = self.below if len(column) == 1 else min(self.below, self.limit)
        if any(shard.raw.num_bytes >= below for shard in column):
            return None
        main = column[0]
        kinds = tuple((shard.schema, shard.layout, shard.compression, shard.hash_names) for shard in column)
        return main.partition, kinds, self.tells_apart(main)

    def _packed(self, begin: int, sizes: Iterable[Sequence[int]]) -> Iterator[Run]:
        """Neighbours whose bytes together are within the limit, in each row; none that would stay alone."""
        at, totals = begin, [0]
        for place, column in enumerate(sizes, begin):
            grown = [total + size for total, size in itertools.zip_longest(totals, column, fillvalue=0)]
            if max(grown) > self.limit:
                if place - at > 1:
                    yield Run(at, place)
                at, grown = place, list(column)
            totals = grown
            last = place
        if last + 1 - at > 1:
            yield Run(at, last + 1)
