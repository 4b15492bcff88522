"""Stream: one shard set, or one split of it, opened for reading. Wiring only: manifest, store and cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheOptions, ShardCache
from smalti.catalog import Manifest, load_manifest
from smalti.errors import StoreNotFound, VersionNotFound
from smalti.format import ShardInfo
from smalti.storage import Store, open_store


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
        """
        self.options = options
        store = open_store(options.root, dict(options.storage_options))
        self.manifest, self._store, self.shards = _find(store, options)
        sizes = [info.samples for info in self.shards]
        self.shard_sizes: NDArray[np.int64] = np.array(sizes, dtype=np.int64)
        self._ends = np.cumsum(self.shard_sizes)
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
        return int(self._ends[-1]) if self._ends.size else 0

    def sample(self, sample_id: int) -> dict[str, Any]:
        """One decoded sample; `sample_id` in [0, len(stream))."""
        shard = int(np.searchsorted(self._ends, sample_id, side="right"))
        return self._cache.shard(shard)[sample_id - int(self._ends[shard] - self.shard_sizes[shard])]

    def batch(self, sample_ids: NDArray[np.int64]) -> dict[str, Any]:
        """The samples as columns, in the order of `sample_ids`: arrays for fixed-size columns, lists for the others."""
        shards, places = self._locate(sample_ids)
        by_shard = np.argsort(shards, kind="stable")
        cuts = np.flatnonzero(np.diff(shards[by_shard])) + 1
        groups = np.split(by_shard, cuts)
        parts = [self._cache.shard(int(shards[group[0]])).batch(places[group]) for group in groups]
        if len(parts) == 1:
            return parts[0]  # a stable sort of equal keys moved nothing
        return {name: _merged([part[name] for part in parts], groups) for name in parts[0]}

    def prefetch(self, sample_ids: NDArray[np.int64]) -> None:
        """Begins to fetch the shards of these samples, first needed first; returns at once."""
        shards, _ = self._locate(sample_ids)
        _, first = np.unique(shards, return_index=True)
        self._cache.prefetch(int(shard) for shard in shards[np.sort(first)])

    def close(self) -> None:
        """Lets go of open shards and fetching threads."""
        self._cache.close()

    def _locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        shards = np.searchsorted(self._ends, sample_ids, side="right").astype(np.int64)
        return shards, sample_ids - (self._ends[shards] - self.shard_sizes[shards])


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


def _merged(parts: Sequence[Any], groups: Sequence[NDArray[np.int64]]) -> Any:
    total = sum(group.size for group in groups)
    if isinstance(parts[0], np.ndarray):
        column = np.empty((total, *parts[0].shape[1:]), dtype=parts[0].dtype)
        for part, group in zip(parts, groups, strict=True):
            column[group] = part
        return column
    rows: list[Any] = [None] * total
    for part, group in zip(parts, groups, strict=True):
        for place, value in zip(group.tolist(), part, strict=True):
            rows[place] = value
    return rows
