"""OpenStreams: the samples of one shard set or of several, laid end to end and read through one cache.

Columns that were added to a set later lie in shards of their own, aligned with the set's shards. The cache numbers the
shards of all streams first, as the order does, and then the shards of added columns:

    streams          a0 a1 a2 | b0 b1        shard numbers 0 1 2 | 3 4
    added columns    x0 x1 x2 (of a)         5 6 7: shard 6 is aligned with shard 1

Only `OpenStreams` uses numbers beyond the streams' own. Plans, prefetching and costs refer to a stream's shard together
with all shards that are aligned with it. Not here: how one shard set is found (`shard_set`).
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cache import Outline, ShardCache, Uses, with_descriptors
from smalti.errors import CursorError, FormatError, SampleIndexError, SchemaError
from smalti.format import ShardInfo
from smalti.format.logical import LogicalTypes
from smalti.format.reading.batch import filled
from smalti.format.reading.joining import batch_of, check_alike, joined
from smalti.stream.shard_set import ConcatenatedShards, ShardSet, find_shard_set
from smalti.stream.stream import StreamOptions

Ids = NDArray[np.int64]
_MAX_READ_TOGETHER = 1 << 12  # samples of one list whose blocks are fetched together
Version = tuple[int, str]
"""Number and digest of a version; the number is 0 for a set without versions."""


class OpenStreams:
    """Samples of shard sets by sample id; thread-safe, picklable, safe under fork.

    Sample ids count over all streams laid end to end: the first sample of the second stream follows the last one of
    the first.
    """

    def __init__(self, streams: Sequence[StreamOptions | ShardSet], cache_limit: int | None = None) -> None:
        """Read the manifests of the streams that are not shard sets which were found before; no shard is fetched yet.

        `cache_limit` is for the local copies of all streams together, in bytes; None for no limit.

        Raises:
            SmaltiError: the classes that `find_shard_set` names.
        """
        sets = with_descriptors(
            lambda: tuple(each if isinstance(each, ShardSet) else find_shard_set(each) for each in streams)
        )
        # The sources of a set are those of its own shards and then of added columns: the cache has the former first.
        sources = [each.sources[0] for each in sets] + [source for each in sets for source in each.sources[1:]]
        self._lay_out(sets, with_descriptors(lambda: ShardCache(*sources, limit=cache_limit)))

    def _lay_out(self, sets: tuple[ShardSet, ...], cache: ShardCache) -> None:
        self.sets = sets
        self.shards: Sequence[ShardInfo] = (
            sets[0].shards if len(sets) == 1 else ConcatenatedShards([each.shards for each in sets])
        )
        self.shard_sizes: Ids = np.concatenate([each.shard_sizes for each in self.sets])
        """Samples of every shard of all streams; int64, shape (shards,)."""
        self.shard_ends: Ids = np.cumsum(self.shard_sizes)
        """The end of each shard's sample ids; int64, shape (shards,)."""
        self._shard_begins = np.concatenate(([0], self.shard_ends[:-1]))[: self.shard_ends.size]
        self._num_samples = int(self.shard_ends[-1]) if self.shard_ends.size else 0
        self._stream_ends = np.cumsum([each.num_samples for each in self.sets])
        self._set_ends = list(accumulate(len(each.shards) for each in sets))
        # For single ids: bisecting an array takes a tenth of the time of numpy's search.
        self._end_array = array("q", self.shard_ends.tobytes())
        types = [each.logical for each in sets]
        self._types = types[:1] if all(each == types[0] for each in types) else types
        """The logical types of every stream, a single entry if they are the same in all; None if there are none."""
        self.cache = cache
        self._aligned = align_shards([len(each.shards) for each in sets], [len(each.parts) - 1 for each in sets])
        """For each addition of columns, the shards that are aligned with the streams'; -1 where there is none."""

    def __getstate__(self) -> tuple[tuple[ShardSet, ...], ShardCache]:
        return self.sets, self.cache  # all else is computed from them, in memory proportional to the shards

    def __setstate__(self, state: tuple[tuple[ShardSet, ...], ShardCache]) -> None:
        self._lay_out(*state)

    def __len__(self) -> int:
        return self._num_samples

    @property
    def root(self) -> str:
        """Addresses of the streams, for messages."""
        return ", ".join(each.options.root for each in self.sets)

    @property
    def versions(self) -> tuple[Version, ...]:
        """The version of each stream."""
        return tuple((each.manifest.version, each.manifest.digest) for each in self.sets)

    def stream_of(self, sample_ids: Ids) -> Ids:
        """Return the number of each sample's stream; int64, the shape of `sample_ids`."""
        return np.searchsorted(self._stream_ends, sample_ids, side="right")

    def shards_of(self, sample_ids: Ids) -> Ids:
        """Return the number of each sample's shard; int64, the shape of `sample_ids`."""
        return np.searchsorted(self.shard_ends, sample_ids, side="right")

    def sample(self, sample_id: int) -> dict[str, Any]:
        """Return one decoded sample with its logical types applied; `sample_id` in [0, len(streams))."""
        ends = self._end_array
        number = bisect_right(ends, sample_id)
        row = sample_id - (ends[number - 1] if number else 0)
        shard = self.cache.shard(number, row)
        try:
            stored = shard[row]
            if len(self._aligned):
                for aligned in self._aligned:
                    if aligned[number] >= 0:
                        stored |= self.cache.shard(int(aligned[number]), row)[row]
                stored = self._in_order(stored, number)
            types = self._types[0 if len(self._types) == 1 else int(self.stream_of(np.array(sample_id)))]
            return stored if types is None else types.sample(stored)
        except FormatError as error:
            digest = self.sets[int(self.stream_of(np.array([sample_id]))[0])].manifest.digest
            where = f"sample {sample_id} of {self.root}, version digest {digest[:12]}"
            facts = error.facts | {"sample_id": sample_id, "digest": digest}
            raise type(error)(f"{where}: {error.message}", **facts) from error

    def batch(self, sample_ids: Ids, *, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """Return samples as columns, in the order of `sample_ids`; thread-safe.

        Args:
            sample_ids: int64, shape (n,), each in [0, len(streams)).
            out: arrays to fill for columns of fixed size, by name; see `Shard.batch`.

        Returns:
            Column to values, with logical types applied: arrays for columns of fixed size, lists for the others,
            images as bytes.

        Raises:
            IndexError: there is no such sample.
            SmaltiError: a shard cannot be fetched, or is damaged.
            SchemaError: shards of the batch have different columns, or its streams different logical types.
        """
        try:
            numbers, rows = self._locate(sample_ids)
            needed = sorted(set(numbers.tolist())) or [0]  # an empty batch takes its columns from the first shard
            if len(needed) * (1 + len(self._aligned)) <= self.cache.max_open:
                stored = self._batch(needed, numbers, rows, out)
            else:
                stored = filled(self._batch_in_parts(needed, numbers, rows), out)
            types = self._types_of(sample_ids)
            return stored if types is None else types.batch(stored)
        except FormatError as error:
            if "sample" in error.facts:  # one value is wrong, not a shard
                for sample_id in sample_ids.tolist():  # reading one by one raises the error that names the sample
                    self.sample(sample_id)
            raise

    def shard_name(self, sample_id: int) -> str:
        """Return the name of the file that holds a sample; `sample_id` in [0, len(streams))."""
        return self.shards[bisect_right(self._end_array, sample_id)].raw.basename

    def span_of_stream(self, sample_id: int) -> tuple[int, int]:
        """Return the sample ids [begin, end) of the stream that a sample belongs to."""
        stream = int(np.searchsorted(self._stream_ends, sample_id, side="right"))
        return int(self._stream_ends[stream - 1]) if stream else 0, int(self._stream_ends[stream])

    def prefetch(self, sample_ids: Ids) -> None:
        """Start fetching the shards of these samples, first needed first; returns at once."""
        shards, _ = self._locate(sample_ids)
        _, first = np.unique(shards, return_index=True)
        self.cache.prefetch(with_aligned(self._aligned, shards[np.sort(first)])[0].tolist())

    def plan(self, uses: Iterator[Uses], order: str, *, is_of_many: bool, outline: Iterator[Outline]) -> None:
        """Set which shards will be requested, as `ShardCache.plan`; those aligned with each are requested with it."""
        if len(self._aligned):
            # Partials, not methods: the cache keeps the plan, which must not refer to the streams.
            uses = map(partial(_uses_with_aligned, self._aligned), uses)
            outline = map(partial(_outline_with_aligned, self._aligned), outline)
        self.cache.plan(uses, order, is_of_many=is_of_many, outline=outline)

    def costs(self) -> tuple[Ids, Ids]:
        """Return what `ShardCache.costs` does, by shard of the streams: those aligned with it are counted with it."""
        both = np.stack(self.cache.costs())
        for aligned in self._aligned:
            shards = np.flatnonzero(aligned >= 0)
            both[:, shards] += both[:, aligned[shards]]
        held, fetched = both[:, : self.shard_ends.size]
        return held, fetched

    def read_parts(self, at: Any) -> None:
        """Fetch the blocks that hold some samples together, where samples are read in blocks; otherwise do nothing.

        `at` is a slice, a list or an array of sample ids, which may be negative; others, and many, are read one by one.
        """
        if not self.cache.parts.is_possible:
            return
        ids = np.arange(*at.indices(len(self))) if isinstance(at, slice) else np.asarray(at)
        is_readable = ids.ndim == 1 and ids.dtype.kind in "iu" and 1 < ids.size <= _MAX_READ_TOGETHER
        if not is_readable or ids.min() < -len(self) or ids.max() >= len(self):
            return
        for rows in self._rows_by_shard(ids % len(self)):
            self.cache.parts.load(rows)

    def num_bytes_ahead(self, sample_ids: Ids) -> int:
        """Return about how many bytes `read_ahead` would fetch."""
        return sum(map(self.cache.parts.num_bytes_ahead, self._rows_by_shard(sample_ids)))

    def read_ahead(self, sample_ids: Ids) -> None:
        """Fetch the blocks of the samples that are read without a cache together; errors are left to `batch`."""
        for rows in self._rows_by_shard(sample_ids):
            self.cache.parts.load_ahead(rows)

    def _rows_by_shard(self, sample_ids: Ids) -> Iterator[dict[int, Ids]]:
        """Yield the rows of these samples by shard, of the streams' own shards and then of added columns."""
        numbers, rows = self._locate(np.unique(sample_ids))
        needed, begins = np.unique(numbers, return_index=True)
        parts = np.split(rows, begins[1:])
        for shards in (needed, *(aligned[needed] for aligned in self._aligned)):
            yield {int(shard): part for shard, part in zip(shards, parts, strict=True) if shard >= 0}

    def close(self) -> None:
        """Close open shards and end fetching threads."""
        self.cache.close()

    def _types_of(self, sample_ids: Ids) -> "LogicalTypes | None":
        """Return the logical types of a batch by column; None if all values are returned as stored.

        Raises:
            SchemaError: it holds samples of streams with different logical types.
        """
        if len(self._types) == 1:
            return self._types[0]
        first: int
        first, *others = np.unique(self.stream_of(sample_ids)).tolist() or [0]
        for stream in others:
            if self._types[stream] != self._types[first]:
                raise SchemaError(
                    f"streams {first} and {stream} have different logical types, so that a batch by column would "
                    "mix what their values stand for. Write them alike, read them sample by sample, or read what is "
                    "stored with `logical=False`.",
                    streams=(first, stream),
                )
        return self._types[first]

    def _set_of_shard(self, number: int) -> ShardSet:
        """Return the shard set that a shard belongs to."""
        return self.sets[bisect_right(self._set_ends, number)]

    def _in_order(self, columns: dict[str, Any], number: int) -> dict[str, Any]:
        """Return joined columns in the order in which the user named those to read; `number` is one of the shards."""
        names = self._set_of_shard(number).stored_names
        return columns if names is None else {name: columns[name] for name in names}

    def _batch(
        self, needed: list[int], numbers: Ids, rows: Ids, out: Mapping[str, NDArray[Any]] | None = None
    ) -> dict[str, Any]:
        """Return a batch read from the shards `needed` and the shards of added columns aligned with them.

        `needed` has shard numbers, sorted and distinct; `numbers` and `rows` each sample's shard number and its row
        there.

        Raises:
            SchemaError: columns were added to some of the streams only.
        """
        which = np.searchsorted(np.array(needed), numbers) if len(needed) > 1 else np.zeros(len(rows), np.int64)

        def rows_of_each() -> list[Ids]:
            order = np.argsort(which, kind="stable")
            return np.split(rows[order], np.searchsorted(which[order], np.arange(1, len(needed))))

        columns = batch_of(self.cache.shards(needed, rows_of_each), which, rows, out)
        self.cache.done(needed)
        if not len(self._aligned):
            return columns
        for numbers_of in self._aligned:
            aligned = numbers_of[needed].tolist()
            if max(aligned) < 0:  # no columns were added to any of the streams
                continue
            if min(aligned) < 0:
                raise SchemaError(
                    f"a batch of {self.root} holds samples of streams with and without added columns; add the same "
                    "ones to each, or read with `OrderOptions(batching_method='per_stream')`"
                )
            columns |= batch_of(self.cache.shards(aligned, rows_of_each), which, rows, out)
            self.cache.done(aligned)
        return self._in_order(columns, needed[0])

    def _batch_in_parts(self, needed: list[int], numbers: Ids, rows: Ids) -> dict[str, Any]:
        """Return a batch of more shards than may be open at once: each holds a descriptor, and macOS allows 256."""
        names = [self._set_of_shard(number).sources[0].names for number in needed]
        check_alike([self.shards[number] for number in needed], names)
        parts, places = [], []
        stride = max(1, self.cache.max_open // (1 + len(self._aligned)))
        for begin in range(0, len(needed), stride):
            some = needed[begin : begin + stride]
            places.append(np.flatnonzero((numbers >= some[0]) & (numbers <= some[-1])))
            parts.append(self._batch(some, numbers[places[-1]], rows[places[-1]]))
        return joined(parts, places)

    def _locate(self, sample_ids: Ids) -> tuple[Ids, Ids]:
        """Return the shard number and the row in it of each sample.

        Raises:
            IndexError: there is no such sample. Nothing below checks this, and a wrong row would read other memory.
        """
        if len(sample_ids) and not (sample_ids.min() >= 0 and sample_ids.max() < self._num_samples):
            raise SampleIndexError(
                f"samples {sample_ids.min()} to {sample_ids.max()} of {self.root}, which has "
                f"{self._num_samples}: expected numbers from 0 on"
            )
        numbers = self.shards_of(sample_ids)
        return numbers, sample_ids - self._shard_begins[numbers]


def open_streams(
    options: Sequence[StreamOptions], before: Sequence[Version] = (), *, cache_limit: int | None = None
) -> OpenStreams:
    """Open shard sets, in the versions `before` that this dataset opened earlier, if any.

    Raises:
        CursorError: a set without versions was replaced since.
        SmaltiError: the classes that `find_shard_set` names.
    """
    if not before:
        return OpenStreams(options, cache_limit)
    # A set without versions has number 0: it can only be opened as it is now.
    same = [
        replace(each, version=number, tag=None) if number else each
        for each, (number, _) in zip(options, before, strict=True)
    ]
    opened = OpenStreams(same, cache_limit)
    for (_, digest), each in zip(before, opened.sets, strict=True):
        if digest != each.manifest.digest:
            raise CursorError(
                f"{each.options.root}: this dataset has read digest {digest[:12]} before, and finds "
                f"{each.manifest.digest[:12]} now. Make a new StreamingDataset to read that.",
                saved=digest,
                found=each.manifest.digest,
            )
    return opened


def align_shards(num_shards: Sequence[int], num_added: Sequence[int]) -> Ids:
    """Return the shards of added columns that hold the same samples as each shard of the streams.

    Args:
        num_shards: Shards of each stream.
        num_added: Additions of columns to each stream.

    Returns:
        int64, shape (the most additions to a stream, shards of all streams): shard numbers, -1 where a stream has fewer
        additions.
    """
    ends = list(accumulate(num_shards))
    aligned = np.full((max(num_added, default=0), sum(num_shards)), -1, np.int64)
    begin = sum(num_shards)
    for end, count, added in zip(ends, num_shards, num_added, strict=True):
        for level in range(added):
            aligned[level, end - count : end] = np.arange(begin, begin + count)
            begin += count
    return aligned


def with_aligned(aligned: Ids, shards: Ids) -> tuple[Ids, Ids]:
    """Return the shards, each followed by its aligned ones, and the place in `shards` that each belongs to."""
    both = np.concatenate([shards[:, None], aligned[:, shards].T], axis=1)
    places = np.broadcast_to(np.arange(len(shards))[:, None], both.shape)
    return both[both >= 0], places[both >= 0]


def _uses_with_aligned(aligned: Ids, uses: Uses) -> Uses:
    shards, places = with_aligned(aligned, uses.shards)
    return replace(uses, shards=shards, steps=uses.steps[places])


def _outline_with_aligned(aligned: Ids, outline: Outline) -> Outline:
    shards, places = with_aligned(aligned, outline.shards)
    return replace(outline, shards=shards, begins=outline.begins[places], ends=outline.ends[places])
