"""Statistics of a version: of each column, of the sizes of samples and shards, and of samples that are equal.

All rows are read shard by shard, or a random sample of them in ranges. Memory is bounded by the rows of one batch and
by what the accumulators keep; a shard lies in a temporary file while it is read.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from smalti.attributes import whole_number
from smalti.catalog.table.shard_table import bytes_of
from smalti.catalog.verify import open_checked
from smalti.format import AnyShard, decode_gathered
from smalti.format.logical import LogicalTypes
from smalti.inspection.column_stats import ColumnStats, ColumnStatsOf, Mapper, hash_pieces
from smalti.inspection.distributions import DistinctOf, Distribution, DistributionOf
from smalti.inspection.info import choose_rows
from smalti.inspection.reading import Ids, VersionRows, open_rows, readable
from smalti.splitmix import GOLDEN
from smalti.storage import Place

MAX_BATCH_BYTES = 16 << 20
"""Bytes of the rows that are decoded at the same time, unless one row is larger."""
_MAX_BATCH_ROWS = 4096
_SAMPLE_HASHES = 1 << 20
_SHARDS_AHEAD = 2  # fetched whole while one is read
_SAMPLED_AHEAD = 8  # read in ranges
_DEADLINE_SECONDS = 3600.0  # for one shard; the store's own deadlines end earlier
_Shards = list[tuple[AnyShard, tuple[str, ...]]]
"""Shards that hold the same rows, each with the names of its columns."""
_Opened = tuple[Ids, _Shards]
"""Numbers of rows, and the shards that hold them."""
OnRows = Callable[[int, int], None]
"""Called with the number of rows that were looked at, and of all that will be."""


@dataclass(frozen=True)
class EqualSamples:
    """Samples that are equal to an earlier one, byte for byte, in all columns of the shards that were read."""

    count: int
    is_exact: bool
    """False if the number is an estimate."""
    examples: tuple[tuple[int, int], ...]
    """Numbers of the rows of some pairs, the earlier one first."""


@dataclass(frozen=True)
class Stats:
    """Statistics of a version, or of one split of it."""

    url: str
    version: int
    """0 for a set without versions."""
    digest: str
    split: str | None
    num_rows: int
    """Rows of the version or split."""
    looked_at: int
    """Rows that were read: all of them, or a random sample."""
    columns: tuple[ColumnStats, ...]
    sample_bytes: Distribution
    """Bytes of samples as stored, uncompressed, without added columns."""
    shard_bytes: Distribution
    """Bytes of shards as stored; of all shards, whatever was read."""
    shard_rows: Distribution
    """Rows of shards; of all shards."""
    equal_samples: EqualSamples

    @property
    def is_sampled(self) -> bool:
        """True if not all rows were read."""
        return self.looked_at < self.num_rows

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON."""
        return {**asdict(self), "is_sampled": self.is_sampled}


def stats(  # noqa: PLR0913
    place: Place,
    *,
    version: int | None = None,
    tag: str | None = None,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    decode: bool = True,
    on_rows: OnRows | None = None,
) -> Stats:
    """Return statistics of the columns of a version, the newest by default, in bounded memory.

    Args:
        place: The root of the set: a URL, folder or store.
        version: The number of the version.
        tag: Its tag, instead of the number.
        split: Split to read; None for the whole set.
        columns: Columns to look at; None for all.
        samples: Number of random rows to look at; None for all rows, with the checksums of their shards compared.
        seed: Number that determines which rows are random.
        decode: Decode the pixels of images, so that damaged ones are counted; else their headers are read.
        on_rows: Called with (rows looked at, rows in all) now and then.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version or tag.
        CatalogError: there is no such split.
        SchemaError: there is no such column.
        ChecksumMismatch: a shard is not what its manifest says.
        FormatError: a shard or a value is damaged.
        ValueError: `samples` is no number of rows, or both `version` and `tag` are given.

    Examples:
        >>> columns = {column.name: column for column in stats("s3://bucket/users").columns}
        >>> columns["user_id"].values.max
        14
    """
    limit = None if samples is None else whole_number("`samples`", samples, 0)
    rows = VersionRows(place, version=version, tag=tag, split=split)
    numbers = None
    if limit is not None and limit < rows.num_rows:
        numbers = choose_rows(0, rows.num_rows, limit, seed=seed)
    return stats_of(rows, columns, numbers, decode=decode, on_rows=on_rows)


def stats_of(
    rows: VersionRows,
    columns: Sequence[str] | None = None,
    numbers: Ids | None = None,
    *,
    decode: bool = True,
    on_rows: OnRows | None = None,
) -> Stats:
    """Return statistics of opened rows: those with the sorted `numbers`, or all; other arguments as for `stats`."""
    chosen, manifest = rows.choose(columns), rows.set.manifest
    restored, total, done = rows.restored(chosen), rows.num_rows if numbers is None else len(numbers), 0
    accumulated = [ColumnStatsOf(name, rows.encodings[name], rows.logical.get(name), decode=decode) for name in chosen]
    sample_bytes, equal = DistributionOf(), DistinctOf(keep=_SAMPLE_HASHES, examples=5)
    threads = os.cpu_count() or 1
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="smalti-stats") as pool,
        closing(_opened(rows, chosen, numbers)) as opened,
    ):
        # Images of one batch, at most 16 MB of them, in threads.
        mapper: Mapper = partial(pool.map, timeout=600.0) if threads > 1 else map
        for named, shards in opened:
            for begin, stop in batches(_add_samples(shards, named, sample_bytes, equal)):
                places = np.arange(begin, stop)
                _add_batch(shards, places, named[begin:stop], restored, accumulated, mapper)
                done += stop - begin
                if on_rows is not None:
                    on_rows(done, total)
    shard_bytes, shard_rows = DistributionOf(), DistributionOf()
    if len(rows.set.shards):
        shard_bytes.add(bytes_of(rows.set.shards).stored)
        shard_rows.add(rows.set.shard_sizes)
    return Stats(
        url=rows.store.url,
        version=manifest.version,
        digest=manifest.digest,
        split=rows.set.options.split,
        num_rows=rows.num_rows,
        looked_at=total,
        columns=tuple(column.result() for column in accumulated),
        sample_bytes=sample_bytes.result(),
        shard_bytes=shard_bytes.result(),
        shard_rows=shard_rows.result(),
        equal_samples=EqualSamples(equal.repeats, equal.is_exact, equal.examples),
    )


def _add_samples(shards: _Shards, rows: Ids, sample_bytes: DistributionOf, equal: DistinctOf) -> Ids:
    """Add the samples of opened shards as stored, and return their bytes; keeps no reference to the shards' memory."""
    lengths, hashes = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint64)
    for place, (shard, _) in enumerate(shards):
        samples = shard.stored_samples()
        if not place:
            sample_bytes.add(samples.lengths)
        lengths += samples.lengths
        hashes = hashes * GOLDEN + hash_pieces(samples.data, samples.ends)
    equal.add(hashes, rows)
    return lengths


def _add_batch(
    shards: _Shards,
    places: Ids,
    rows: Ids,
    restored: LogicalTypes | None,
    columns: Sequence[ColumnStatsOf],
    mapper: Mapper,
) -> None:
    """Add the values of a batch of rows to their columns; no value is kept while the next batch is read.

    Args:
        shards: The opened shards.
        places: Places of the rows in them.
        rows: Numbers of the rows in the version.
        restored: The conversion to logical types.
        columns: What the values are added to.
        mapper: Runs the decoding of images.
    """
    stored: dict[str, Any] = {}
    decoded: dict[str, Any] = {}
    for shard, names in shards:
        own = shard.gather(places, names)
        stored |= own
        decoded |= decode_gathered(shard.info.schema, own)
    values = restored.batch(decoded) if restored is not None else decoded
    for column in columns:
        column.add(stored[column.name], values[column.name], rows, mapper)


def _opened(rows: VersionRows, columns: Sequence[str], numbers: Ids | None) -> Generator[_Opened, None, None]:
    """Yield shards, opened until the next are asked for, with the numbers of their rows; more are opened meanwhile."""
    sizes, parts = rows.set.shard_sizes, rows.parts(columns)
    jobs: Iterator[tuple[int, Ids | None]]  # number of a shard, and the rows to read, counted from its first
    if numbers is None:
        jobs, depth = ((number, None) for number in np.flatnonzero(sizes).tolist()), _SHARDS_AHEAD
    else:
        jobs, depth = iter(rows.by_shard(numbers)), _SAMPLED_AHEAD

    def open_parts(number: int, own: Ids | None) -> tuple[ExitStack, _Opened]:
        with ExitStack() as stack:
            shards = []
            for infos, names in parts:
                if own is None:
                    opening = open_checked(rows.store, readable(infos[number]), is_as_listed=False)
                else:
                    opening = open_rows(rows.store, infos[number], own)
                shards.append((stack.enter_context(opening), names))
            named = np.arange(sizes[number], dtype=np.int64) if own is None else own
            return stack.pop_all(), (named + (rows.shard_ends[number] - sizes[number]), shards)

    waiting: deque[Future[tuple[ExitStack, _Opened]]] = deque()
    with ThreadPoolExecutor(depth, thread_name_prefix="smalti-shards") as pool:
        try:
            while True:
                waiting.extend(pool.submit(open_parts, *job) for job in islice(jobs, depth + 1 - len(waiting)))
                if not waiting:
                    return
                stack, opened = waiting.popleft().result(timeout=_DEADLINE_SECONDS)
                with stack:
                    yield opened
        finally:  # shards that are not needed any more, after an error
            for future in [future for future in waiting if not future.cancel()]:
                if future.exception(timeout=_DEADLINE_SECONDS) is None:
                    future.result(timeout=0)[0].close()


def batches(lengths: Ids) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges of rows of these lengths, each of bounded bytes and number."""
    ends = np.cumsum(lengths)
    begin = 0
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        stop = int(np.searchsorted(ends, before + MAX_BATCH_BYTES, side="right"))
        stop = min(max(stop, begin + 1), begin + _MAX_BATCH_ROWS)
        yield begin, stop
        begin = stop
