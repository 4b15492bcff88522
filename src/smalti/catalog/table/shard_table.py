"""`ShardTable`: the shards of a version as a table in memory or in mapped files, and what is asked of shards.

A `ShardInfo` is created from its row on access. A million `ShardInfo` take a gigabyte and ten seconds to create; their
table takes 150 MB, of which only the accessed rows are read.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from smalti.catalog.table.content import (
    COMMON,
    MDS_COLUMNS,
    TEXT_COLUMNS,
    ZIPPED,
    Ids,
    TableContent,
    check_kinds,
    check_unique,
    flags_in,
    load_content,
    numbers_in,
)
from smalti.errors import IndexFileError, StoreNotFound
from smalti.format import FileInfo, Schema, ShardInfo, check_basename
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEME = re.compile(r"(?:content-)?segments-([1-9][0-9]{0,8})")
_SHA256 = re.compile("[0-9a-f]{64}")
_ROWS_AT_ONCE = 1024
"""Rows that are converted to Python objects together."""
_PARALLEL_LOADS = 2
"""Threads that check mapped files, which takes processors alone."""
_PARALLEL_FETCHES = 16
MAX_MAPPED = 256
"""Segments that are mapped at once, each of which takes a file descriptor; the others are in memory."""


def segment_shards_of(scheme: str) -> int | None:
    """Return the number of shards of a segment; None if this is not the name of a scheme of versions in segments."""
    match = _SCHEME.fullmatch(scheme)
    return int(match[1]) if match else None


class SplitFacts(NamedTuple):
    """The shards of one split in a segment."""

    shards: int
    rows: int
    first: str
    """The lowest name of a file."""
    last: str
    """The highest name of a file."""


@dataclass(frozen=True)
class Segment:
    """The facts of a segment, as the list has them."""

    key: str
    sha256: str
    file_bytes: int
    """Bytes of the segment's own file."""
    digest: str
    """Digest of its shards: by the scheme of the version, `digest_of_shards` or `digest_of`."""
    shards: int
    rows: int
    num_bytes: int
    """Bytes of the shards as stored."""
    splits: Mapping[str, SplitFacts]
    """By name; "" for shards without split."""

    @classmethod
    def from_json(cls, entry: Any, *, where: str) -> "Segment":
        """Parse and check an entry of a list.

        Raises:
            IndexFileError: a field is missing or invalid.
        """
        try:
            splits = {str(name): SplitFacts(*facts) for name, facts in entry["splits"].items()}
            found = cls(**{**{name: entry[name] for name in cls.__dataclass_fields__}, "splits": splits})
            numbers = [found.file_bytes, found.shards, found.rows, found.num_bytes]
            numbers += [number for each in splits.values() for number in (each.shards, each.rows)]
            names = [name for each in splits.values() for name in (each.first, each.last)]
            is_valid = (
                all(type(number) is int and number >= 0 for number in numbers)
                and all(_SHA256.fullmatch(text) for text in (found.sha256, found.digest))
                and all(isinstance(name, str) for name in names)
                and sum(each.shards for each in splits.values()) == found.shards
                and sum(each.rows for each in splits.values()) == found.rows
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise IndexFileError(f"{where}: an entry cannot be understood: {str(entry)[:200]}") from error
        if not is_valid:
            raise IndexFileError(f"{where}: an entry has invalid facts: {str(entry)[:200]}")
        check_basename(found.key, where=where)
        return found


@dataclass(eq=False)
class TableFile:
    """A file of shards; a segment is loaded on demand."""

    facts: Segment | None = None
    """The facts in the list of segments; None for the only file of a table."""
    store: Store | None = None
    """The store that has it; None if this process made it, and `loaded` is its content."""
    loaded: TableContent | None = None

    def load(self, columns: Mapping[str, str] | None = None, *, in_memory: bool = False) -> TableContent:
        """Return the content, which is compared with the facts and the columns of the version.

        Without `in_memory`, it is a mapped file, which takes a file descriptor.

        Raises:
            IndexFileError: the file is missing, was changed, or contradicts the list.
        """
        if self.loaded is not None:
            return self.loaded
        facts = self.facts
        if self.store is None or facts is None:
            raise IndexFileError(f"segment {facts and facts.key} has neither content nor store")
        where = self.store.locate(facts.key)
        try:
            content = load_content(
                self.store,
                facts.key,
                sha256=facts.sha256,
                num_bytes=facts.file_bytes,
                checks_names=False,
                in_memory=in_memory,
            )
        except StoreNotFound as error:
            raise IndexFileError(f"the segment {where} of the shard table is gone", key=facts.key) from error
        shards = ShardTable.of(content)
        has = len(shards), samples_of(shards), num_bytes_of(shards), partitions_of(shards)
        listed = facts.shards, facts.rows, facts.num_bytes, tuple(sorted(name for name in facts.splits if name))
        if has != listed:
            raise IndexFileError(
                f"segment {where} has shards, samples, bytes and splits {has}; the list of segments says {listed}",
                key=facts.key,
            )
        for kind in content.kinds() if columns is not None else ():
            if kind.schema.columns() != columns:
                raise IndexFileError(
                    f"segment {where} has shards with columns {kind.schema.columns()}, its version has "
                    f"{dict(columns or {})}"
                )
        content.release()
        return content


@dataclass(eq=False)
class TableFiles:
    """The files of a table: one, or segments of equal size. They stay loaded once columns of all shards were read."""

    files: tuple[TableFile, ...]
    segment_shards: int | None = None
    """Shards of each segment but the last; None if the table is a single file."""
    columns: Mapping[str, str] | None = None
    """Columns of the version, by which loaded segments are checked; None before they are known."""
    _recent: tuple[int, TableContent] | None = field(default=None, repr=False)
    """The segment that was read last, if it does not stay loaded."""

    def __post_init__(self) -> None:
        self._ends = list(
            accumulate(len(file.load().columns) if file.facts is None else file.facts.shards for file in self.files)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.files, self.segment_shards, self.columns)

    @property
    def size(self) -> int:
        """Number of shards."""
        return self._ends[-1] if self._ends else 0

    @property
    def facts(self) -> tuple[Segment, ...]:
        """The facts of the segments; empty for a single file."""
        return tuple(file.facts for file in self.files if file.facts is not None)

    def contents(self) -> Iterator[TableContent]:
        """Load the files that are not loaded yet, in parallel, and yield all; the memory of each is released after it.

        Raises:
            IndexFileError: a segment is missing, or was changed.
        """
        missing = [file for file in self.files if file.loaded is None]
        if missing:
            store, facts = missing[0].store, missing[0].facts
            is_local = store is not None and facts is not None and store.local_path(facts.key) is not None
            threads = _PARALLEL_LOADS if is_local else _PARALLEL_FETCHES
            in_memory = len(missing) > MAX_MAPPED
            with ThreadPoolExecutor(min(threads, len(missing)), thread_name_prefix="smalti-segment") as pool:
                contents = pool.map(lambda file: file.load(self.columns, in_memory=in_memory), missing)
                for file, content in zip(missing, contents, strict=True):
                    file.loaded = content
        for file in self.files:
            content = file.load()
            yield content
            content.release()

    def spans(self, begin: int, end: int) -> Iterator[tuple[TableContent, int, int]]:
        """Yield the files that have rows [begin, end), with the first and the last row there.

        Raises:
            IndexFileError: a segment is missing, or was changed.
        """
        while begin < min(end, self.size):
            number = bisect_right(self._ends, begin)
            start = self._ends[number - 1] if number else 0
            content, last = self.files[number].loaded, min(end, self._ends[number])
            recent = self._recent  # read once: another thread may replace it
            if content is None and recent is not None and recent[0] == number:
                content = recent[1]
            if content is None:
                content = self.files[number].load(self.columns)
                self._recent = number, content
            yield content, begin - start, last - start
            begin = last

    def read(self, begin: int, end: int) -> list[ShardInfo]:
        """Return the shards of rows [begin, end). They are checked again: a mapped file may have changed since.

        Raises:
            IndexFileError: a row is invalid, or its file is missing or was changed.
        """
        return [shard for content, first, last in self.spans(begin, end) for shard in content.read(first, last)]


class ShardTable(Sequence[ShardInfo]):
    """Shards in order, created on access. Immutable, thread-safe, fork-safe, cheap to pickle and to slice."""

    def __init__(self, content: TableFiles, rows: range | Ids | None = None) -> None:
        """Create a sequence of these rows of the table, in this order; by default all."""
        self.content = content
        self.rows = range(content.size) if rows is None else rows

    @classmethod
    def of(cls, content: TableContent) -> "ShardTable":
        """Return the shards of a single file."""
        return cls(TableFiles((TableFile(loaded=content),)))

    def __len__(self) -> int:
        return len(self.rows)

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
            return ShardTable(self.content, self.rows[at])
        row = int(self.rows[at])
        return self.content.read(row, row + 1)[0]

    def __iter__(self) -> Iterator[ShardInfo]:
        if isinstance(self.rows, range) and self.rows.step == 1:
            for begin in range(self.rows.start, self.rows.stop, _ROWS_AT_ONCE):
                yield from self.content.read(begin, min(begin + _ROWS_AT_ONCE, self.rows.stop))
        else:
            for row in self.rows:
                yield from self.content.read(int(row), int(row) + 1)

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
        return type(self), (self.content, self.rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} shards)"

    @property
    def is_whole(self) -> bool:
        """True if these are all shards of the content, in its order."""
        return isinstance(self.rows, range) and self.rows == range(self.content.size)

    def spans(self) -> list[tuple[TableContent, int, int]]:
        """Return the files of these shards, with first and last row; empty if they are not consecutive rows."""
        if isinstance(self.rows, range) and self.rows.step == 1:
            return list(self.content.spans(self.rows.start, self.rows.stop))
        return []

    def numbers(self, name: str) -> Ids:
        """Return a column of numbers; -1 for nulls."""
        parts = [numbers_in(content.columns.column(name)).copy() for content in self.content.contents()]
        return self._select(np.concatenate([np.zeros(0, np.int64), *parts]))

    def words(self, name: str) -> tuple[Ids, list[str]]:
        """Return for each shard the index of its word in a list, -1 for none, and the list."""
        numbers: dict[str, int] = {}
        parts = [np.zeros(0, np.int64)]
        for content in self.content.contents():
            column = content.columns.column(name)
            words = column.dictionary.to_pylist() if hasattr(column, "dictionary") else []
            places = numbers_in(getattr(column, "indices", column))
            parts.append(np.array([*(numbers.setdefault(word, len(numbers)) for word in words), -1])[places])
        return self._select(np.concatenate(parts)), list(numbers)

    def texts(self, name: str) -> "pa.ChunkedArray":
        """Return a column of texts, checked again: a mapped file can change after it was opened.

        Raises:
            IndexFileError: it is damaged now.
        """
        import pyarrow as pa

        column = pa.chunked_array(
            [content.columns.column(name).cast(pa.string()) for content in self.content.contents()], pa.string()
        )
        try:
            column.validate(full=True)
        except ValueError as error:
            raise IndexFileError(f"column {name} of a shard table was changed: {str(error)[:200]}") from error
        if isinstance(self.rows, range) and self.rows.step == 1:
            return column.slice(self.rows.start, len(self))
        return column.take(np.asarray(self.rows))

    def _select(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the selected rows."""
        if isinstance(self.rows, range) and self.rows.step > 0:
            return values[self.rows.start : self.rows.stop : self.rows.step]
        return values[np.asarray(self.rows, np.int64)]

    @cached_property
    def bytes_each(self) -> "ShardBytes":
        """Bytes of every shard."""
        return _bytes_each(self)

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return a hash of all data of each shard, for comparing tables: uint64, shape (shards,).

        Different shards have the same hash with a probability of 2^-64. Rows are not checked.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        hashes = [np.zeros(0, np.uint64)]
        for content in self.content.contents():
            schemas = pa.array(map(json.dumps, content.schemas), pa.string())
            for begin in range(0, len(content.columns), _ROWS_AT_ONCE):
                rows = content.slice(begin, begin + _ROWS_AT_ONCE)
                columns = {name: rows.column(name).cast(pa.string()) for name in MDS_COLUMNS | TEXT_COLUMNS}
                columns |= {"schema": schemas.take(rows.column("schema")), "format": columns["format"].fill_null("mds")}
                texts = pc.binary_join_element_wise(
                    *columns.values(), "\0", null_handling="replace", null_replacement="\1"
                )
                hashes.append(hashes_of(texts))
        return self._select(np.concatenate(hashes))

    def named(self, name: str) -> list[int]:
        """Return the indices of the shards with an uncompressed file of this name; the first call hashes all names."""
        places, hashes = self._name_hashes
        first, last = (np.searchsorted(hashes, np.uint64(_hash(name)), side) for side in ("left", "right"))
        return [
            place
            for place in sorted(set(places[first:last].tolist()))
            if name in {file.basename for file in self[place].raw_files}
        ]

    @cached_property
    def _name_hashes(self) -> tuple[Ids, NDArray[np.uint64]]:
        """Indices of shards, and hashes of the names of their uncompressed files, sorted by hash."""
        columns = [self.texts(f"{part}_name") for part in ZIPPED]
        places = np.concatenate([np.flatnonzero(flags_in(column.is_valid().combine_chunks())) for column in columns])
        hashes = np.concatenate([hashes_of(column.drop_null()) for column in columns])
        order = np.argsort(hashes, kind="stable")
        return places[order], hashes[order]

    def of_partition(self, name: str) -> "ShardTable":
        """Return the shards of one split."""
        chosen = np.flatnonzero(self.has_word("partition", lambda word: word == name))
        if chosen.size and chosen[-1] - chosen[0] + 1 == chosen.size:
            return self[int(chosen[0]) : int(chosen[-1]) + 1]
        return ShardTable(self.content, self._select(np.arange(self.content.size))[chosen])

    def has_word(self, name: str, accepts: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return for each shard whether it has a word that is accepted."""
        places, words = self.words(name)
        return np.array([*map(accepts, words), False])[places]


def _hash(text: str) -> int:
    return xxh3_64_intdigest(text.encode(errors="surrogateescape"))


def hashes_of(texts: "pa.Array | pa.ChunkedArray") -> NDArray[np.uint64]:
    """Return a hash of each text: uint64, shape (texts,)."""
    hashes = np.empty(len(texts), np.uint64)
    for begin in range(0, hashes.size, _ROWS_AT_ONCE):
        hashes[begin : begin + _ROWS_AT_ONCE] = list(map(_hash, texts.slice(begin, _ROWS_AT_ONCE).to_pylist()))
    return hashes


class ShardBytes(NamedTuple):
    """Bytes of every shard, over all of its files; each int64, shape (shards,)."""

    raw: Ids
    """Uncompressed."""
    stored: Ids
    """As stored."""
    zipped: Ids
    """Bytes of compressed files; 0 where there are none."""


def _numbers(shards: Sequence[ShardInfo], name: str) -> Ids:
    """Return the samples of each shard or, by the name of the column, the bytes of a file; -1 where there is none."""
    if isinstance(shards, ShardTable):
        return shards.numbers(name)
    if name == "samples":
        return np.array([shard.samples for shard in shards], np.int64)
    files = (getattr(shard, name.removesuffix("_bytes")) for shard in shards)
    return np.array([-1 if file is None else file.num_bytes for file in files], np.int64)


def _bytes_each(shards: Sequence[ShardInfo]) -> ShardBytes:
    raw, zipped = ([_numbers(shards, f"{part}_bytes") for part in parts] for parts in (ZIPPED, ZIPPED.values()))
    stored = [np.where(packed < 0, plain, packed) for plain, packed in zip(raw, zipped, strict=True)]
    totals: list[Any] = [sum(np.maximum(sizes, 0) for sizes in group) for group in (raw, stored, zipped)]
    return ShardBytes(*totals)


def bytes_of(shards: Sequence[ShardInfo]) -> ShardBytes:
    """Return the bytes of every shard."""
    return shards.bytes_each if isinstance(shards, ShardTable) else _bytes_each(shards)


def num_bytes_of(shards: Sequence[ShardInfo]) -> int:
    """Return the bytes of all these shards as stored; of segments, without loading them."""
    # Not by `bytes_each`: threads that load segments ask for this, and for the splits. In Python 3.11 and earlier, they
    # would wait for the lock that all cached properties of a name share, which the one that waits for them has.
    facts = facts_of(shards)
    return sum(segment.num_bytes for segment in facts) if facts else int(_bytes_each(shards).stored.sum())


def sizes_of(shards: Sequence[ShardInfo]) -> Ids:
    """Return the number of samples of every shard; int64, shape (shards,)."""
    return _numbers(shards, "samples")


def samples_of(shards: Sequence[ShardInfo]) -> int:
    """Return the number of samples of all shards; of segments, without loading them."""
    facts = facts_of(shards)
    return sum(segment.rows for segment in facts) if facts else int(sizes_of(shards).sum())


def samples_of_split(shards: Sequence[ShardInfo], split: str) -> int:
    """Return the number of samples of a split; of segments, without loading them."""
    facts = facts_of(shards)
    if facts:
        return sum(segment.splits[split].rows for segment in facts if split in segment.splits)
    return samples_of(of_split(shards, split))


def of_split(shards: Sequence[ShardInfo], split: str) -> Sequence[ShardInfo]:
    """Return the shards of one split."""
    if isinstance(shards, ShardTable):
        return shards.of_partition(split)
    return tuple(shard for shard in shards if shard.partition == split)


def partitions_of(shards: Sequence[ShardInfo]) -> tuple[str, ...]:
    """Return the names of the splits of these shards, sorted; of segments, without loading them."""
    facts = facts_of(shards)
    names: set[str | None]
    if facts:
        names = set().union(*(segment.splits for segment in facts))
    elif isinstance(shards, ShardTable):
        names = {*_words_in(shards, "partition")}
    else:
        names = {shard.partition for shard in shards}
    return tuple(sorted(name for name in names if name))


def facts_of(shards: Sequence[ShardInfo]) -> tuple[Segment, ...]:
    """Return the facts of the segments, if these are all shards of a table in segments; they save loading it."""
    segments = segments_in(shards)
    return () if segments is None else segments.facts


def _words_in(shards: ShardTable, name: str) -> set[str]:
    """Return the words that the shards have in a column.

    `np.unique` would import masked arrays, which takes longer than opening a small table.
    """
    places, words = shards.words(name)
    return {words[place] for place in np.flatnonzero(np.bincount(places[places >= 0])).tolist()}


def block_files_of(shards: Sequence[ShardInfo]) -> set[str]:
    """Return the names of the files with the block lists of these shards.

    Raises:
        IndexFileError: a name is not safe.
    """
    if isinstance(shards, ShardTable):
        return {check_basename(word, where="shard table") for word in _words_in(shards, "block_file")}
    return {shard.blocks.file for shard in shards if shard.blocks is not None}


def written_keys(shards: Sequence[ShardInfo]) -> list[str]:
    """Return the names of all objects that a writer of these shards has put: their files, and their block lists."""
    return [*(file.basename for shard in shards for file in shard.stored_files), *sorted(block_files_of(shards))]


def stored_sizes_of(shards: Sequence[ShardInfo]) -> Iterator[list[tuple[str, int]]]:
    """Yield name and bytes of every stored file, in order; of a table some thousands at a time, without shards."""
    if not isinstance(shards, ShardTable):
        yield [(file.basename, file.num_bytes) for shard in shards for file in shard.stored_files]
        return
    import pyarrow.compute as pc

    files = []
    for parts in ZIPPED.items():
        plain, packed = (shards.numbers(f"{part}_bytes") for part in parts)
        files.append(([shards.texts(f"{part}_name") for part in parts[::-1]], np.where(packed < 0, plain, packed)))
    for begin in range(0, len(shards), _ROWS_AT_ONCE):
        columns = []
        for names, sizes in files:
            stored = pc.coalesce(*(column.slice(begin, _ROWS_AT_ONCE) for column in names))
            columns.append(zip(stored.to_pylist(), sizes[begin : begin + _ROWS_AT_ONCE].tolist(), strict=True))
        yield [file for row in zip(*columns, strict=True) for file in row if file[0] is not None]


def kinds_of(shards: Sequence[ShardInfo]) -> Sequence[ShardInfo]:
    """Return at least the first shard of each schema and format; of a table, whichever of its rows are selected."""
    if not isinstance(shards, ShardTable):
        return shards
    kinds: dict[tuple[Any, ...], ShardInfo] = {}
    for content in shards.content.contents():
        for shard in content.kinds():
            kinds.setdefault(tuple(getattr(shard, name) for name in COMMON), shard)
    return list(kinds.values())


def without_hash(shards: Sequence[ShardInfo], name: str) -> FileInfo | None:
    """Return the first stored file without a hash of this name; None if all have it."""
    # Every file of a shard has all hashes that the shard declares; that was checked when a table was opened.
    lacking: Iterable[ShardInfo] = shards
    if isinstance(shards, ShardTable):
        declares = shards.has_word("hash_names", lambda word: name in word.split(","))
        lacking = (shards[place] for place in np.flatnonzero(~declares).tolist())
    return next((file for shard in lacking for file in shard.stored_files if name not in file.hashes), None)


def segments_in(shards: Sequence[ShardInfo]) -> TableFiles | None:
    """Return the segments of a whole segmented table; None for other shards."""
    content = shards.content if isinstance(shards, ShardTable) and shards.is_whole else None
    return None if content is None or content.segment_shards is None else content


def check_shards(shards: Sequence[ShardInfo], schema: Schema) -> None:
    """Check that all shards have this schema, are listed once, and are in the folder of their split.

    Raises:
        SchemaError: a shard has another schema.
        CatalogError: a file is listed twice, or a split is invalid or not the folder of its shards.
    """
    check_kinds(kinds_of(shards), schema)
    if not isinstance(shards, ShardTable):  # names were checked when it was opened
        check_unique(shards)
