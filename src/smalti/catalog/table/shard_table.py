"""The shards of a version as a table in memory or in a mapped file; one of them becomes a `ShardInfo` when asked for.

A million `ShardInfo` take a gigabyte and ten seconds; their table is 150 MB that nobody has to look at as a whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from smalti.catalog.table.columns import Columns, Numbers, Texts
from smalti.catalog.table.rows import Rows
from smalti.errors import IndexFileError
from smalti.format import FileInfo, ShardInfo

Ids = NDArray[np.int64]

_MARKED_AT_ONCE = 1 << 16
_AT_ONCE = 1024
"""Rows that an iteration turns into Python's objects together."""
_ZIPPED = {"raw": "zip", "meta": "zip_meta"}


@dataclass(frozen=True, eq=False)
class TableContent:
    """What a shard table holds."""

    columns: Columns
    rows: Rows
    kinds: Ids
    """Rows that stand for all: one of each combination of schema, format, compression and the like."""
    reopen: Callable[[], "TableContent"] | None = None
    """The same content in another process; what is pickled instead of it, if there is such a way."""
    emitted: bytes | None = None
    """The table's file, where this process made it of shards."""
    firsts: Numbers | None = None
    """Hashes of the first bytes of the shards, with a sign; None where no shard has one."""

    @property
    def size(self) -> int:
        """How many shards there are."""
        return int(self.samples.size)

    @property
    def samples(self) -> Ids:
        """Samples of every shard."""
        return self.columns.numbers["samples"].values

    def read(self, begin: int, end: int) -> list[ShardInfo]:
        """The shards of rows [begin, end), each checked again: the file may have been changed since it was opened.

        Raises:
            IndexFileError: one cannot be trusted.
        """
        try:
            values = self.columns.rows(begin, end)
        except (ValueError, IndexError) as error:
            raise IndexFileError(
                f"{self.rows.where}, row {begin}: its place or text was changed since the table was opened: "
                f"{str(error)[:200]}",
                where=self.rows.where,
            ) from error
        firsts = [None] * len(values) if self.firsts is None else self.firsts.rows(begin, end)
        return [
            self.rows.checked(row, number, first)
            for number, (row, first) in enumerate(zip(values, firsts, strict=True), begin)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.reopen is None:
            return type(self), (self.columns, self.rows, self.kinds, None, None, self.firsts)
        return _reopened, (self.reopen, self.kinds)


def _reopened(reopen: Callable[[], TableContent], kinds: Ids) -> TableContent:
    return replace(reopen(), kinds=kinds)


class ShardTable(Sequence[ShardInfo]):
    """Shards in order, made when asked for; immutable, thread-safe, safe under fork, cheap to pickle and to slice."""

    def __init__(self, content: TableContent, rows: range | Ids | None = None) -> None:
        """`rows`: which rows of the table, in which order; all by default."""
        self._content = content
        self._rows = range(content.size) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, at: slice) -> "ShardTable": ...
    def __getitem__(self, at: int | slice) -> "ShardInfo | ShardTable":
        """A shard, or a table of some of them.

        Raises:
            IndexError: there is no such shard.
            IndexFileError: the table's file was changed.
        """
        if isinstance(at, slice):
            return ShardTable(self._content, self._rows[at])
        row = int(self._rows[at])
        return self._content.read(row, row + 1)[0]

    def __iter__(self) -> Iterator[ShardInfo]:
        if isinstance(self._rows, range) and self._rows.step == 1:
            for begin in range(self._rows.start, self._rows.stop, _AT_ONCE):
                yield from self._content.read(begin, min(begin + _AT_ONCE, self._rows.stop))
        else:
            for row in self._rows:
                yield from self._content.read(int(row), int(row) + 1)

    def __eq__(self, other: object) -> bool:
        """Whether the other has the same shards; a tuple counts as well."""
        if self is other:
            return True
        if not isinstance(other, ShardTable | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a tuple of shards, which hold mappings

    def __copy__(self) -> "ShardTable":
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> "ShardTable":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._content, self._rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} shards)"

    @cached_property
    def sizes(self) -> Ids:
        """Samples of every shard."""
        return self._taken(self._content.samples)

    @property
    def kinds(self) -> list[ShardInfo]:
        """One shard of each schema and format that the table has."""
        return [self._content.read(row, row + 1)[0] for row in self._content.kinds.tolist()]

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards as stored."""
        return int(self.num_bytes_each.stored.sum())

    @cached_property
    def num_bytes_each(self) -> "ShardBytes":
        """Bytes of every shard."""
        texts, numbers = self._content.columns.texts, self._content.columns.numbers
        raw, stored, zipped = (np.zeros(len(self), np.int64) for _ in range(3))
        for part, zip_part in _ZIPPED.items():
            if f"{part}_name" in texts:
                is_there, is_zipped = ~texts[f"{part}_name"].absent, ~texts[f"{zip_part}_name"].absent
                sizes = self._taken(np.where(is_there, numbers[f"{part}_bytes"].values, 0))
                zips = self._taken(np.where(is_there & is_zipped, numbers[f"{zip_part}_bytes"].values, 0))
                raw += sizes
                zipped += zips
                stored += np.where(self._taken(is_there & is_zipped), zips, sizes)
        return ShardBytes(raw, stored, zipped)

    def marks(self) -> NDArray[np.uint64]:
        """A hash of everything that is said about each shard, by which tables are compared: uint64, shape (shards,).

        Two that differ have the same one with a chance of 2^-64. Nothing is checked.
        """
        content = self._content
        found = np.empty(content.size, np.uint64)
        for begin in range(0, content.size, _AT_ONCE):
            rows = content.columns.rows(begin, begin + _AT_ONCE)
            marks = [xxh3_64_intdigest(content.rows.text(row).encode(errors="surrogateescape")) for row in rows]
            found[begin : begin + len(marks)] = marks
        return self._taken(found)

    @property
    def emitted(self) -> bytes | None:
        """The file that holds just these shards, where this process made it; nobody need make it again."""
        return self._content.emitted if self._rows == range(self._content.size) else None

    def stored_sizes(self) -> Iterator[list[tuple[str, int]]]:
        """Name and bytes of every file as stored, in order and some thousand at a time, without making shards."""
        if not (isinstance(self._rows, range) and self._rows.step == 1):
            yield from ([(file.basename, file.num_bytes) for file in shard.stored_files] for shard in self)
            return
        texts, numbers = self._content.columns.texts, self._content.columns.numbers
        for begin in range(self._rows.start, self._rows.stop, _AT_ONCE):
            end = min(begin + _AT_ONCE, self._rows.stop)
            parts = [
                (texts[f"{part}_name"].rows(begin, end), numbers[f"{part}_bytes"].rows(begin, end))
                for pair in _ZIPPED.items()
                for part in pair
                if f"{part}_name" in texts
            ]
            yield list(_chosen(parts))

    def named(self, name: str) -> list[int]:
        """The shards that have an uncompressed file of this name; the first call looks at all names."""
        places, marks = self._marks
        mark = np.uint64(xxh3_64_intdigest(name.encode(errors="surrogateescape")))
        first, last = np.searchsorted(marks, mark, "left"), np.searchsorted(marks, mark, "right")
        found = sorted(set(places[first:last].tolist()))
        return [place for place in found if name in {file.basename for file in self[place].raw_files}]

    @cached_property
    def _marks(self) -> tuple[Ids, NDArray[np.uint64]]:
        """Places of all uncompressed files' shards, and the files' marks, which are sorted."""
        texts, places, marks = self._content.columns.texts, [], []
        for part in _ZIPPED:
            if f"{part}_name" in texts:
                found = self._taken(_marks_of(texts[f"{part}_name"]))
                there = np.flatnonzero(self._taken(~texts[f"{part}_name"].absent))
                places.append(there)
                marks.append(found[there])
        all_marks = np.concatenate(marks)
        order = np.argsort(all_marks, kind="stable")
        return np.concatenate(places)[order], all_marks[order]

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted."""
        column = self._content.columns.words["partition"]
        used = np.unique(self._taken(column.places)).tolist()
        return tuple(sorted({word for place in used if place >= 0 and (word := column.words[place]) is not None}))

    def of_partition(self, name: str) -> "ShardTable":
        """The shards of one split."""
        column = self._content.columns.words["partition"]
        wanted = [place for place, word in enumerate(column.words) if word == name]
        chosen = np.flatnonzero(np.isin(self._taken(column.places), wanted))
        if chosen.size and chosen[-1] - chosen[0] + 1 == chosen.size:
            return self[int(chosen[0]) : int(chosen[-1]) + 1]
        return ShardTable(self._content, self._taken(np.arange(self._content.size))[chosen])

    def without_hash(self, name: str) -> FileInfo | None:
        """The first stored file that has no hash called so; None when all have it."""
        column = self._content.columns.words["hash_names"]
        # What a shard declares is there for each of its files: that was checked.
        declared = np.array([name in (word.split(",") if word else ()) for word in (*column.words, None)])
        for place in np.flatnonzero(~declared[self._taken(column.places)]).tolist():
            for file in self[place].stored_files:
                if name not in file.hashes:
                    return file
        return None

    def _taken(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values of the chosen rows."""
        if isinstance(self._rows, range) and self._rows.step > 0:
            return values[self._rows.start : self._rows.stop : self._rows.step]
        return values[np.asarray(self._rows, np.int64)]


def _chosen(parts: list[tuple[list[str | None], list[int | None]]]) -> Iterator[tuple[str, int]]:
    """Name and bytes of each file, of its compressed form where there is one; `parts` hold both in turn."""
    for row in zip(*(zip(names, sizes, strict=True) for names, sizes in parts), strict=True):
        for raw, zipped in zip(row[::2], row[1::2], strict=True):
            name, num_bytes = raw if zipped[0] is None else zipped
            if name is not None and num_bytes is not None:
                yield name, num_bytes


@dataclass(frozen=True, eq=False)
class ShardBytes:
    """Bytes of every shard, over all of its files; each int64, shape (shards,)."""

    raw: Ids
    """Uncompressed."""
    stored: Ids
    """As they lie in the store."""
    zipped: Ids
    """Of compressed files; 0 where there are none."""


def _marks_of(texts: Texts) -> NDArray[np.uint64]:
    data, found = memoryview(texts.data), np.empty(texts.absent.size, np.uint64)
    for begin in range(0, found.size, _MARKED_AT_ONCE):
        places = texts.offsets[begin : begin + _MARKED_AT_ONCE + 1].tolist()
        found[begin : begin + _MARKED_AT_ONCE] = [xxh3_64_intdigest(data[a:b]) for a, b in pairwise(places)]
    return found


def bytes_of(shards: Sequence[ShardInfo]) -> ShardBytes:
    """Bytes of every shard."""
    if isinstance(shards, ShardTable):
        return shards.num_bytes_each
    rows = [
        (
            sum(file.num_bytes for file in info.raw_files),
            sum(file.num_bytes for file in info.stored_files),
            sum(file.num_bytes for file in (info.zip, info.zip_meta) if file is not None),
        )
        for info in shards
    ]
    raw, stored, zipped = np.array(rows, np.int64).reshape(-1, 3).T
    return ShardBytes(raw, stored, zipped)


def sizes_of(shards: Sequence[ShardInfo]) -> Ids:
    """Samples of every shard; int64, shape (shards,)."""
    return shards.sizes if isinstance(shards, ShardTable) else np.array([info.samples for info in shards], np.int64)


def kinds_of(shards: Sequence[ShardInfo]) -> Sequence[ShardInfo]:
    """Shards among which is one of each schema and format."""
    return shards.kinds if isinstance(shards, ShardTable) else shards


def without_hash(shards: Sequence[ShardInfo], name: str) -> FileInfo | None:
    """The first stored file that has no hash called so; None when all have it."""
    if isinstance(shards, ShardTable):
        return shards.without_hash(name)
    return next((file for info in shards for file in info.stored_files if name not in file.hashes), None)
