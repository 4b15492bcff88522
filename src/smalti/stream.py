"""Stream: one shard set, or one split of it, opened for reading. Wiring only: manifest, store and cache."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheOptions, ShardCache
from smalti.catalog import Manifest, load_manifest
from smalti.errors import SchemaError, StoreNotFound, VersionNotFound
from smalti.format import AnyShard, ShardInfo, batch_of, check_readable, decode_gathered, gather_of
from smalti.format.joining import check_alike, filled, joined
from smalti.storage import Store, open_store

Ids = NDArray[np.int64]
Read = Callable[[Sequence[AnyShard], Ids, Ids], dict[str, Any]]


@dataclass(frozen=True)
class StreamOptions:
    """What the user chose: where the shard set lies, which version and split of it, and how it is fetched."""

    remote: str | None = None
    """URL or folder of the data set's root; None to read `local` in place."""
    local: str | None = None
    """Folder for fetched shards; None for the user's cache folder."""
    split: str | None = None
    """Split to read, such as `train`; None for the whole set."""
    version: int | None = None
    """Version to read; None for the newest."""
    download_retry: int = 2
    download_timeout: float = 60.0
    keep_zip: bool = False
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    allow_unsafe_types: bool = False

    def __post_init__(self) -> None:
        if self.remote is None and self.local is None:
            raise ValueError("`remote` or `local` is needed: the URL or folder that holds the data set's index.json.")

    @property
    def root(self) -> str:
        """Where the data set is read from."""
        return str(self.local if self.remote is None else self.remote)


class Stream:
    """The samples of one shard set, by sample id, from stores near or far."""

    def __init__(self, options: StreamOptions) -> None:
        """Opens the manifest; no shard is fetched yet.

        Raises:
            StoreNotFound: no data set there.
            VersionNotFound: no such version or split.
            StoreError: the store cannot be read.
            FormatError: the index or manifest cannot be trusted.
            SchemaError: a column is unsafe (`pkl`) and `allow_unsafe_types` is not given.
        """
        self.options = options
        store = open_store(options.root, dict(options.storage_options))
        self.manifest, self._store, self.shards = _find(store, options)
        check_readable(self.shards, allow_unsafe_types=options.allow_unsafe_types)
        self.shard_sizes: NDArray[np.int64] = np.array([info.samples for info in self.shards], dtype=np.int64)
        self._ends = np.cumsum(self.shard_sizes)
        self._begins = self._ends - self.shard_sizes
        self._num_samples = int(self._ends[-1]) if self._ends.size else 0
        # Bisected in a tenth of the time that numpy takes for one id.
        self._end_array = array("q", self._ends.tobytes())
        cache = CacheOptions(
            local=options.local if options.remote is not None else None,
            download_retry=options.download_retry,
            download_timeout=options.download_timeout,
            keep_zip=options.keep_zip,
        )
        self._cache = ShardCache(
            self._store,
            self.manifest.digest,
            self.shards,
            cache,
            allow_unsafe_types=options.allow_unsafe_types,
        )

    def __len__(self) -> int:
        return self._num_samples

    def sample(self, sample_id: int) -> dict[str, Any]:
        """One decoded sample; `sample_id` in [0, len(stream))."""
        ends = self._end_array
        number = bisect_right(ends, sample_id)
        return self._cache.shard(number)[sample_id - (ends[number - 1] if number else 0)]

    def batch(self, sample_ids: NDArray[np.int64], *, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """The samples as columns, in the order of `sample_ids`; thread-safe.

        Args:
            sample_ids: int64, shape (n,), each in [0, len(stream)).
            out: arrays to fill for columns of fixed size, by name; see `Shard.batch`.

        Returns:
            Column to values: arrays for columns of fixed size, lists for the others, images as bytes.

        Raises:
            IndexError: there is no such sample.
            SmaltiError: a shard cannot be fetched, or is damaged.
            SchemaError: shards of the batch have different columns.
        """
        numbers, rows = self._locate(sample_ids)
        wanted = _distinct(numbers)
        if len(wanted) <= self._cache.max_open:
            return batch_of(*self._open(wanted, numbers, rows), out)
        return filled(self._in_parts(wanted, numbers, rows, batch_of), out)

    def gather(self, sample_ids: NDArray[np.int64], columns: Sequence[str] | None = None) -> dict[str, Any]:
        """The samples as columns, undecoded, for another process to decode; thread-safe.

        Args:
            sample_ids: int64, shape (n,), each in [0, len(stream)).
            columns: names of the columns wanted; None for all.

        Returns:
            Column to values: arrays for columns of fixed size, else a `Ragged`; a list for what has no bytes.

        Raises:
            IndexError: there is no such sample.
            SmaltiError: a shard cannot be fetched, or is damaged.
            SchemaError: shards of the batch have different columns, or there is no such column.
        """
        numbers, rows = self._locate(sample_ids)
        wanted = _distinct(numbers)
        first = self.shards[wanted[0]]
        here, whole = first.schema, self.manifest.schema
        if here is not whole and here.columns() != whole.columns():
            raise SchemaError(
                f"shard {first.raw.basename} has columns {here.columns()}, and the set's first shard has "
                f"{whole.columns()}: another process could not tell how to decode them. Read such a set sample by "
                "sample or with threads, or write it again with one schema.",
                shard=first.raw.basename,
            )
        if len(wanted) <= self._cache.max_open:
            return gather_of(*self._open(wanted, numbers, rows), columns)
        return self._in_parts(wanted, numbers, rows, partial(gather_of, columns=columns))

    def decoded(self, gathered: Mapping[str, Any]) -> dict[str, Any]:
        """What `batch` returns, from what `gather` returned, perhaps in another process; opens nothing.

        Raises:
            FormatError: a value is damaged; `column` and `row`, its place in the batch, say which.
        """
        return decode_gathered(self.manifest.schema, gathered, allow_unsafe_types=self.options.allow_unsafe_types)

    def prefetch(self, sample_ids: NDArray[np.int64]) -> None:
        """Begins to fetch the shards of these samples, first needed first; returns at once."""
        shards, _ = self._locate(sample_ids)
        _, first = np.unique(shards, return_index=True)
        self._cache.prefetch(int(shard) for shard in shards[np.sort(first)])

    def close(self) -> None:
        """Lets go of open shards and fetching threads."""
        self._cache.close()

    def _open(self, wanted: list[int], numbers: Ids, rows: Ids) -> tuple[list[AnyShard], Ids, Ids]:
        """The open shards of a batch, and for each sample its shard's place among them and its own in the shard."""
        which = np.searchsorted(np.array(wanted), numbers) if len(wanted) > 1 else np.zeros(len(rows), np.int64)
        return list(map(self._cache.shard, wanted)), which, rows

    def _in_parts(self, wanted: list[int], numbers: Ids, rows: Ids, read: Read) -> dict[str, Any]:
        """A batch out of more shards than may be open at once: each holds a file descriptor, and macOS allows 256."""
        check_alike([self.shards[number] for number in wanted])
        parts, places = [], []
        for begin in range(0, len(wanted), self._cache.max_open):
            some = wanted[begin : begin + self._cache.max_open]
            places.append(np.flatnonzero((numbers >= some[0]) & (numbers <= some[-1])))
            parts.append(read(*self._open(some, numbers[places[-1]], rows[places[-1]])))
        return joined(parts, places)

    def _locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        # Nothing behind this checks it: what lies before a shard in memory belongs to others.
        if len(sample_ids) and not (sample_ids.min() >= 0 and sample_ids.max() < self._num_samples):
            raise IndexError(
                f"samples {sample_ids.min()} to {sample_ids.max()} of {self.options.root}, which has "
                f"{self._num_samples}: expected numbers from 0 on"
            )
        numbers = np.searchsorted(self._ends, sample_ids, side="right")
        return numbers, sample_ids - self._begins[numbers]


def _distinct(numbers: Ids) -> list[int]:
    """The shards with these numbers, each once, in their order; the first one for a batch of nothing."""
    return sorted(set(numbers.tolist())) or [0]


def _find(store: Store, options: StreamOptions) -> tuple[Manifest, Store, tuple[ShardInfo, ...]]:
    """The manifest at the root, or, as MosaicML lays splits out, below the split's own folder."""
    try:
        manifest = load_manifest(store, version=options.version)
    except (VersionNotFound, StoreNotFound):
        if options.split is None or options.version is not None:
            raise
        return _find_below(store, options.split)
    if options.split is not None and not any(manifest.partitions):
        return _find_below(store, options.split)
    return manifest, store, manifest.select(options.split)


def _find_below(store: Store, split: str) -> tuple[Manifest, Store, tuple[ShardInfo, ...]]:
    below = store.child(split)
    manifest = load_manifest(below)
    return manifest, below, manifest.shards
