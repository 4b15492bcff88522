"""`ShardTable`: the shards of a version as a table in memory or in a mapped file; their checks, and their digest.

A `ShardInfo` is created from its row on access. A million `ShardInfo` take a gigabyte and ten seconds to create; their
table takes 150 MB, of which only the accessed rows are read.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from smalti.catalog.table.rows import (
    ZIPPED,
    Ids,
    RowParser,
    first_of_each_kind,
    flags_in,
    numbers_in,
    odd_rows,
    rows_of,
)
from smalti.errors import CatalogError, IndexFileError, SchemaError
from smalti.format import FileInfo, Schema, ShardInfo, check_basename

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 1024
"""Rows that are converted to Python objects together."""
_quoted = json.encoder.encode_basestring_ascii
_PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}\Z")


class ShardRows(ABC):
    """The data of a shard table: one file (`TableContent`), or several segments (`SegmentedContent`)."""

    emitted: bytes | None = None
    """The bytes of the table's only file, if this process created it."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of shards."""

    @abstractmethod
    def contents(self) -> Iterator["TableContent"]:
        """Yield the data of the files, in order; the memory of each is released after it."""

    @abstractmethod
    def read(self, begin: int, end: int) -> list[ShardInfo]:
        """Return the shards of rows [begin, end). They are checked again: a mapped file may have changed since.

        Raises:
            IndexFileError: a row is invalid, or its file is missing or was changed.
        """

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return int(self.numbers("samples").sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards as stored."""
        return int(self.num_bytes_each().stored.sum())

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted."""
        return words_at(*self.words("partition"))

    def kind_shards(self) -> list[ShardInfo]:
        """Return at least one shard of each schema, format and other common properties."""
        kinds: dict[object, ShardInfo] = {}
        for content in self.contents():
            for row in content.kinds.tolist():
                (shard,) = content.read(row, row + 1)
                common = shard.schema, shard.compression, shard.hash_names, shard.partition, shard.size_limit
                kinds.setdefault((*common, shard.format, shard.newline, shard.separator), shard)
        return list(kinds.values())

    def numbers(self, name: str, *, absent: int = 0) -> Ids:
        """Return a column of numbers; `absent` for nulls."""
        parts = [numbers_in(content.columns.column(name), absent).copy() for content in self.contents()]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def words(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """Return for each row the index of its word in a list, -1 for none, and the list."""
        numbers: dict[str, int] = {}
        parts = [np.zeros(0, np.int64)]
        for content in self.contents():
            column = content.columns.column(name)
            words = column.dictionary.to_pylist() if hasattr(column, "dictionary") else []
            places = numbers_in(getattr(column, "indices", column))
            parts.append(np.array([*(numbers.setdefault(word, len(numbers)) for word in words), -1])[places])
        return np.concatenate(parts), list(numbers)

    def texts(self, name: str) -> "pa.ChunkedArray":
        """Return a column of texts, checked again: a mapped file can change after it was opened.

        Raises:
            IndexFileError: it is damaged now.
        """
        import pyarrow as pa

        column = pa.chunked_array(
            [content.columns.column(name).cast(pa.string()) for content in self.contents()], pa.string()
        )
        try:
            column.validate(full=True)
        except ValueError as error:
            raise IndexFileError(f"column {name} of a shard table was changed: {str(error)[:200]}") from error
        return column

    def num_bytes_each(self) -> "ShardBytes":
        """Return the bytes of every shard."""
        raw, stored, zipped = (np.zeros(self.size, np.int64) for _ in range(3))
        for part, zip_part in ZIPPED.items():
            sizes, zips = self.numbers(f"{part}_bytes"), self.numbers(f"{zip_part}_bytes", absent=-1)
            raw += sizes
            zipped += np.maximum(zips, 0)
            stored += np.where(zips < 0, sizes, zips)
        return ShardBytes(raw, stored, zipped)

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return a hash of all data of each shard."""
        hashes = [
            _hash(content.parser.text(row))
            for content in self.contents()
            for begin in range(0, content.size, _ROWS_AT_ONCE)
            for row in rows_of(content.columns, begin, begin + _ROWS_AT_ONCE)
        ]
        return np.array(hashes, np.uint64)


@dataclass(frozen=True, eq=False)
class TableContent(ShardRows):
    """The data of one file of shards."""

    arrow: "pa.Table"
    """The columns and the metadata as they are in the file."""
    columns: "pa.RecordBatch"
    """All columns named in `COLUMNS`; those that the file lacks are null."""
    parser: RowParser
    reopen: Callable[[], "TableContent"]
    """Function that loads the same content in another process; pickled instead of the content."""
    emitted: bytes | None = None
    release: Callable[[], None] = lambda: None
    """Function that releases the memory of a mapped file; it is read again on access."""

    @property
    def size(self) -> int:
        """Number of shards."""
        return int(self.columns.num_rows)

    @cached_property
    def kinds(self) -> Ids:
        """One row for each combination of schema, format, compression and other common properties."""
        return first_of_each_kind(self.columns)

    def contents(self) -> Iterator["TableContent"]:
        """Yield this one, and release its memory."""
        yield self
        self.release()

    def read(self, begin: int, end: int) -> list[ShardInfo]:
        """Return the shards of rows [begin, end). They are checked again: a mapped file may have changed since.

        Raises:
            IndexFileError: a row is invalid, or was changed.
        """
        try:
            rows = rows_of(self.columns, begin, end)
        except (ValueError, IndexError) as error:
            raise IndexFileError(
                f"{self.parser.where}, row {begin}: it was changed since the table was opened: {str(error)[:200]}",
                where=self.parser.where,
            ) from error
        return [self.parser.parse(row, number) for number, row in enumerate(rows, begin)]

    def check(self, *, checks_names: bool) -> None:
        """Check all rows. Without `checks_names`, names and hashes are checked when a row is read.

        Raises:
            SchemaError, CatalogError, IndexFileError: a row is invalid, or two rows have a file name in common.
        """
        kinds = self.kind_shards()
        if not kinds:
            return
        check_shards(kinds, kinds[0].schema)
        rows = odd_rows(self.columns, checks_names=checks_names)
        check_shards([self.read(row, row + 1)[0] for row in rows.tolist()], kinds[0].schema)
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.reopen,)


def _reopened(reopen: Callable[[], TableContent]) -> TableContent:
    return reopen()


class ShardTable(Sequence[ShardInfo]):
    """Shards in order, created on access. Immutable, thread-safe, fork-safe, cheap to pickle and to slice."""

    def __init__(self, content: ShardRows, rows: range | Ids | None = None) -> None:
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
        return self._select(self._content.numbers("samples"))

    @property
    def content(self) -> ShardRows:
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
        parts = [part for pair in ZIPPED.items() for part in pair]
        names = [self._texts(f"{part}_name") for part in parts]
        sizes = [self._select(self._content.numbers(f"{part}_bytes")) for part in parts]
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            end = begin + _ROWS_AT_ONCE
            some_names = [column.slice(begin, _ROWS_AT_ONCE).to_pylist() for column in names]
            some_sizes = [column[begin:end].tolist() for column in sizes]
            yield [
                file
                for row in zip(*some_names, *some_sizes, strict=True)
                for file in _stored_files(row[: len(parts)], row[len(parts) :])
            ]

    def named(self, name: str) -> list[int]:
        """Return the indices of the shards with an uncompressed file of this name; the first call hashes all names."""
        places, hashes = self._name_hashes
        first, last = (
            np.searchsorted(hashes, np.uint64(_hash(name)), "left"),
            np.searchsorted(hashes, np.uint64(_hash(name)), "right"),
        )
        return [
            place
            for place in sorted(set(places[first:last].tolist()))
            if name in {file.basename for file in self[place].raw_files}
        ]

    @cached_property
    def _name_hashes(self) -> tuple[Ids, NDArray[np.uint64]]:
        """Indices of shards, and hashes of the names of their uncompressed files, sorted by hash."""
        columns = [self._texts(f"{part}_name") for part in ZIPPED]
        places = np.concatenate([np.flatnonzero(flags_in(column.is_valid().combine_chunks())) for column in columns])
        hashes = np.concatenate([hashes_of(column.drop_null()) for column in columns])
        order = np.argsort(hashes, kind="stable")
        return places[order], hashes[order]

    @property
    def has_block_lists(self) -> bool:
        """True if the table has block lists, whichever of its rows are selected."""
        return bool(self._content.words("block_file")[1])

    @property
    def block_files(self) -> set[str]:
        """The names of the files with the block lists of these shards.

        Raises:
            IndexFileError: a name is not safe.
        """
        return {check_basename(word, where="shard table") for word in self._words("block_file")}

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted."""
        return self._content.partitions if self.is_whole else self._words("partition")

    def of_partition(self, name: str) -> "ShardTable":
        """Return the shards of one split."""
        places, words = self._content.words("partition")
        chosen = np.flatnonzero(self._select(_is_word(places, words, lambda word: word == name)))
        if chosen.size and chosen[-1] - chosen[0] + 1 == chosen.size:
            return self[int(chosen[0]) : int(chosen[-1]) + 1]
        return ShardTable(self._content, self._select(np.arange(self._content.size))[chosen])

    def without_hash(self, name: str) -> FileInfo | None:
        """Return the first stored file without a hash of this name; None if all have it."""
        # Every file of a shard has all hashes that the shard declares; that was checked when the table was opened.
        is_declared = _is_word(*self._content.words("hash_names"), lambda word: name in word.split(","))
        for place in np.flatnonzero(~self._select(is_declared)).tolist():
            for file in self[place].stored_files:
                if name not in file.hashes:
                    return file
        return None

    def _texts(self, name: str) -> "pa.ChunkedArray":
        """Return the selected rows of a column of texts."""
        texts = self._content.texts(name)
        if isinstance(self._rows, range) and self._rows.step == 1:
            return texts.slice(self._rows.start, len(self))
        return texts.take(np.asarray(self._rows))

    def _words(self, name: str) -> tuple[str, ...]:
        """Return the words of a column that the selected rows have, sorted."""
        places, words = self._content.words(name)
        return words_at(self._select(places), words)

    def _select(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the selected rows."""
        if isinstance(self._rows, range) and self._rows.step > 0:
            return values[self._rows.start : self._rows.stop : self._rows.step]
        return values[np.asarray(self._rows, np.int64)]


def _stored_files(names: Sequence[str | None], sizes: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield name and size of each stored file of a row, given those of uncompressed and compressed files in turn."""
    for place in range(0, len(names), 2):
        stored = place if names[place + 1] is None else place + 1
        name = names[stored]
        if name is not None:
            yield name, sizes[stored]


def words_at(places: NDArray[np.int64], words: Sequence[str]) -> tuple[str, ...]:
    """Return the words that these places refer to, sorted.

    `np.unique` would import masked arrays, which takes longer than opening a small table.
    """
    return tuple(sorted({words[place] for place in np.flatnonzero(np.bincount(places[places >= 0])).tolist()}))


def _is_word(places: NDArray[np.int64], words: Sequence[str], accepts: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return for each place whether it has a word that is accepted."""
    return np.array([*map(accepts, words), False])[places]


def _hash(text: str) -> int:
    return xxh3_64_intdigest(text.encode(errors="surrogateescape"))


def hashes_of(texts: "pa.ChunkedArray") -> NDArray[np.uint64]:
    """Return a hash of each text: uint64, shape (texts,)."""
    hashes = np.empty(len(texts), np.uint64)
    for begin in range(0, hashes.size, _ROWS_AT_ONCE):
        hashes[begin : begin + _ROWS_AT_ONCE] = list(map(_hash, texts.slice(begin, _ROWS_AT_ONCE).to_pylist()))
    return hashes


@dataclass(frozen=True, eq=False)
class ShardBytes:
    """Bytes of every shard, over all of its files; each int64, shape (shards,)."""

    raw: Ids
    """Uncompressed."""
    stored: Ids
    """As stored."""
    zipped: Ids
    """Bytes of compressed files; 0 where there are none."""


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


def canonical(value: Any) -> str:
    """Return the JSON without spaces over which digests are computed."""
    return "null" if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _file_text(file: FileInfo | None) -> str:
    """Return the canonical JSON of a file; formatted by hand, because an encoder takes seconds for a million files."""
    if file is None:
        return "null"
    hashes = ",".join([f"{_quoted(name)}:{_quoted(digest)}" for name, digest in sorted(file.hashes.items())])
    return f"[{_quoted(file.basename)},{file.num_bytes},{{{hashes}}}]"
