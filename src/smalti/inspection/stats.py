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
from smalti.inspection.column_stats import ColumnStats, ColumnStatsOf, Mapper, hash_pieces
from smalti.inspection.distributions import DistinctOf, Distribution, DistributionOf
from smalti.inspection.info import choose_rows
from smalti.inspection.reading import Ids, ReadPart, VersionRows, open_rows, readable
from smalti.storage import Place

MAX_BATCH_BYTES = 16 << 20
"""Bytes of the rows that are decoded at the same time, unless one row is larger."""
_MAX_BATCH_ROWS = 4096
_SAMPLE_HASHES = 1 << 20
_SHARDS_AHEAD = 2  # fetched whole while one is read
_SAMPLED_AHEAD = 8  # read in ranges
_DEADLINE_SECONDS = 3600.0  # for one shard; the store's own deadlines end earlier
_MIX = np.uint64(0x9E3779B97F4A7C15)
_Job = tuple[int, Ids | None]
"""Number of a shard, and the rows to read, counted from its first; None for all."""
_Shards = list[tuple[ReadPart, AnyShard]]
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
    run = _Accumulation(rows, chosen, decode=decode)
    total = rows.num_rows if numbers is None else len(numbers)
    jobs: Iterator[_Job]
    if numbers is None:
        jobs = ((number, None) for number, size in enumerate(rows.set.shard_sizes.tolist()) if size)
    else:
        jobs = iter(rows.by_shard(numbers))
    threads = os.cpu_count() or 1
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="smalti-stats") as pool,
        closing(run.opened(jobs, _SHARDS_AHEAD if numbers is None else _SAMPLED_AHEAD)) as opened,
    ):
        # Images of one batch, at most 16 MB of them, in threads.
        mapper: Mapper = partial(pool.map, timeout=600.0) if threads > 1 else map
        for job, shards in opened:
            for done in run.add_shard(job, shards, mapper):
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
        columns=tuple(column.result() for column in run.columns),
        sample_bytes=run.sample_bytes.result(),
        shard_bytes=shard_bytes.result(),
        shard_rows=shard_rows.result(),
        equal_samples=EqualSamples(run.equal.repeats, run.equal.is_exact, run.equal.examples),
    )


class _Accumulation:
    """The statistics that were accumulated so far."""

    def __init__(self, rows: VersionRows, chosen: Sequence[str], *, decode: bool) -> None:
        self._rows, self._chosen = rows, chosen
        self._parts, self._restored = rows.parts(chosen), rows.restored(chosen)
        self._done = 0
        self.columns = [
            ColumnStatsOf(name, rows.encodings[name], rows.logical.get(name), decode=decode) for name in chosen
        ]
        self.sample_bytes = DistributionOf()
        self.equal = DistinctOf(keep=_SAMPLE_HASHES, examples=5)

    def opened(self, jobs: Iterator[_Job], depth: int) -> Generator[tuple[_Job, _Shards], None, None]:
        """Yield jobs with their shards, opened until the next is asked for; `depth` more are opened meanwhile."""
        waiting: deque[tuple[_Job, Future[tuple[ExitStack, _Shards]]]] = deque()
        with ThreadPoolExecutor(depth, thread_name_prefix="smalti-shards") as pool:
            try:
                while True:
                    some = islice(jobs, depth + 1 - len(waiting))
                    waiting.extend((job, pool.submit(self._open, job)) for job in some)
                    if not waiting:
                        return
                    job, future = waiting.popleft()
                    stack, shards = future.result(timeout=_DEADLINE_SECONDS)
                    with stack:
                        yield job, shards
            finally:  # shards that are not needed any more, after an error
                left = [future for _, future in waiting if not future.cancel()]
                for future in left:
                    if future.exception(timeout=_DEADLINE_SECONDS) is None:
                        future.result(timeout=0)[0].close()

    def _open(self, job: _Job) -> tuple[ExitStack, _Shards]:
        store, number, own = self._rows.store, *job
        with ExitStack() as stack:
            shards = []
            for part in self._parts:
                info = part.shards[number]
                found = (
                    open_checked(store, readable(info), is_as_listed=False)
                    if own is None
                    else open_rows(store, info, own)
                )
                shards.append((part, stack.enter_context(found)))
            return stack.pop_all(), shards

    def add_shard(self, job: _Job, shards: _Shards, mapper: Mapper) -> Iterator[int]:
        """Add the rows of a shard; yield the number of rows so far after each batch."""
        number, own = job
        size, end = int(self._rows.set.shard_sizes[number]), int(self._rows.shard_ends[number])
        named = (np.arange(size, dtype=np.int64) if own is None else own) + (end - size)
        lengths = np.zeros(len(named), np.int64)
        hashes = np.zeros(len(named), np.uint64)
        for place, (_, shard) in enumerate(shards):
            stored = shard.stored_samples()
            if not place:
                self.sample_bytes.add(stored.lengths)
            lengths += stored.lengths
            hashes = hashes * _MIX + hash_pieces(stored.data, stored.ends)
        self.equal.add(hashes, named)
        for begin, stop in batches(lengths):
            self._add_batch(shards, np.arange(begin, stop), named[begin:stop], mapper)
            self._done += stop - begin
            yield self._done

    def _add_batch(self, shards: _Shards, places: Ids, rows: Ids, mapper: Mapper) -> None:
        stored: dict[str, Any] = {}
        decoded: dict[str, Any] = {}
        for part, shard in shards:
            own = shard.gather(places, part.columns)
            stored |= own
            decoded |= decode_gathered(shard.info.schema, own)
        values = self._restored.batch(decoded) if self._restored is not None else decoded
        for column in self.columns:
            column.add(stored[column.name], values[column.name], rows, mapper)


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
