"""One shard set, or one split of it, found: its manifest and its store. No shard is fetched.

Whether a set has splits that are read as one by mistake. Opens nothing.
"""

import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from smalti.cache import Source
from smalti.catalog import Manifest, load_manifest
from smalti.catalog.additions.columns import ColumnsEntry, aligned_shards, columns_of
from smalti.catalog.header import INDEX
from smalti.catalog.manifest import has_write_id
from smalti.catalog.table.shard_table import ShardBytes, bytes_of, kinds_of, sizes_of, without_hash
from smalti.catalog.tags import chosen_version
from smalti.errors import IndexFileError, MixedSplitsWarning, SchemaError, StoreNotFound, VersionNotFound
from smalti.format import ShardInfo, check_readable, num_bytes_of_empty
from smalti.format.logical import LogicalTypes, parse_logical
from smalti.storage import Store, open_store
from smalti.stream.stream import StreamOptions

SPLIT_NAMES = frozenset(
    {
        "train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation", "holdout",
    }
)  # fmt: skip
"""Folders that are splits where no manifest says which are: parts that were merged have other names."""
_MOST_TOLD = 5
_warned: set[str] = set()


def splits_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the splits of a version, or of a plain set the folders of its shards that look like some."""
    if manifest.version or not len(manifest.shards):
        return manifest.partitions
    shards = manifest.shards
    # Those of a folder stand together: the first and last ones tell of two splits, and of most threes.
    names = [shards[place].raw.basename for place in (0, len(shards) // 2, -1)]
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    return tuple(folders) if SPLIT_NAMES.issuperset(folder.lower() for folder in folders) else ()


def warn_of_mixed_splits(manifest: Manifest, root: str) -> None:
    """Warn, once for each set, of one that has several splits and is opened without a choice among them."""
    splits = splits_of(manifest)
    if len(splits) < 2 or root in _warned:
        return
    _warned.add(root)
    told = ", ".join(map(repr, splits[:_MOST_TOLD])) + (", ..." if len(splits) > _MOST_TOLD else "")
    warnings.warn(
        f"{root} has the splits {told}, and is opened without `split`: samples of all of them are read as one, those "
        f"for validation too. Give split={splits[0]!r} or another one; to mix them on purpose, give a stream for each: "
        "streams=[Stream(remote=..., split=...), ...]",
        MixedSplitsWarning,
        stacklevel=2,
    )


@dataclass(frozen=True, eq=False)
class Added:
    """Columns that were added beside the shards of a set."""

    entry: ColumnsEntry
    shards: Sequence[ShardInfo]
    """Each holds these columns of the samples of the set's shard in the same place."""


@dataclass(frozen=True, eq=False)
class ShardSet:
    """What is known of one shard set before any of its shards is opened."""

    options: StreamOptions
    manifest: Manifest
    store: Store
    """Where its shards lie."""
    shards: Sequence[ShardInfo]
    """Those of the split."""
    added: tuple[Added, ...] = ()
    """What is read joined with them."""

    @cached_property
    def shard_sizes(self) -> NDArray[np.int64]:
        """Samples of every shard; int64, shape (shards,)."""
        return sizes_of(self.shards)

    @cached_property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return int(self.shard_sizes.sum())

    @property
    def num_bytes_each(self) -> ShardBytes:
        """Bytes of every shard with those beside it, which come and go with it."""
        main, *beside = (bytes_of(shards) for shards in (self.shards, *(each.shards for each in self.added)))
        return ShardBytes(
            main.raw + sum(each.raw for each in beside),
            main.stored + sum(each.stored for each in beside),
            main.zipped + sum(each.zipped for each in beside),
        )

    @cached_property
    def logical(self) -> LogicalTypes | None:
        """What its values stand for; None where they are given as they are stored."""
        types = dict(self.manifest.logical)
        for each in self.added:
            types |= each.entry.logical
        return parse_logical(types, self.columns) if self.options.logical else None

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.options, self.manifest, self.store, self.shards, self.added)
        return type(self), parts  # what was counted is counted again

    @property
    def columns(self) -> dict[str, str]:
        """Name to encoding of every column that a sample has, the added ones included."""
        columns = self.manifest.schema.columns()
        for each in self.added:
            columns |= each.entry.columns
        return columns

    @property
    def source(self) -> Source:
        """Where a cache gets its shards from."""
        return self._source(self.manifest.digest, self.shards)

    @property
    def sources_beside(self) -> list[Source]:
        """Where it gets the added columns from."""
        return [self._source(each.entry.digest, each.shards) for each in self.added]

    def _source(self, digest: str, shards: Sequence[ShardInfo]) -> Source:
        options = self.options
        is_own = self.manifest.version > 0  # a plain set has no version; any writer may have made its shards
        return Source(self.store, digest, shards, options.cache, options.allow_unsafe_types, is_own)


class JoinedShards(Sequence[ShardInfo]):
    """The shards of several sets, laid end to end; each is made when it is asked for."""

    def __init__(self, parts: Sequence[Sequence[ShardInfo]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, at: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, at: slice) -> list[ShardInfo]: ...
    def __getitem__(self, at: int | slice) -> ShardInfo | list[ShardInfo]:
        """A shard, or a list of some of them."""
        numbers = range(len(self))[at]
        return self._shard(numbers) if isinstance(numbers, int) else list(map(self._shard, numbers))

    def __iter__(self) -> Iterator[ShardInfo]:
        return chain.from_iterable(self._parts)

    def _shard(self, number: int) -> ShardInfo:
        part = bisect_right(self._ends, number)
        return self._parts[part][number - (self._ends[part - 1] if part else 0)]


def find_shard_set(options: StreamOptions) -> ShardSet:
    """Reads the manifest.

    Raises:
        StoreNotFound: no data set there.
        VersionNotFound: no such version, tag or split.
        StoreError: the store cannot be read.
        FormatError: the index or manifest cannot be trusted, or is an index file that lists no shards.
        SchemaError: a column is unsafe (`pkl`) and `allow_unsafe_types` is not given, is of a logical type that this
            version does not know, or a file has not the hash that `validate_hash` asks for.
    """
    manifest, store, shards = _find(open_store(options.root, dict(options.storage_options)), options)
    added = tuple(_added(store, manifest, shards, options.split, entry) for entry in columns_of(manifest.sidecars))
    found = ShardSet(options, manifest, store, shards, added)
    _ = found.logical
    _check_samples(store, manifest, shards)
    if options.split is None:
        warn_of_mixed_splits(manifest, options.root)
    for part in (shards, *(each.shards for each in added)):
        check_readable(kinds_of(part), allow_unsafe_types=options.allow_unsafe_types)
        if options.cache.validate_hash is not None:
            _check_hash(found, part, options.cache.validate_hash)
    return found


def _check_samples(store: Store, manifest: Manifest, shards: Sequence[ShardInfo]) -> None:
    """Refuse an index file that lists no shards, or says of a shard that it has no samples when it has some.

    A version that Smalti published may be empty, as a table may; MosaicML's writer leaves an empty list where nothing
    was written, and its reader refuses it, too.
    """
    sizes = sizes_of(shards)
    if manifest.version == 0 and not sizes.size:
        raise IndexFileError(
            f"{store.locate(INDEX)} lists no shards; the address is wrong, or the writer did not end well: write the "
            "set again",
            url=store.url,
        )
    for place in np.flatnonzero(sizes == 0).tolist():
        shard = shards[place]
        is_own = manifest.version > 0 or has_write_id(shard.raw.basename)
        if is_own and shard.raw.num_bytes > num_bytes_of_empty(shard):
            raise IndexFileError(
                f"{store.locate(shard.raw.basename)}: the index says that it has 0 samples and {shard.raw.num_bytes} "
                f"bytes, and without samples it would have {num_bytes_of_empty(shard)}; the index was changed: restore "
                "it, or write the set again",
                shard=shard.raw.basename,
            )


def _added(
    store: Store, manifest: Manifest, shards: Sequence[ShardInfo], split: str | None, entry: ColumnsEntry
) -> Added:
    """The added columns of the same split."""
    found = aligned_shards(store, entry, manifest.shards)
    if split is not None and len(shards) < len(found):
        found = found.of_partition(split)
    if not np.array_equal(sizes_of(found), sizes_of(shards)):
        raise IndexFileError(
            f"{store.url}, version {manifest.version}: split {split!r} has {len(shards)} shards, and its added columns "
            f"{', '.join(entry.columns)} have {len(found)} or others of other sizes",
            split=split,
        )
    return Added(entry, found)


def _check_hash(found: ShardSet, shards: Sequence[ShardInfo], name: str) -> None:
    file = without_hash(shards, name)
    if file is not None:
        has = ", ".join(sorted(file.hashes)) or "none"
        raise SchemaError(
            f"`validate_hash` is {name!r}, and the index of {found.options.root} has hashes {has} for "
            f"{file.basename}. Leave it out: every hash that the index has is checked.",
            shard=file.basename,
        )


def _find(store: Store, options: StreamOptions) -> tuple[Manifest, Store, Sequence[ShardInfo]]:
    """The manifest at the root, or, as MosaicML lays splits out, below the split's own folder."""
    try:
        manifest = load_manifest(store, version=chosen_version(store, options.version, options.tag))
    except (VersionNotFound, StoreNotFound) as missing:
        if options.split is None:
            raise
        try:
            return _find_below(store, options.split, options)
        except StoreNotFound:
            if options.version is None and options.tag is None:
                raise
            raise missing from None  # the set is here, and has no such version
    if options.split is not None and not any(manifest.partitions):
        return _find_below(store, options.split, options)
    return manifest, store, manifest.select(options.split)


def _find_below(store: Store, split: str, options: StreamOptions) -> tuple[Manifest, Store, Sequence[ShardInfo]]:
    below = store.child(split)
    manifest = load_manifest(below, version=chosen_version(below, options.version, options.tag))
    return manifest, below, manifest.shards
