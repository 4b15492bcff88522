"""ShardSet: one shard set, or one split of it, with its manifest and store. No shard is fetched.

`find_shard_set` loads and checks it, and warns of splits that are read as one by mistake.

Also here: the version of a remote set that this machine opened last, a hint in the cache folder, which saves a round
trip.

The newest version is always looked up in the store. The hint says which header to request at the same time as the index
file; a wrong, lost or damaged hint costs that round trip and nothing else.
"""

import hashlib
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from smalti.cache import ShardSource
from smalti.cache.sources import CacheOptions, detect_cache_folder
from smalti.catalog import Manifest
from smalti.catalog.manifest import INDEX, has_write_id
from smalti.catalog.opening import WantedVersion, open_version
from smalti.catalog.sidecars import ColumnsEntry, aligned_shards, columns_of
from smalti.catalog.table.shard_table import ShardBytes, bytes_of, kinds_of, sizes_of, without_hash
from smalti.errors import IndexFileError, MixedSplitsWarning, SchemaError, StoreNotFound, VersionNotFound
from smalti.format import ShardInfo, check_readable, num_bytes_of_empty
from smalti.format.logical import LogicalTypes, masks_of, parse_logical
from smalti.regular_files import read_regular_text
from smalti.storage import Store, open_store
from smalti.storage.store import temporary_name
from smalti.stream.stream import StreamOptions

SPLIT_NAMES = frozenset(
    {
        "train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation", "holdout",
    }
)  # fmt: skip
"""Folders taken for splits in a set without a manifest; folders with other names are parts of a merged set."""
VERSIONS_FOLDER = ".versions"
"""Folder in the cache folder that has a hint for each set; see `LastVersion`."""
_MAX_DIGITS = 18
_MAX_SPLITS_IN_MESSAGE = 5
_MAX_NEAR_NAMES = 3  # of columns, in an error
_warned: set[str] = set()  # roots; each is warned of once per process


def splits_of(manifest: Manifest) -> tuple[str, ...]:
    """Return a version's splits; of a plain set, the folders of its shards if all have names of splits."""
    if manifest.version or not len(manifest.shards):
        return manifest.partitions
    shards = manifest.shards
    # Shards of a folder are listed together: three of them find two splits always, and three splits usually.
    names = [shards[place].raw.basename for place in (0, len(shards) // 2, -1)]
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    return tuple(folders) if SPLIT_NAMES.issuperset(folder.lower() for folder in folders) else ()


@dataclass(frozen=True, eq=False)
class ShardPart:
    """Columns of a set and the shards that hold them: its own, or those of columns that were added later."""

    digest: str
    """Digest of the manifest, or of the added columns."""
    columns: Mapping[str, str]
    """Name to encoding."""
    logical: Mapping[str, Any]
    """Logical types by column."""
    shards: Sequence[ShardInfo]
    """In all parts of a set as many, in the same order, with the same samples."""


@dataclass(frozen=True, eq=False)
class ShardSet:
    """One shard set before any of its shards is opened."""

    options: StreamOptions
    manifest: Manifest
    store: Store
    """The store that holds its shards."""
    parts: tuple[ShardPart, ...]
    """The shards of the split, and those of added columns that are read together with them; where only added columns
    are read, the latter alone."""

    @property
    def shards(self) -> Sequence[ShardInfo]:
        """The shards of the first part, for which those of the others stand aligned."""
        return self.parts[0].shards

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
        """Bytes of every shard together with its shards of added columns."""
        return ShardBytes(*np.sum([bytes_of(part.shards) for part in self.parts], axis=0))

    @cached_property
    def logical(self) -> LogicalTypes | None:
        """Logical types of its columns; None where values are returned as stored."""
        if not self.options.logical:
            return None
        columns, types = self.columns, self.logical_types
        if self.options.columns is not None:
            types = {name: kind for name, kind in types.items() if name in columns}
        return parse_logical(types, columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options, self.manifest, self.store, self.parts)  # cached properties are computed again

    @property
    def logical_types(self) -> dict[str, Any]:
        """Column to logical type, in all parts."""
        return _logical_types(self.parts)

    @property
    def columns(self) -> dict[str, str]:
        """Name to encoding of every column that is read, the added ones included."""
        columns = {name: encoding for part in self.parts for name, encoding in part.columns.items()}
        names = self.stored_names
        return columns if names is None else {name: columns[name] for name in names}

    @cached_property
    def stored_names(self) -> tuple[str, ...] | None:
        """The columns to read as the user named them, followed by the marks of their nulls; None for all."""
        names, options = self.options.columns, self.options
        if names is None or not options.logical:
            return names
        masks = masks_of(self.logical_types)
        return (*names, *(masks[name] for name in names if name in masks))

    @cached_property
    def sources(self) -> list[ShardSource]:
        """The cache's sources, one for each part."""
        options, wanted = self.options, self.stored_names
        is_own = self.manifest.version > 0  # a plain set has no version; any writer may have made its shards
        return [
            ShardSource(
                self.store, part.digest, part.shards, options.cache, options.allow_unsafe_types, is_own,
                None if wanted is None else tuple(name for name in wanted if name in part.columns),
            )
            for part in self.parts
        ]  # fmt: skip


class ConcatenatedShards(Sequence[ShardInfo]):
    """The shards of several sets, laid end to end; each `ShardInfo` is made when it is indexed."""

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
        """Return a shard, or a list of shards for a slice."""
        numbers = range(len(self))[at]
        return self._shard(numbers) if isinstance(numbers, int) else list(map(self._shard, numbers))

    def __iter__(self) -> Iterator[ShardInfo]:
        return chain.from_iterable(self._parts)

    def _shard(self, number: int) -> ShardInfo:
        part = bisect_right(self._ends, number)
        return self._parts[part][number - (self._ends[part - 1] if part else 0)]


def find_shard_set(options: StreamOptions) -> ShardSet:
    """Load the manifest of a shard set, choose its split and check that it can be read.

    Raises:
        StoreNotFound: there is no data set.
        VersionNotFound: no such version or tag.
        CatalogError: no such split of a set with splits.
        StoreNotFound: the set has no splits, and no folder of this name.
        StoreError: the store cannot be read.
        FormatError: the index or manifest cannot be trusted, or is an index file that lists no shards.
        SchemaError: a column is unsafe (`pkl`) and `allow_unsafe_types` is not given, or of a logical type that this
            release does not support, or a file lacks the hash that `validate_hash` requires; or the set lacks one of
            `columns`.
    """
    found, root = load_shard_set(options), options.root
    splits = () if options.split is not None or root in _warned else splits_of(found.manifest)
    if len(splits) > 1:
        _warned.add(root)
        more = ", ..." if len(splits) > _MAX_SPLITS_IN_MESSAGE else ""
        names = ", ".join(map(repr, splits[:_MAX_SPLITS_IN_MESSAGE])) + more
        warnings.warn(
            f"{root} has the splits {names}, and is opened without `split`: samples of all of them are read as one, "
            f"those for validation too. Give split={splits[0]!r} or another one; to mix them on purpose, give a stream "
            "for each: streams=[Stream(remote=..., split=...), ...]",
            MixedSplitsWarning,
            stacklevel=2,
        )
    return found


def load_shard_set(options: StreamOptions) -> ShardSet:
    """Load a shard set as `find_shard_set` does, without its warning of splits that are read as one.

    Raises:
        SmaltiError: as for `find_shard_set`.
    """
    place = options.root if options.store is None else options.store
    manifest, store, shards = _find(open_store(place, dict(options.storage_options)), options)
    entries = columns_of(manifest.sidecars)
    needed = entries if options.columns is None else _needed(manifest, entries, options)
    own = ShardPart(manifest.digest, manifest.schema.columns(), manifest.logical, shards)
    added = tuple(_added(store, manifest, shards, options.split, entry) for entry in needed)
    found = ShardSet(options, manifest, store, (own, *added))
    if added and found.sources[0].names == ():  # all columns are in added shards: those of the set are not read
        found = ShardSet(options, manifest, store, added)
    _ = found.logical  # checks the logical types
    _check_samples(store, manifest, shards)
    for source in found.sources:
        check_readable(kinds_of(source.shards), allow_unsafe_types=options.allow_unsafe_types, names=source.names)
        name = options.cache.validate_hash
        file = None if name is None else without_hash(source.shards, name)
        if file is not None:
            has = ", ".join(sorted(file.hashes)) or "none"
            raise SchemaError(
                f"`validate_hash` is {name!r}, and the index of {options.root} has hashes {has} for {file.basename}. "
                "Leave it out: every hash that the index has is checked.",
                shard=file.basename,
                lacking_hash=name,
                hashes=sorted(file.hashes),
            )
    return found


def _logical_types(holders: Iterable[Manifest | ColumnsEntry | ShardPart]) -> dict[str, Any]:
    """Return column to logical type, of all of these."""
    return {name: kind for each in holders for name, kind in each.logical.items()}


def _needed(manifest: Manifest, entries: Sequence[ColumnsEntry], options: StreamOptions) -> list[ColumnsEntry]:
    """Return the entries of added columns of which one is to be read.

    Raises:
        SchemaError: the set lacks one of the columns.
    """
    types, known = _logical_types((manifest, *entries)), set(manifest.schema.names)
    known.update(*(entry.columns for entry in entries))
    if options.logical:
        known.difference_update(masks_of(types).values())
    wanted = options.columns or ()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], sorted(known), n=_MAX_NEAR_NAMES)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
        raise SchemaError(
            f"`columns` names {unknown[0]!r}, which {options.root} does not have. Its columns are "
            f"{', '.join(sorted(known))}{hint}",
            column=unknown[0],
            columns=tuple(sorted(known)),
        )
    return [entry for entry in entries if not entry.columns.keys().isdisjoint(wanted)]


def _check_samples(store: Store, manifest: Manifest, shards: Sequence[ShardInfo]) -> None:
    """Refuse an index file that lists no shards, or that gives a shard 0 samples although its size shows some.

    A version that Smalti published may be empty, as a table may. MosaicML's writer leaves an empty list where nothing
    was written, and MosaicML's reader refuses it, too.
    """
    sizes = sizes_of(shards)
    if manifest.version == 0 and not sizes.size:
        raise IndexFileError(
            f"{store.locate(INDEX)} lists no shards; the address is wrong, or the writer did not end well: write the "
            "set again",
            url=store.url,
            num_shards=0,
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
) -> ShardPart:
    """Return added columns for the shards of the split.

    Raises:
        IndexFileError: they are not aligned with the shards.
    """
    added = aligned_shards(store, entry, manifest.shards)
    if split is not None and len(shards) < len(added):
        added = added.of_partition(split)
    if not np.array_equal(sizes_of(added), sizes_of(shards)):
        raise IndexFileError(
            f"{store.url}, version {manifest.version}: split {split!r} has {len(shards)} shards, and its added columns "
            f"{', '.join(entry.columns)} have {len(added)} or others of other sizes",
            split=split,
        )
    return ShardPart(entry.digest, entry.columns, entry.logical, added)


def _find(store: Store, options: StreamOptions) -> tuple[Manifest, Store, Sequence[ShardInfo]]:
    """Return manifest, store and shards at the root, or below the split's own folder, as MosaicML lays out splits."""
    try:
        manifest = _load(store, options)
    except (VersionNotFound, StoreNotFound) as missing:
        if options.split is None:
            raise
        try:
            return _find_below(store, options.split, options)
        except StoreNotFound:
            if options.version is None and options.tag is None:
                raise
            raise missing from None  # the set is there and lacks the version
    if options.split is None or any(manifest.partitions):
        return manifest, store, manifest.select(options.split)
    try:
        return _find_below(store, options.split, options)
    except StoreNotFound as missing:
        which = f", version {manifest.version}," if manifest.version else ""
        raise StoreNotFound(
            f"{store.url}{which} has no splits, and no folder {options.split!r} with a shard set of its own: leave "
            "`split` out (of a training: train_split=None and eval_split=None) to read all samples, or write the set "
            "with splits",
            url=store.url,
            split=options.split,
        ) from missing


def _find_below(store: Store, split: str, options: StreamOptions) -> tuple[Manifest, Store, Sequence[ShardInfo]]:
    below = store.child(split)
    manifest = _load(below, options)
    return manifest, below, manifest.shards


class LastVersion:
    """The version of a remote set that this machine opened last: a hint in the cache folder, which saves a round trip.

    The newest version is always looked up in the store. The hint says which header to request at the same time as the
    index file; a wrong, lost or damaged hint costs that round trip and nothing else. There is none for a set on this
    machine, or in a folder that mirrors a set.
    """

    def __init__(self, store: Store, options: CacheOptions) -> None:
        self._path: Path | None = None
        if store.local_path(INDEX) is None and not options.mirror:
            folder = Path(options.local).expanduser() if options.local else detect_cache_folder()
            self._path = folder / VERSIONS_FOLDER / hashlib.sha256(store.url.encode()).hexdigest()[:32]

    def read(self) -> int | None:
        """Return the version that was opened last; None if that is not known."""
        if self._path is not None:
            with suppress(OSError, ValueError):
                text = read_regular_text(self._path, "ascii")
                if text.isdecimal() and len(text) <= _MAX_DIGITS and int(text):
                    return int(text)
        return None

    def write(self, version: int) -> None:
        """Record the version that was opened. Best effort, and only where copies of shards lie already."""
        if self._path is not None and version and self._path.parents[1].is_dir() and self.read() != version:
            with suppress(OSError):
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                # A new file in place of the old one: a link there, in a folder that users share, is not followed.
                part = self._path.with_name(temporary_name(self._path.name))
                try:
                    part.write_text(str(version), "ascii")
                    part.replace(self._path)
                finally:
                    part.unlink(missing_ok=True)


def _load(store: Store, options: StreamOptions) -> Manifest:
    if options.version is not None or options.tag is not None:
        return open_version(store, WantedVersion(options.version, options.tag))
    last = LastVersion(store, options.cache)
    manifest = open_version(store, WantedVersion(expected=last.read()))
    last.write(manifest.version)
    return manifest
