"""The search for samples in the shards of versions: which rows of which shards a predicate chooses.

A version is read shard by shard, several at a time. Only the columns of each shard are decoded that the predicate
reads; of columns that lie in shards beside (`add_columns`), only those shards are fetched. Results are remembered by
shard, so that a shard which several versions share is read once.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from smalti.catalog import Manifest
from smalti.catalog.header import Header, read_manifest
from smalti.catalog.sidecars import ColumnsEntry, aligned_shards, columns_of
from smalti.catalog.verify import open_checked
from smalti.errors import SchemaError
from smalti.format import AnyShard, Schema, ShardInfo
from smalti.format.logical import MASK_SUFFIX, LogicalTypes, parse_logical
from smalti.format.reading.batch import decode_gathered
from smalti.storage import Store
from smalti.writer.predicate import Ids, Predicate

Rows = NDArray[np.int64]
"""Numbers of samples in a shard, ascending."""
_BATCH_SAMPLES = 4096
_SHARDS_AT_ONCE = 64  # that are handed to the threads before their results are collected
MAX_WORKERS = 4
"""Shards that are read at the same time; the unpacked files of each lie in the folder for temporary files."""


@dataclass(frozen=True)
class SampleGroup:
    """A shard, and the shards of added columns with the same samples."""

    main: ShardInfo
    added: tuple[ShardInfo, ...] = ()

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shard, followed by those of added columns."""
        return (self.main, *self.added)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of their files; equal for the same samples."""
        return tuple(shard.raw.basename for shard in self.shards)


@dataclass(frozen=True)
class VersionContent:
    """The shards of a version, with those of added columns."""

    manifest: Manifest
    entries: tuple[ColumnsEntry, ...] = ()
    added: tuple[Sequence[ShardInfo], ...] = ()
    """For each entry, the shards aligned with those of the version."""

    @classmethod
    def of(cls, store: Store, manifest: Manifest) -> "VersionContent":
        """Load the tables of added columns."""
        entries = columns_of(manifest.sidecars)
        return cls(manifest, entries, tuple(aligned_shards(store, entry, manifest.shards) for entry in entries))

    @classmethod
    def read(cls, store: Store, header: Header) -> "VersionContent":
        """Load all tables of a version."""
        return cls.of(store, read_manifest(store, header))

    def __iter__(self) -> Iterator[SampleGroup]:
        for main, *added in zip(self.manifest.shards, *self.added, strict=True):
            yield SampleGroup(main, tuple(added))


@dataclass(frozen=True)
class _ColumnSource:
    """The columns to read from the shards of one row of a group."""

    row: int
    """0 for the version's own shards, 1 and up for added columns."""
    columns: tuple[str, ...]
    types: LogicalTypes | None

    def batch(self, shard: AnyShard, schema: Schema, rows: Rows) -> dict[str, Any]:
        """Return the values of some samples, as readers of the set get them."""
        found = decode_gathered(schema, shard.gather(rows, self.columns))
        return found if self.types is None else self.types.batch(found)


class SampleSearch(ABC):
    """A search whose results are remembered by shard. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._found: dict[tuple[str, ...], Rows] = {}

    def run(
        self, content: VersionContent, on_shard: Callable[[int, int], None] | None = None
    ) -> Iterator[tuple[SampleGroup, Rows]]:
        """Yield the groups with chosen samples and the numbers of these, in order.

        Raises:
            SchemaError: the version lacks a column, or its values cannot be compared so.
            ChecksumMismatch: a shard is damaged.
            StoreError: a shard cannot be read.
        """
        self.prepare(content)
        groups, done, total = iter(content), 0, len(content.manifest.shards)
        with ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="smalti-search") as pool:
            while part := list(islice(groups, _SHARDS_AT_ONCE)):
                for group, rows in zip(part, pool.map(self.rows_of, part), strict=True):
                    done += 1
                    if on_shard is not None:
                        on_shard(done, total)
                    if rows.size:
                        yield group, rows

    def rows_of(self, group: SampleGroup) -> Rows:
        """Return the chosen samples of a group."""
        key = self.shards_read(group)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self.read(group)
        return found

    def shards_read(self, group: SampleGroup) -> tuple[str, ...]:
        """Return the names of the shards on which the result depends."""
        return (group.main.raw.basename,)

    def forget(self) -> None:
        """Read every shard again from now on."""
        self._found.clear()

    @abstractmethod
    def prepare(self, content: VersionContent) -> None:
        """Prepare to read a version.

        Raises:
            SchemaError: it lacks a column.
        """

    @abstractmethod
    def read(self, group: SampleGroup) -> Rows:
        """Read a group, and return the chosen samples."""


class PredicateSearch(SampleSearch):
    """The search for samples by a predicate on their columns."""

    def __init__(self, store: Store, predicate: Predicate) -> None:
        super().__init__(store)
        self.predicate = predicate
        self.ids_found: set[str] = set()
        """The ids of a predicate of which there was a sample."""
        self._sources: list[_ColumnSource] = []
        self._columns: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def prepare(self, content: VersionContent) -> None:
        """Find where the columns of the predicate lie in this version."""
        places = dict(_places(content))
        self._columns = self.predicate.columns_of(tuple(places))
        self._sources = []
        for row, (encodings, logical) in enumerate(_rows(content)):
            names = tuple(name for name in self._columns if places[name] == row)
            if names:
                types = {name: logical[name] for name in names if name in logical}
                masks = tuple(name + MASK_SUFFIX for name in names if _has_mask(types.get(name)))
                self._sources.append(_ColumnSource(row, (*names, *masks), parse_logical(types, encodings)))

    def shards_read(self, group: SampleGroup) -> tuple[str, ...]:
        """Return the names of the shards that hold the columns; of all, if it reads no column."""
        rows = [source.row for source in self._sources] or range(len(group.shards))
        return tuple(group.shards[row].raw.basename for row in rows)

    def read(self, group: SampleGroup) -> Rows:
        """Decode the columns, and apply the predicate."""
        found: list[Rows] = []
        with ExitStack() as stack:
            opened = [
                (source, shard.schema, stack.enter_context(open_checked(self.store, shard)))
                for source, shard in ((source, group.shards[source.row]) for source in self._sources)
            ]
            for begin in range(0, group.main.samples, _BATCH_SAMPLES):
                rows = np.arange(begin, min(begin + _BATCH_SAMPLES, group.main.samples))
                batch: dict[str, Any] = {}
                for source, schema, shard in opened:
                    batch |= source.batch(shard, schema, rows)
                found.append(rows[self._mask(batch, len(rows))])
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _mask(self, batch: Mapping[str, Any], rows: int) -> NDArray[np.bool_]:
        with self._lock:  # functions of callers need not be thread-safe
            mask = self.predicate.mask({name: batch[name] for name in self._columns}, rows)
            if isinstance(self.predicate, Ids):
                self.ids_found |= self.predicate.values_in(batch, mask)
        return mask


class PositionSearch(SampleSearch):
    """The samples at given positions of one version; `positions` has sample numbers by the name of the shard."""

    def __init__(self, store: Store, positions: Mapping[str, Rows]) -> None:
        super().__init__(store)
        self.positions = positions

    def prepare(self, content: VersionContent) -> None:
        """Do nothing: no column is read."""

    def read(self, group: SampleGroup) -> Rows:
        """Return the positions in the shard."""
        return self.positions.get(group.main.raw.basename, np.zeros(0, np.int64))


class CopySearch(SampleSearch):
    """The search for samples whose stored bytes are those of given samples."""

    def __init__(self, store: Store, hashes: frozenset[bytes]) -> None:
        super().__init__(store)
        self.hashes = hashes

    def prepare(self, content: VersionContent) -> None:
        """Do nothing: samples are compared as they are stored."""

    def read(self, group: SampleGroup) -> Rows:
        """Hash every sample of the shard."""
        hashes = sample_hashes(self.store, group.main)
        return np.array([row for row, each in enumerate(hashes) if each in self.hashes], np.int64)


@dataclass(frozen=True)
class Selection:
    """The chosen samples, as searches of the newest version and of older ones."""

    by: str
    """where, ids, expression, function or positions."""
    what: str
    """The comparisons, or the number of ids, for people."""
    newest: SampleSearch
    older: SampleSearch
    """Also that of the scan after a purge."""
    ids: Ids | None = None

    def missing(self) -> int | None:
        """Return the number of ids of which no sample was found so far; None if there are none."""
        if self.ids is None or not isinstance(self.newest, PredicateSearch):
            return None
        return len(self.ids.missing(self.newest.ids_found))


def sample_hashes(store: Store, shard: ShardInfo, rows: Iterable[int] | None = None) -> list[bytes]:
    """Return the XXH3-128 of samples as stored; of all by default."""
    with open_checked(store, shard) as opened:
        samples = opened.stored_samples()
        chosen = range(len(samples)) if rows is None else rows
        return [xxh3_128_digest(samples[row : row + 1].content) for row in chosen]


def positions_by_shard(content: VersionContent, ids: Iterable[Any]) -> dict[str, Rows]:
    """Return sample numbers by shard, for positions in the whole version.

    Raises:
        SchemaError: one is no position of the version.
    """
    try:
        wanted = np.array(sorted({int(each) for each in ids if not isinstance(each, bool | float)}), np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"`ids` without `column` are positions of samples, whole numbers: {error}") from error
    sizes = np.fromiter((shard.samples for shard in content.manifest.shards), np.int64)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    if wanted.size and not (wanted[0] >= 0 and wanted[-1] < total):
        wrong = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise SchemaError(
            f"there is no sample {wrong}: version {content.manifest.version} has samples 0 to {total - 1}"
        )
    places = np.searchsorted(ends, wanted, side="right")
    found = {}
    for place in np.unique(places).tolist():
        begin = int(ends[place] - sizes[place])
        found[content.manifest.shards[place].raw.basename] = wanted[places == place] - begin
    return found


def _rows(content: VersionContent) -> Iterator[tuple[Mapping[str, str], Mapping[str, Any]]]:
    """Yield encodings and logical types of the version's shards, and of each entry of added columns."""
    yield content.manifest.schema.columns(), content.manifest.logical
    for entry in content.entries:
        yield entry.columns, entry.logical


def _places(content: VersionContent) -> Iterator[tuple[str, int]]:
    """Yield every column of the version, without columns that mark nulls, and the row that it lies in."""
    for row, (encodings, logical) in enumerate(_rows(content)):
        masks = {name + MASK_SUFFIX for name, kind in logical.items() if _has_mask(kind)}
        yield from ((name, row) for name in encodings if name not in masks)


def _has_mask(kind: Any) -> bool:
    return isinstance(kind, Mapping) and bool(kind.get("mask"))
