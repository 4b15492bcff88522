"""OpenStreams: the samples of one shard set or of several, laid end to end; manifests, stores, one cache.

What samples of several shard sets are given as: the logical types of each, or of all where they are the same.
"""

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from smalti.cache import ShardCache, with_descriptors
from smalti.errors import CursorError, FormatError, SchemaError
from smalti.format import ShardInfo, batch_of
from smalti.format.logical import LogicalTypes
from smalti.format.reading.batch import filled
from smalti.format.reading.joining import check_alike, joined
from smalti.stream.joined import Beside, JoinedCache
from smalti.stream.shard_set import JoinedShards, ShardSet, find_shard_set
from smalti.stream.stream import StreamOptions

SampleIds = NDArray[np.int64]


class Given(Protocol):
    """From what shards hold to what a reader gets."""

    def sample(self, stored: dict[str, Any], sample_id: int) -> dict[str, Any]:
        """One sample."""

    def batch(self, stored: dict[str, Any], sample_ids: SampleIds) -> dict[str, Any]:
        """A batch by column."""


def given_of(each: Sequence[LogicalTypes | None], ends: SampleIds) -> Given | None:
    """How samples are given; None where all are given as they are stored.

    Args:
        each: the logical types of every stream.
        ends: the sample id after the last one of every stream.
    """
    first = each[0]
    if any(other != first for other in each):
        return _Different(tuple(each), ends)
    return None if first is None else _Alike(first)


@dataclass(frozen=True)
class _Alike:
    types: LogicalTypes

    def sample(self, stored: dict[str, Any], sample_id: int) -> dict[str, Any]:  # noqa: ARG002 - all are alike
        return self.types.sample(stored)

    def batch(self, stored: dict[str, Any], sample_ids: SampleIds) -> dict[str, Any]:  # noqa: ARG002
        return self.types.batch(stored)


@dataclass(frozen=True)
class _Different:
    each: tuple[LogicalTypes | None, ...]
    ends: SampleIds

    def sample(self, stored: dict[str, Any], sample_id: int) -> dict[str, Any]:
        types = self.each[int(np.searchsorted(self.ends, sample_id, side="right"))]
        return stored if types is None else types.sample(stored)

    def batch(self, stored: dict[str, Any], sample_ids: SampleIds) -> dict[str, Any]:
        streams = np.unique(np.searchsorted(self.ends, sample_ids, side="right")).tolist() or [0]
        types = self.each[streams[0]]
        for stream in streams[1:]:
            if self.each[stream] != types:
                raise SchemaError(
                    f"streams {streams[0]} and {stream} have different logical types, so that a batch by column would "
                    "mix what their values stand for. Write them alike, read them sample by sample, or read what is "
                    "stored with `logical=False`.",
                    streams=(streams[0], stream),
                )
        return stored if types is None else types.batch(stored)


Ids = NDArray[np.int64]
Version = tuple[int, str]
"""Number and digest of a version; the number is 0 for a set without versions."""


class OpenStreams:
    """Samples by sample id, from stores near or far; thread-safe, picklable, safe under fork.

    Sample ids count over all streams laid end to end: the first sample of the second stream comes after the last one
    of the first.
    """

    def __init__(self, options: Sequence[StreamOptions], cache_limit: int | None = None) -> None:
        """Reads the manifests; no shard is fetched yet. `cache_limit`: bytes that all copies may take.

        Raises:
            SmaltiError: the classes that `find_shard_set` names.
        """
        sets = with_descriptors(lambda: tuple(map(find_shard_set, options)))
        self._lay_out(sets, with_descriptors(lambda: _cache_of(sets, cache_limit)))

    def _lay_out(self, sets: tuple[ShardSet, ...], cache: ShardCache) -> None:
        self.sets = sets
        self.shards: Sequence[ShardInfo] = (
            sets[0].shards if len(sets) == 1 else JoinedShards([each.shards for each in sets])
        )
        self.shard_sizes: Ids = np.concatenate([each.shard_sizes for each in self.sets])
        """Samples of every shard of all streams; int64, shape (shards,)."""
        self.shard_ends: Ids = np.cumsum(self.shard_sizes)
        """The end of each shard's sample ids; int64, shape (shards,)."""
        self._ends = self.shard_ends
        self._begins = np.concatenate(([0], self._ends[:-1]))[: self._ends.size]
        self._num_samples = int(self._ends[-1]) if self._ends.size else 0
        self._stream_ends = np.cumsum([each.num_samples for each in self.sets])
        # Bisected in a tenth of the time that numpy takes for one id.
        self._end_array = array("q", self._ends.tobytes())
        self._given = given_of([each.logical for each in sets], self._stream_ends)
        self.cache = cache
        self._beside = cache.beside if isinstance(cache, JoinedCache) else None

    def __getstate__(self) -> tuple[tuple[ShardSet, ...], ShardCache]:
        return self.sets, self.cache  # the rest follows from them, and is as long as they have shards

    def __setstate__(self, state: tuple[tuple[ShardSet, ...], ShardCache]) -> None:
        self._lay_out(*state)

    def __len__(self) -> int:
        return self._num_samples

    @property
    def root(self) -> str:
        """Where it is read from, for messages."""
        return ", ".join(each.options.root for each in self.sets)

    @property
    def versions(self) -> tuple[Version, ...]:
        """The version of each stream."""
        return tuple((each.manifest.version, each.manifest.digest) for each in self.sets)

    def stream_of(self, sample_ids: Ids) -> Ids:
        """The number of each sample's stream; int64, the shape of `sample_ids`."""
        return np.searchsorted(self._stream_ends, sample_ids, side="right")

    def sample(self, sample_id: int) -> dict[str, Any]:
        """One decoded sample, its values as their logical types have them; `sample_id` in [0, len(streams))."""
        ends = self._end_array
        number = bisect_right(ends, sample_id)
        row = sample_id - (ends[number - 1] if number else 0)
        shard = self.cache.shard(number, row)
        try:
            stored = shard[row] if self._beside is None else self._joined_sample(number, row)
            return stored if self._given is None else self._given.sample(stored, sample_id)
        except FormatError as error:
            raise self._placed(error, sample_id) from error

    def batch(self, sample_ids: Ids, *, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """The samples as columns, in the order of `sample_ids`; thread-safe.

        Args:
            sample_ids: int64, shape (n,), each in [0, len(streams)).
            out: arrays to fill for columns of fixed size, by name; see `Shard.batch`.

        Returns:
            Column to values: arrays for columns of fixed size, lists for the others, images as bytes; as their logical
            types have them.

        Raises:
            IndexError: there is no such sample.
            SmaltiError: a shard cannot be fetched, or is damaged.
            SchemaError: shards of the batch have different columns, or streams of it different logical types.
        """
        try:
            stored = self._stored(sample_ids, out)
            return stored if self._given is None else self._given.batch(stored, sample_ids)
        except FormatError as error:
            if "sample" in error.facts:  # a value's fault, not a shard's
                for sample_id in sample_ids.tolist():  # the slow way finds whose
                    self.sample(sample_id)
            raise

    def shards_of(self, sample_ids: Ids) -> Ids:
        """The number of each sample's shard; int64, the shape of `sample_ids`."""
        return np.searchsorted(self._ends, sample_ids, side="right")

    def prefetch(self, sample_ids: Ids) -> None:
        """Begins to fetch the shards of these samples, first needed first; returns at once."""
        shards, _ = self._locate(sample_ids)
        _, first = np.unique(shards, return_index=True)
        self.cache.prefetch(int(shard) for shard in shards[np.sort(first)])

    def close(self) -> None:
        """Lets go of open shards and fetching threads."""
        self.cache.close()

    def _stored(self, sample_ids: Ids, out: Mapping[str, NDArray[Any]] | None) -> dict[str, Any]:
        """A batch as shards hold it."""
        numbers, rows = self._locate(sample_ids)
        wanted = _distinct(numbers)
        if len(wanted) * self._files <= self.cache.max_open:
            return self._batch(wanted, numbers, rows, out)
        return filled(self._in_parts(wanted, numbers, rows), out)

    def _placed(self, error: FormatError, sample_id: int) -> FormatError:
        """The same error, which says which sample of which version it is about."""
        its = self.sets[int(self.stream_of(np.array([sample_id]))[0])]
        where = f"sample {sample_id} of {self.root}, version digest {its.manifest.digest[:12]}"
        facts = error.facts | {"sample_id": sample_id, "digest": its.manifest.digest}
        return type(error)(f"{where}: {error.message}", **facts)

    @property
    def _files(self) -> int:
        """How many shards hold the columns of a sample."""
        return 1 if self._beside is None else 1 + self._beside.levels

    def _joined_sample(self, number: int, row: int) -> dict[str, Any]:
        sample = self.cache.shard(number, row)[row]
        for neighbour in self._beside.of_one(number) if self._beside is not None else ():
            sample |= self.cache.shard(neighbour, row)[row]
        return sample

    def _batch(
        self, wanted: list[int], numbers: Ids, rows: Ids, out: Mapping[str, NDArray[Any]] | None = None
    ) -> dict[str, Any]:
        """A batch out of these shards, and of those beside them."""
        which = np.searchsorted(np.array(wanted), numbers) if len(wanted) > 1 else np.zeros(len(rows), np.int64)

        def last() -> list[int]:
            found = np.zeros(len(wanted), np.int64)
            np.maximum.at(found, which, rows)
            return found.tolist()

        columns = batch_of(self.cache.shards(wanted, last), which, rows, out)
        self.cache.done(wanted)
        for level in range(self._files - 1):
            neighbours = self._neighbours(level, wanted)
            if neighbours:
                columns |= batch_of(self.cache.shards(neighbours, last), which, rows, out)
                self.cache.done(neighbours)
        return columns

    def _neighbours(self, level: int, wanted: list[int]) -> list[int]:
        """The shards beside these; none, if no columns were added to any of them."""
        found = [] if self._beside is None else self._beside.at(level, np.array(wanted)).tolist()
        if -1 not in found:
            return found
        if any(number >= 0 for number in found):
            raise SchemaError(
                f"a batch of {self.root} holds samples of streams with and without added columns; add the same ones to "
                "each, or read with `batching_method='per_stream'`"
            )
        return []

    def _in_parts(self, wanted: list[int], numbers: Ids, rows: Ids) -> dict[str, Any]:
        """A batch out of more shards than may be open at once: each holds a file descriptor, and macOS allows 256."""
        check_alike([self.shards[number] for number in wanted])
        parts, places = [], []
        stride = max(1, self.cache.max_open // self._files)
        for begin in range(0, len(wanted), stride):
            some = wanted[begin : begin + stride]
            places.append(np.flatnonzero((numbers >= some[0]) & (numbers <= some[-1])))
            parts.append(self._batch(some, numbers[places[-1]], rows[places[-1]]))
        return joined(parts, places)

    def _locate(self, sample_ids: Ids) -> tuple[Ids, Ids]:
        # Nothing behind this checks it: what lies before a shard in memory belongs to others.
        if len(sample_ids) and not (sample_ids.min() >= 0 and sample_ids.max() < self._num_samples):
            raise IndexError(
                f"samples {sample_ids.min()} to {sample_ids.max()} of {self.root}, which has "
                f"{self._num_samples}: expected numbers from 0 on"
            )
        numbers = np.searchsorted(self._ends, sample_ids, side="right")
        return numbers, sample_ids - self._begins[numbers]


def _cache_of(sets: tuple[ShardSet, ...], limit: int | None) -> ShardCache:
    """One cache for all streams, and for what was added beside their shards."""
    sources = [each.source for each in sets]
    beside = [source for each in sets for source in each.sources_beside]
    if not beside:
        return ShardCache(*sources, limit=limit)
    neighbours = Beside.of([len(each.shards) for each in sets], [len(each.added) for each in sets])
    return JoinedCache(*sources, *beside, limit=limit, beside=neighbours)


def _distinct(numbers: Ids) -> list[int]:
    """The shards with these numbers, each once, in their order; the first one for a batch of nothing."""
    return sorted(set(numbers.tolist())) or [0]


def _as_before(options: StreamOptions, version: int) -> StreamOptions:
    """What was asked for, in the version that was found; a set without versions has number 0."""
    return replace(options, version=version, tag=None) if version else options


def open_streams(
    options: Sequence[StreamOptions], before: Sequence[Version] = (), *, cache_limit: int | None = None
) -> OpenStreams:
    """The shard sets, in the versions that were opened before, if any were.

    Raises:
        CursorError: a set without versions was replaced since.
        SmaltiError: the classes that `find_shard_set` names.
    """
    if not before:
        return OpenStreams(options, cache_limit)
    opened = OpenStreams(
        [_as_before(each, number) for each, (number, _) in zip(options, before, strict=True)],
        cache_limit,
    )
    for (_, digest), each in zip(before, opened.sets, strict=True):
        if digest != each.manifest.digest:
            raise CursorError(
                f"{each.options.root}: this dataset has read digest {digest[:12]} before, and finds "
                f"{each.manifest.digest[:12]} now. Make a new StreamingDataset to read that.",
                saved=digest,
                found=each.manifest.digest,
            )
    return opened
