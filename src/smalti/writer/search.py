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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from smalti.catalog import Manifest
from smalti.catalog.manifest import Header, read_manifest
from smalti.catalog.sidecars import ColumnsEntry, aligned_shards, columns_of
from smalti.catalog.table.shard_table import sizes_of
from smalti.catalog.verify import open_checked
from smalti.errors import CatalogError, SchemaError
from smalti.format import ShardInfo
from smalti.format.logical import LogicalTypes, masks_of, parse_logical
from smalti.format.reading.batch import decode_gathered
from smalti.storage import Store

if TYPE_CHECKING:
    from smalti.writer.predicate import Predicate

Rows = NDArray[np.int64]
"""Numbers of samples in a shard, ascending."""
SampleGroup = tuple[ShardInfo, ...]
"""A shard, followed by the shards of added columns with the same samples."""
_BATCH_SAMPLES = 4096
_SHARDS_AT_ONCE = 64  # that are handed to the threads before their results are collected
MAX_WORKERS = 4
"""Shards that are read at the same time; the unpacked files of each lie in the folder for temporary files."""


def key_of(group: SampleGroup) -> tuple[str, ...]:
    """Return the names of a group's files; equal for the same samples."""
    return tuple(shard.raw.basename for shard in group)


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
        return zip(self.manifest.shards, *self.added, strict=True)


class SampleSearch(ABC):
    """A search whose results are remembered by shard. Thread-safe.

    Args:
        store: The set's store.
        by: The kind of choice: where, ids, expression, function or positions.
        what: The comparisons, or the number of ids, for people.
    """

    def __init__(self, store: Store, by: str, what: str) -> None:
        self.store, self.by, self.what = store, by, what
        self._found: dict[tuple[str, ...], Rows] = {}

    def run(
        self, content: VersionContent, on_shard: Callable[[int, int], None] | None = None
    ) -> Iterator[tuple[SampleGroup, Rows]]:
        """Yield the groups with chosen samples and the numbers of these, in order.

        Raises:
            SchemaError: the version lacks a column, or its values cannot be compared so.
            CatalogError: the version lacks a shard of given positions.
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
        return (group[0].raw.basename,)

    def forget(self) -> None:
        """Read every shard again from now on."""
        self._found.clear()

    def prepare(self, content: VersionContent) -> None:  # noqa: B027 -- most searches need none
        """Prepare to read a version."""

    def num_missing(self) -> int | None:
        """Return the number of ids of which no sample was found so far; None if samples are not chosen by ids."""
        return None

    @abstractmethod
    def read(self, group: SampleGroup) -> Rows:
        """Read a group, and return the chosen samples."""


class PredicateSearch(SampleSearch):
    """The search for samples by a predicate on their columns."""

    def __init__(self, store: Store, predicate: "Predicate") -> None:
        super().__init__(store, predicate.kind, str(predicate))
        self.predicate = predicate
        self._sources: dict[int, tuple[tuple[str, ...], LogicalTypes | None]] = {}
        """Columns to read and their types, by row of a group: 0 for the version's own shards, 1 and up for added."""
        self._columns: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def prepare(self, content: VersionContent) -> None:
        """Find where the columns of the predicate lie in this version.

        Raises:
            SchemaError: it lacks a column.
        """
        own = content.manifest.schema.columns(), content.manifest.logical
        rows: list[tuple[Mapping[str, str], Mapping[str, Any]]] = [own]
        rows += [(entry.columns, entry.logical) for entry in content.entries]
        places: dict[str, int] = {}  # of every column but those that mark nulls: the row that it lies in
        for row, (encodings, logical) in enumerate(rows):
            masks = set(masks_of(logical).values())
            places |= {name: row for name in encodings if name not in masks}
        self._columns = self.predicate.columns_of(tuple(places))
        self._sources = {}
        for row, (encodings, logical) in enumerate(rows):
            names = tuple(name for name in self._columns if places[name] == row)
            if names:
                types = {name: logical[name] for name in names if name in logical}
                self._sources[row] = (*names, *masks_of(types).values()), parse_logical(types, encodings)

    def num_missing(self) -> int | None:
        """Return the number of ids of which no sample was found so far; None if samples are not chosen by ids."""
        return self.predicate.num_missing()

    def shards_read(self, group: SampleGroup) -> tuple[str, ...]:
        """Return the names of the shards that hold the columns; of all, if it reads no column."""
        return tuple(group[row].raw.basename for row in self._sources or range(len(group)))

    def read(self, group: SampleGroup) -> Rows:
        """Decode the columns as readers of the set get them, and apply the predicate."""
        found: list[Rows] = []
        with ExitStack() as stack:
            opened = [
                (stack.enter_context(open_checked(self.store, group[row])), group[row].schema, names, types)
                for row, (names, types) in self._sources.items()
            ]
            for begin in range(0, group[0].samples, _BATCH_SAMPLES):
                rows = np.arange(begin, min(begin + _BATCH_SAMPLES, group[0].samples))
                batch: dict[str, Any] = {}
                for shard, schema, names, types in opened:
                    values = decode_gathered(schema, shard.gather(rows, names))
                    batch |= values if types is None else types.batch(values)
                with self._lock:  # functions of callers need not be thread-safe
                    mask = self.predicate.mask({name: batch[name] for name in self._columns}, len(rows))
                found.append(rows[mask])
        return np.concatenate(found) if found else np.zeros(0, np.int64)


class PositionSearch(SampleSearch):
    """The samples at given positions of one version."""

    def __init__(self, store: Store, content: VersionContent, ids: Iterable[Any]) -> None:
        """Find the shards of positions in the whole version.

        Raises:
            SchemaError: one is no position of the version.
        """
        try:
            wanted = np.array(sorted({int(each) for each in ids if not isinstance(each, bool | float)}), np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"`ids` without `column` are positions of samples, whole numbers: {error}") from error
        version, shards = content.manifest.version, content.manifest.shards
        super().__init__(store, "positions", f"{wanted.size} positions of version {version}")
        sizes = sizes_of(shards)
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if ends.size else 0
        if wanted.size and not (wanted[0] >= 0 and wanted[-1] < total):
            wrong = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise SchemaError(f"there is no sample {wrong}: version {version} has samples 0 to {total - 1}")
        places = np.searchsorted(ends, wanted, side="right")
        self.positions: dict[str, Rows] = {
            shards[place].raw.basename: wanted[places == place] - int(ends[place] - sizes[place])
            for place in np.unique(places).tolist()
        }
        """Numbers of samples by the name of the shard."""

    def prepare(self, content: VersionContent) -> None:
        """Check that a version still has the shards of the positions.

        Raises:
            CatalogError: one was rewritten.
        """
        there = {shard.raw.basename for shard in content.manifest.shards}
        for name in self.positions:
            if name not in there:
                raise CatalogError(
                    f"{self.store.url}: shard {name} of the given positions is not in version "
                    f"{content.manifest.version} any more; look the positions up again there",
                    key=name,
                )

    def read(self, group: SampleGroup) -> Rows:
        """Return the positions in the shard."""
        return self.positions.get(group[0].raw.basename, np.zeros(0, np.int64))


class CopySearch(PositionSearch):
    """The search for samples whose stored bytes are those of the samples at given positions of a version."""

    def __init__(self, store: Store, content: VersionContent, ids: Iterable[Any]) -> None:
        """Read the samples; there must be no copies in their own version but themselves.

        Raises:
            SchemaError: one is no position of the version.
            CatalogError: other samples of the version are equal.
        """
        super().__init__(store, content, ids)
        shards, positions = content.manifest.shards, self.positions
        chosen = [(shard, positions[shard.raw.basename]) for shard in shards if shard.raw.basename in positions]
        self.hashes = {each for shard, rows in chosen for each in self._hashes(shard, rows.tolist())}
        begin, others = 0, []
        for shard in shards:
            own = positions.get(shard.raw.basename, np.zeros(0, np.int64))
            others += [begin + row for row in self.rows_of((shard,)).tolist() if row not in own]
            begin += shard.samples
        if others:
            shown = ", ".join(map(str, others[:10])) + (", ..." if len(others) > 10 else "")
            raise CatalogError(
                f"{store.url}: the samples {shown} of version {content.manifest.version} are equal to chosen ones, and "
                "a purge could not tell them apart in older versions; choose them too, or choose by a column",
                positions=others,
            )

    def prepare(self, content: VersionContent) -> None:
        """Do nothing: the samples may lie in other shards."""

    def read(self, group: SampleGroup) -> Rows:
        """Hash every sample of the shard."""
        hashes = self._hashes(group[0])
        return np.array([row for row, each in enumerate(hashes) if each in self.hashes], np.int64)

    def _hashes(self, shard: ShardInfo, rows: Iterable[int] | None = None) -> list[bytes]:
        """Return the XXH3-128 of samples as stored; of all by default."""
        with open_checked(self.store, shard) as opened:
            samples = opened.stored_samples()
            chosen = range(len(samples)) if rows is None else rows
            return [xxh3_128_digest(samples[row : row + 1].content) for row in chosen]
