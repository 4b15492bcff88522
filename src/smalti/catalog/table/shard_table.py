"""`ShardTable`: the shards of a version as a table in memory or in a mapped file; their checks, and their digest.

A `ShardInfo` is created from its row on access. A million `ShardInfo` take a gigabyte and ten seconds to create; their
table takes 150 MB, of which only the accessed rows are read.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from smalti.catalog.table.columns import (
    NO_PARTIAL_COLUMNS,
    Columns,
    PartialColumns,
    RowParser,
    Texts,
    canonical,
    words_at,
)
from smalti.errors import CatalogError, IndexFileError, SchemaError
from smalti.format import FileInfo, Schema, ShardInfo, check_basename

Ids = NDArray[np.int64]

_NAMES_AT_ONCE = 1 << 16
_ROWS_AT_ONCE = 1024
"""Rows that an iteration converts to Python objects together."""
_ZIPPED = {"raw": "zip", "meta": "zip_meta"}
"""Prefixes of the columns of uncompressed files, and of their compressed forms."""
_quoted = json.encoder.encode_basestring_ascii
_PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}\Z")


@dataclass(frozen=True, eq=False)
class TableContent:
    """The data of a shard table."""

    columns: Columns
    parser: RowParser
    kinds: Ids
    """One row for each combination of schema, format, compression and other common properties."""
    reopen: Callable[[], "TableContent"] | None = None
    """Function that loads the same content in another process; pickled instead of the content if it is given."""
    emitted: bytes | None = None
    """The bytes of the table's file, if this process created it."""
    partial: PartialColumns = NO_PARTIAL_COLUMNS
    """The columns with which parts of the shards are verified."""
    arrow: Any = None
    """The `pyarrow.Table` that the columns are views of; None where there is none."""
    release: Callable[[], None] = lambda: None
    """Function that releases the memory of a mapped file; it is read again on access."""

    @property
    def size(self) -> int:
        """Number of shards."""
        return int(self.samples.size)

    @property
    def samples(self) -> Ids:
        """Samples of every shard."""
        return self.columns.numbers["samples"].values

    def read(self, begin: int, end: int) -> list[ShardInfo]:
        """Return the shards of rows [begin, end). They are checked again: the file may have changed since.

        Raises:
            IndexFileError: a row is invalid.
        """
        try:
            values = self.columns.rows(begin, end)
        except (ValueError, IndexError) as error:
            raise IndexFileError(
                f"{self.parser.where}, row {begin}: its place or text was changed since the table was opened: "
                f"{str(error)[:200]}",
                where=self.parser.where,
            ) from error
        parts = self.partial.rows(begin, begin + len(values))
        return [
            self.parser.parse(row, number, part)
            for number, (row, part) in enumerate(zip(values, parts, strict=True), begin)
        ]

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return int(self.samples.sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards as stored."""
        return int(self.num_bytes_each().stored.sum())

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted."""
        return tuple(sorted(words_at(*self.splits())))

    def kind_shards(self) -> list[ShardInfo]:
        """Return one shard of each schema and format."""
        return [self.read(row, row + 1)[0] for row in self.kinds.tolist()]

    @property
    def has_block_lists(self) -> bool:
        """True if a shard has a block list."""
        return self.partial.block_file is not None

    def block_files(self) -> tuple[NDArray[np.int32], Sequence[str | None]]:
        """Return the index of the file of each row's block list in a list of names, as `splits` does."""
        column = self.partial.block_file
        return (np.full(self.size, -1, np.int32), []) if column is None else (column.places, column.words)

    def splits(self) -> tuple[NDArray[np.int32], Sequence[str | None]]:
        """Return the index of the split of each row in a list of names, negative for none, and the list."""
        column = self.columns.words["partition"]
        return column.places, column.words

    def num_bytes_each(self) -> "ShardBytes":
        """Return the bytes of every shard."""
        texts, numbers = self.columns.texts, self.columns.numbers
        raw, stored, zipped = (np.zeros(self.size, np.int64) for _ in range(3))
        for part, zip_part in _ZIPPED.items():
            if f"{part}_name" in texts:
                is_there, is_zipped = ~texts[f"{part}_name"].absent, ~texts[f"{zip_part}_name"].absent
                sizes = np.where(is_there, numbers[f"{part}_bytes"].values, 0)
                zips = np.where(is_there & is_zipped, numbers[f"{zip_part}_bytes"].values, 0)
                raw += sizes
                zipped += zips
                stored += np.where(is_there & is_zipped, zips, sizes)
        return ShardBytes(raw, stored, zipped)

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return a hash of all data of each shard."""
        found = np.empty(self.size, np.uint64)
        for begin in range(0, self.size, _ROWS_AT_ONCE):
            rows = self.columns.rows(begin, begin + _ROWS_AT_ONCE)
            hashes = [xxh3_64_intdigest(self.parser.text(row).encode(errors="surrogateescape")) for row in rows]
            found[begin : begin + len(hashes)] = hashes
        return found

    def stored_sizes(self, begin: int, end: int) -> Iterator[list[tuple[str, int]]]:
        """Yield name and size of every stored file of rows [begin, end), in order, some thousands at a time."""
        texts, numbers = self.columns.texts, self.columns.numbers
        for first in range(begin, end, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, end)
            parts = [
                (texts[f"{part}_name"].rows(first, last), numbers[f"{part}_bytes"].rows(first, last))
                for pair in _ZIPPED.items()
                for part in pair
                if f"{part}_name" in texts
            ]
            yield list(_stored_files(parts))

    def name_hashes(self) -> tuple[Ids, NDArray[np.uint64]]:
        """Return the row and the hash of the name of every uncompressed file."""
        texts, rows, hashes = self.columns.texts, [], []
        for part in _ZIPPED:
            if f"{part}_name" in texts:
                there = np.flatnonzero(~texts[f"{part}_name"].absent)
                rows.append(there)
                hashes.append(hash_texts(texts[f"{part}_name"])[there])
        return np.concatenate(rows), np.concatenate(hashes)

    def name_columns(self) -> list[Texts]:
        """Return the names of all files, uncompressed and compressed."""
        names = (f"{part}_name" for pair in _ZIPPED.items() for part in pair)
        return [self.columns.texts[name] for name in names if name in self.columns.texts]

    def lacks_hash(self, name: str) -> NDArray[np.bool_]:
        """Return for each row whether its files lack a hash of this name."""
        column = self.columns.words["hash_names"]
        # Every file of a shard has all hashes that the shard declares; that was checked when the table was opened.
        declared = np.array([name in (word.split(",") if word else ()) for word in (*column.words, None)])
        lacking: NDArray[np.bool_] = ~declared[column.places]
        return lacking

    def __reduce__(self) -> tuple[Any, ...]:
        if self.reopen is None:
            return type(self), (self.columns, self.parser, self.kinds, None, None, self.partial)
        return _reopened, (self.reopen, self.kinds)


def _reopened(reopen: Callable[[], TableContent], kinds: Ids) -> TableContent:
    return replace(reopen(), kinds=kinds)


class Content(Protocol):
    """The data of a shard table: one file (`TableContent`), or several segments (`SegmentedContent`)."""

    @property
    def emitted(self) -> bytes | None:
        """The bytes of the table's only file, if this process created it."""

    @property
    def size(self) -> int:
        """Number of shards."""

    @property
    def samples(self) -> Ids:
        """Samples of every shard."""

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards as stored."""

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted."""

    @property
    def has_block_lists(self) -> bool:
        """True if a shard has a block list."""

    def read(self, begin: int, end: int) -> list[ShardInfo]:
        """Return the shards of rows [begin, end), checked."""

    def block_files(self) -> tuple[NDArray[np.int32], Sequence[str | None]]:
        """Return the index of the file of each row's block list in a list of names, as `splits` does."""

    def kind_shards(self) -> list[ShardInfo]:
        """Return at least one shard of each schema and format."""

    def splits(self) -> tuple[NDArray[np.int32], Sequence[str | None]]:
        """Return the index of the split of each row in a list of names, negative for none, and the list."""

    def num_bytes_each(self) -> "ShardBytes":
        """Return the bytes of every shard."""

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return a hash of all data of each shard."""

    def stored_sizes(self, begin: int, end: int) -> Iterator[list[tuple[str, int]]]:
        """Yield name and size of every stored file of rows [begin, end), in order, some thousands at a time."""

    def name_hashes(self) -> tuple[Ids, NDArray[np.uint64]]:
        """Return the row and the hash of the name of every uncompressed file."""

    def lacks_hash(self, name: str) -> NDArray[np.bool_]:
        """Return for each row whether its files lack a hash of this name."""


class ShardTable(Sequence[ShardInfo]):
    """Shards in order, created on access. Immutable, thread-safe, fork-safe, cheap to pickle and to slice."""

    def __init__(self, content: Content, rows: range | Ids | None = None) -> None:
        """Create a sequence of these rows of the table, in this order; by default all."""
        self._content = content
        self._rows = range(content.size) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, at: slice) -> "ShardTable": ...
    def __getitem__(self, at: int | slice) -> "ShardInfo | ShardTable":
        """Return a shard, or a table of some shards.

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
            for begin in range(self._rows.start, self._rows.stop, _ROWS_AT_ONCE):
                yield from self._content.read(begin, min(begin + _ROWS_AT_ONCE, self._rows.stop))
        else:
            for row in self._rows:
                yield from self._content.read(int(row), int(row) + 1)

    def __eq__(self, other: object) -> bool:
        """Return whether the other table or tuple has the same shards."""
        if self is other:
            return True
        if not isinstance(other, ShardTable | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a tuple of shards, which contain mappings

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
        return self._select(self._content.samples)

    @property
    def content(self) -> Content:
        """The data of the table, of which these shards may be a part."""
        return self._content

    @property
    def rows(self) -> range | Ids:
        """The rows of `content` that these shards are."""
        return self._rows

    @property
    def is_range(self) -> bool:
        """True if these are consecutive rows of the content."""
        return isinstance(self._rows, range) and self._rows.step == 1

    @property
    def is_whole(self) -> bool:
        """True if these are all shards of the content, in its order."""
        return isinstance(self._rows, range) and self._rows == range(self._content.size)

    @property
    def kinds(self) -> list[ShardInfo]:
        """One shard of each schema and format that the table has."""
        return self._content.kind_shards()

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return self._content.num_samples if self.is_whole else int(self.sizes.sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards as stored."""
        return self._content.num_bytes if self.is_whole else int(self.num_bytes_each.stored.sum())

    @cached_property
    def num_bytes_each(self) -> "ShardBytes":
        """Bytes of every shard."""
        found = self._content.num_bytes_each()
        return ShardBytes(self._select(found.raw), self._select(found.stored), self._select(found.zipped))

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return a hash of all data of each shard, for comparing tables: uint64, shape (shards,).

        Different shards have the same hash with a probability of 2^-64. Rows are not checked.
        """
        return self._select(self._content.content_hashes())

    @property
    def emitted(self) -> bytes | None:
        """The bytes of the file with exactly these shards, if this process created it; saves creating it again."""
        return self._content.emitted if self.is_whole else None

    def stored_sizes(self) -> Iterator[list[tuple[str, int]]]:
        """Yield name and size of every stored file, in order, some thousands at a time, without creating shards."""
        if isinstance(self._rows, range) and self._rows.step == 1:
            yield from self._content.stored_sizes(self._rows.start, self._rows.stop)
        else:
            yield from ([(file.basename, file.num_bytes) for file in shard.stored_files] for shard in self)

    def named(self, name: str) -> list[int]:
        """Return the indices of the shards with an uncompressed file of this name; the first call hashes all names."""
        places, hashes = self._name_hashes
        wanted = np.uint64(xxh3_64_intdigest(name.encode(errors="surrogateescape")))
        first, last = np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")
        found = sorted(set(places[first:last].tolist()))
        return [place for place in found if name in {file.basename for file in self[place].raw_files}]

    @cached_property
    def _name_hashes(self) -> tuple[Ids, NDArray[np.uint64]]:
        """Indices of shards, and hashes of the names of their uncompressed files, sorted by hash."""
        rows, hashes = self._content.name_hashes()
        if not self.is_whole:
            places = np.full(self._content.size, -1, np.int64)
            places[np.asarray(self._rows, np.int64)] = np.arange(len(self))
            rows = places[rows]
            rows, hashes = rows[rows >= 0], hashes[rows >= 0]
        order = np.argsort(hashes, kind="stable")
        return rows[order], hashes[order]

    @property
    def has_block_lists(self) -> bool:
        """True if the table has block lists, whichever of its rows are selected."""
        return self._content.has_block_lists

    @property
    def block_files(self) -> set[str]:
        """The names of the files with the block lists of these shards.

        Raises:
            IndexFileError: a name is not safe.
        """
        places, words = self._content.block_files()
        return {check_basename(word, where="shard table") for word in words_at(self._select(places), words)}

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted."""
        if self.is_whole:
            return self._content.partitions
        places, words = self._content.splits()
        return tuple(sorted(words_at(self._select(places), words)))

    def of_partition(self, name: str) -> "ShardTable":
        """Return the shards of one split."""
        places, words = self._content.splits()
        wanted = [place for place, word in enumerate(words) if word == name]
        chosen = np.flatnonzero(np.isin(self._select(places), wanted))
        if chosen.size and chosen[-1] - chosen[0] + 1 == chosen.size:
            return self[int(chosen[0]) : int(chosen[-1]) + 1]
        return ShardTable(self._content, self._select(np.arange(self._content.size))[chosen])

    def without_hash(self, name: str) -> FileInfo | None:
        """Return the first stored file without a hash of this name; None if all have it."""
        for place in np.flatnonzero(self._select(self._content.lacks_hash(name))).tolist():
            for file in self[place].stored_files:
                if name not in file.hashes:
                    return file
        return None

    def _select(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the selected rows."""
        if isinstance(self._rows, range) and self._rows.step > 0:
            return values[self._rows.start : self._rows.stop : self._rows.step]
        return values[np.asarray(self._rows, np.int64)]


def _stored_files(parts: list[tuple[list[str | None], list[int | None]]]) -> Iterator[tuple[str, int]]:
    """Yield name and size of each stored file; `parts` are the columns of uncompressed and compressed files in turn."""
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
    """As stored."""
    zipped: Ids
    """Of compressed files; 0 where there are none."""


def hash_texts(texts: Texts) -> NDArray[np.uint64]:
    """Return a hash of each text: uint64, shape (texts,)."""
    data, found = memoryview(texts.data), np.empty(texts.absent.size, np.uint64)
    for begin in range(0, found.size, _NAMES_AT_ONCE):
        places = texts.offsets[begin : begin + _NAMES_AT_ONCE + 1].tolist()
        found[begin : begin + _NAMES_AT_ONCE] = [xxh3_64_intdigest(data[a:b]) for a, b in pairwise(places)]
    return found


def bytes_of(shards: Sequence[ShardInfo]) -> ShardBytes:
    """Return the bytes of every shard."""
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
    """Return the number of samples of every shard; int64, shape (shards,)."""
    return shards.sizes if isinstance(shards, ShardTable) else np.array([info.samples for info in shards], np.int64)


def samples_of(shards: Sequence[ShardInfo]) -> int:
    """Return the number of samples of all shards."""
    return shards.num_samples if isinstance(shards, ShardTable) else sum(info.samples for info in shards)


def kinds_of(shards: Sequence[ShardInfo]) -> Sequence[ShardInfo]:
    """Return shards with at least one of each schema and format."""
    return shards.kinds if isinstance(shards, ShardTable) else shards


def block_files_of(shards: Sequence[ShardInfo]) -> set[str]:
    """Return the names of the files with the block lists of these shards."""
    if isinstance(shards, ShardTable):
        return shards.block_files
    return {shard.blocks.file for shard in shards if shard.blocks is not None}


def written_keys(shards: Sequence[ShardInfo]) -> list[str]:
    """Return the names of all objects that a writer of these shards has put: their files, and their block lists."""
    return [*(file.basename for shard in shards for file in shard.stored_files), *sorted(block_files_of(shards))]


def has_block_lists(shards: Sequence[ShardInfo]) -> bool:
    """Return whether any of the shards may have a block list."""
    if isinstance(shards, ShardTable):
        return shards.has_block_lists
    return any(shard.blocks is not None for shard in shards)


def without_hash(shards: Sequence[ShardInfo], name: str) -> FileInfo | None:
    """Return the first stored file without a hash of this name; None if all have it."""
    if isinstance(shards, ShardTable):
        return shards.without_hash(name)
    return next((file for info in shards for file in info.stored_files if name not in file.hashes), None)


def check_shards(shards: Sequence[ShardInfo], schema: Schema) -> None:
    """Check that all shards have this schema, are listed once, and are in the folder of their split.

    Raises:
        SchemaError: a shard has another schema.
        CatalogError: a file is listed twice, or a split is invalid or not the folder of its shards.
    """
    is_screened = isinstance(shards, ShardTable)  # names, splits and duplicates were checked when it was opened
    for shard in shards.kinds if isinstance(shards, ShardTable) else shards:
        if shard.schema != schema:
            raise SchemaError(
                f"shard {shard.stored.basename} has columns {shard.schema.columns()}, the data set has "
                f"{schema.columns()}; "
                "one data set has one schema",
                shard=shard.stored.basename,
            )
        if shard.partition is None:
            continue
        if not _PARTITION.match(shard.partition):
            raise CatalogError(f"split {shard.partition!r} cannot be a folder name: use letters, digits and . _ = -")
        if not all(name.startswith(f"{shard.partition}/") for name in shard.file_names):
            raise CatalogError(
                f"shard {shard.raw.basename} of split {shard.partition!r} must lie below the folder {shard.partition}/",
                shard=shard.raw.basename,
            )
    seen: set[str] = set()
    for shard in () if is_screened else shards:
        for name in shard.file_names:
            if name in seen:
                raise CatalogError(f"file {name} is listed 2 times; its samples would be doubled", shard=name)
            seen.add(name)


def digest_of(shards: Iterable[ShardInfo]) -> str:
    """Return the SHA-256, hex, of the canonical JSON of all shards (schema, counts, names, sizes, hashes, split)."""
    digest = hashlib.sha256(b"smalti-manifest-1\n")
    columns: dict[Schema, str] = {}
    ends: dict[tuple[Any, ...], str] = {}
    for shard in shards:
        schema = columns.get(shard.schema)
        if schema is None:
            schema = canonical([shard.schema.names, shard.schema.encodings, shard.schema.sizes])
            columns[shard.schema] = schema
        common = (shard.compression, shard.hash_names, shard.size_limit)
        end = ends.get(common)
        if end is None:
            end = ends[common] = canonical(common)[1:-1]
        row = f"{canonical(shard.partition)},{shard.samples},{_file_text(shard.raw)},{_file_text(shard.zip)},{end}"
        if shard.meta is not None:  # text shards only, so that digests of MDS sets do not change
            marks = canonical([shard.format, shard.newline, shard.separator])[1:-1]
            row += f",{marks},{_file_text(shard.meta)},{_file_text(shard.zip_meta)}"
        elif shard.format != "mds":
            row += f",{canonical(shard.format)}"
        digest.update(f"{schema}[{row}]\n".encode())
    return digest.hexdigest()


def content_digest(content: TableContent) -> str:
    """Return the same as `digest_of` of all shards of a table, without creating them."""
    digest = hashlib.sha256(b"smalti-manifest-1\n")
    for begin in range(0, content.size, _ROWS_AT_ONCE):
        rows = content.columns.rows(begin, begin + _ROWS_AT_ONCE)
        digest.update("".join(map(content.parser.canonical, rows)).encode())
    return digest.hexdigest()


def _file_text(file: FileInfo | None) -> str:
    """Return the canonical JSON of a file; formatted by hand, because an encoder takes seconds for a million files."""
    if file is None:
        return "null"
    hashes = ",".join([f"{_quoted(name)}:{_quoted(digest)}" for name, digest in sorted(file.hashes.items())])
    return f"[{_quoted(file.basename)},{file.num_bytes},{{{hashes}}}]"
