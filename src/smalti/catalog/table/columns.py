"""The columns of a shard table as numpy views, and the creation of shards from its rows.

pyarrow trusts offsets, and a mapped file can change after they were checked. The code here cannot read outside the
file, whatever it contains: slices of Python and numpy end at the end of the memory, and indices are checked.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import CatalogError, FormatError, IndexFileError, SchemaError
from smalti.format import BlockList, FileInfo, Schema, ShardInfo, check_hash_names, parse_compression, parse_size_limit
from smalti.format.index import MAX_STORED_BYTES, ONE_FILE_FORMATS, check_basename, parse_schema
from smalti.format.json_fields import Fields
from smalti.format.sizes import MAX_FILE_BYTES
from smalti.format.text import TEXT_FORMATS, parse_layout

if TYPE_CHECKING:
    import pyarrow as pa

Bools = NDArray[np.bool_]
_quoted = json.encoder.encode_basestring_ascii
_ONE_HASH = re.compile(
    r'\{"(\w+)": "([0-9a-f]+)"\}', re.ASCII
)  # nearly every file has hashes of this form; faster than a JSON parser


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column of integers with nulls."""

    values: NDArray[np.int64]
    absent: Bools
    """True for nulls; shape as `values`."""

    def rows(self, begin: int, end: int) -> list[int | None]:
        """Return the values of rows [begin, end)."""
        return _with_nulls(self.values[begin:end].tolist(), self.absent[begin:end])


@dataclass(frozen=True, eq=False)
class Texts:
    """A column of texts with nulls, mostly different ones."""

    offsets: NDArray[np.int32]
    """Start of each text in `data`, and the end of the last."""
    data: NDArray[np.uint8]
    """UTF-8 of all texts."""
    absent: Bools

    def rows(self, begin: int, end: int) -> list[str | None]:
        """Return the texts of rows [begin, end).

        Raises:
            ValueError: a text is not UTF-8: the file was changed since it was checked.
        """
        places = self.offsets[begin : end + 1].tolist()
        data = memoryview(self.data)
        texts = [str(data[a:b], "utf-8") for a, b in pairwise(places)]
        return _with_nulls(texts, self.absent[begin:end])


@dataclass(frozen=True, eq=False)
class Words:
    """A dictionary-encoded column of texts with nulls: many rows have the same text."""

    places: NDArray[np.int32]
    """Index in `words` for each row; negative for nulls."""
    words: list[str | None]

    def rows(self, begin: int, end: int) -> list[str | None]:
        """Return the words of rows [begin, end)."""
        words = self.words
        return [None if place < 0 else words[place] for place in self.places[begin:end].tolist()]


def words_at(places: NDArray[np.int32], words: Sequence[str | None]) -> set[str]:
    """Return the words that these places refer to.

    `np.unique` would import masked arrays, which takes longer than opening a small table.
    """
    used = np.flatnonzero(np.bincount(places[places >= 0])).tolist()
    return {word for place in used if (word := words[place]) is not None}


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table, in order and by kind and name."""

    in_order: tuple[Numbers | Texts | Words, ...]
    numbers: dict[str, Numbers]
    texts: dict[str, Texts]
    words: dict[str, Words]

    @classmethod
    def of(cls, table: "pa.Table", kinds: Mapping[str, type]) -> "Columns":
        """Return views of the columns in `kinds`.

        Raises:
            ValueError: a column has another type.
            KeyError: a column is missing or duplicated.
        """
        views: dict[type, Callable[[pa.ChunkedArray], Numbers | Texts | Words]]
        views = {Numbers: numbers_of, Texts: texts_of, Words: words_of}
        return cls.from_dict({name: views[kind](table.column(name)) for name, kind in kinds.items()})

    @classmethod
    def from_dict(cls, columns: Mapping[str, Numbers | Texts | Words]) -> "Columns":
        """Return these columns, in this order."""
        return cls(
            tuple(columns.values()),
            {name: column for name, column in columns.items() if isinstance(column, Numbers)},
            {name: column for name, column in columns.items() if isinstance(column, Texts)},
            {name: column for name, column in columns.items() if isinstance(column, Words)},
        )

    def rows(self, begin: int, end: int) -> list[tuple[Any, ...]]:
        """Return rows [begin, end) as tuples of values in the order of the columns."""
        return list(zip(*(column.rows(begin, end) for column in self.in_order), strict=True))


def numbers_of(column: "pa.ChunkedArray") -> Numbers:
    """Return a view of a column of integers.

    Raises:
        ValueError: the column has another type.
    """
    import pyarrow as pa

    if column.type not in (pa.int32(), pa.int64()):
        raise ValueError(f"a column has the type {str(column.type)[:60]}, not that of numbers")
    array = _whole(column)
    kind = np.dtype(np.int32 if column.type == pa.int32() else np.int64)
    values = _view(array.buffers()[1], kind, array.offset, len(array))
    return Numbers(values.astype(np.int64, copy=False), _absent(array))


def texts_of(column: "pa.ChunkedArray") -> Texts:
    """Return a view of a column of plain texts.

    Dictionary-encoded columns are refused: many rows could refer to one very long text.

    Raises:
        ValueError: the column has another type.
    """
    import pyarrow as pa

    if column.type != pa.string():
        raise ValueError(f"a column has the type {str(column.type)[:60]}, not that of texts")
    array = _whole(column)
    _, places, data = array.buffers()
    if not len(array):
        return Texts(np.zeros(1, np.int32), np.zeros(0, np.uint8), np.zeros(0, bool))
    size = 0 if data is None else data.size
    return Texts(
        _view(places, np.dtype(np.int32), array.offset, len(array) + 1),
        _view(data, np.dtype(np.uint8), 0, size),
        _absent(array),
    )


def words_of(column: "pa.ChunkedArray") -> Words:
    """Return a view of a column of words, plain or dictionary-encoded.

    Raises:
        ValueError: the column has another type.
    """
    import pyarrow as pa

    if column.type not in (pa.string(), pa.dictionary(pa.int32(), pa.string())):
        raise ValueError(f"a column has the type {str(column.type)[:60]}, not that of words")
    array = _whole(column)
    if column.type == pa.string():
        array = array.dictionary_encode()
    words: list[str | None] = array.dictionary.to_pylist()
    places = array.indices
    found = _view(places.buffers()[1], np.dtype(np.int32), places.offset, len(places))
    missing = _absent(places)
    if None in words:  # a null in the dictionary is the other representation of nulls
        missing = missing | np.array([word is None for word in words])[np.where(missing, 0, found)]
    if missing.all():
        return Words(np.broadcast_to(np.int32(-1), found.shape), words)
    return Words(np.where(missing, np.int32(-1), found) if missing.any() else found, words)


def gather(data: NDArray[np.uint8], starts: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
    """Return the texts of one length that begin at `starts`: uint8, shape (texts, length)."""
    if starts.size and int(starts[-1] - starts[0]) == (starts.size - 1) * length and (np.diff(starts) == length).all():
        return data[starts[0] : starts[0] + starts.size * length].reshape(starts.size, length)
    found: NDArray[np.uint8] = data[starts[:, None] + np.arange(length)]
    return found


def _whole(column: "pa.ChunkedArray") -> Any:
    """Return the column as a single chunk, without a copy if it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _view(buffer: Any, kind: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
    if not count:
        return np.zeros(0, kind)
    return np.frombuffer(buffer, kind, count, offset * kind.itemsize)


def _absent(array: Any) -> Bools:
    """Return which values are null, by the bitmap alone: the null count in the file may be wrong."""
    bits = array.buffers()[0]
    if bits is None:
        return np.broadcast_to(np.False_, (len(array),))
    end = array.offset + len(array)
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=end, bitorder="little")[array.offset :]
    if not flags.any():
        return np.broadcast_to(np.True_, (len(array),))
    absent: Bools = flags == 0
    return absent


def _with_nulls(values: list[Any], absent: Bools) -> list[Any]:
    if not absent.any():
        return values
    return [None if is_absent else value for value, is_absent in zip(values, absent.tolist(), strict=True)]


PartialReading = tuple[str | None, int | None, int | None, int | None]
"""The fields of a shard's `BlockList`, which verify parts of it; numbers are signed."""
NO_PARTIAL_READING: PartialReading = (None, None, None, None)


@dataclass(frozen=True, eq=False)
class PartialColumns:
    """The optional columns of a table, with which parts of shards are verified."""

    block_file: Words | None = None
    """None if no shard has a block list; otherwise the columns below are there, too."""
    block_offset: Numbers | None = None
    block_bytes: Numbers | None = None
    block_digest: Numbers | None = None

    @classmethod
    def of(cls, table: "pa.Table") -> "PartialColumns":
        """Return views of those columns that the table has.

        Raises:
            ValueError: a column has another type.
            KeyError: a column is missing or duplicated.
        """
        if COLUMN_NAMES.keys().isdisjoint(table.column_names):
            return cls()
        views: dict[str, Any] = {}
        for name in cls.__dataclass_fields__:
            column = table.column(COLUMN_NAMES[name])
            views[name] = words_of(column) if name == "block_file" else numbers_of(column)
        return cls(**views)

    def rows(self, begin: int, end: int) -> Iterable[PartialReading]:
        """Return the values of rows [begin, end)."""
        columns = [getattr(self, name) for name in self.__dataclass_fields__]
        if columns == [None] * len(columns):
            return repeat(NO_PARTIAL_READING, max(0, end - begin))
        return zip(*(repeat(None) if each is None else each.rows(begin, end) for each in columns), strict=False)


NO_PARTIAL_COLUMNS = PartialColumns()
COLUMN_NAMES = {name: name for name in PartialColumns.__dataclass_fields__}
"""Names in a table of the fields of `PartialColumns`."""


class RowParser:
    """The parser of rows to shards, each checked as strictly as an entry of an index file.

    Properties that many rows have in common are checked and kept once.
    """

    def __init__(self, schemas: list[dict[str, Any]], where: str) -> None:
        self.where = where
        """Name of the table, for messages."""
        self._schemas = schemas
        self._columns: dict[tuple[Any, ...], Schema] = {}
        self._common: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self._texts: dict[int, str] = {}
        self._canonical_schemas: dict[int, str] = {}
        self._canonical_ends: dict[tuple[Any, ...], str] = {}

    def parse(self, row: tuple[Any, ...], number: int, partial: PartialReading = NO_PARTIAL_READING) -> ShardInfo:
        """Return the shard of one row, given as the values of all columns in order, and how parts of it are verified.

        Raises:
            IndexFileError: the row is invalid; the message contains its number.
        """
        where = f"{self.where}, row {number}"
        try:
            return self._shard(row, where, partial)
        except FormatError:
            raise
        except (SchemaError, CatalogError) as error:
            raise IndexFileError(f"{where}: {error.message[:500]}") from error
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise IndexFileError(f"{where} cannot be read: {str(error)[:200]}") from error

    def text(self, row: tuple[Any, ...]) -> str:
        """Return all values of a row as text, equal for equal shards of different tables; the row is not checked."""
        schema = self._texts.get(row[0])
        if schema is None:
            schema = self._texts[row[0]] = json.dumps(self._schemas[row[0]], sort_keys=True)
        values = row[1:] if row[12:13] != ("mds",) else row[1:12]  # the columns of text shards are empty in MDS rows
        return repr((schema, *values))

    def canonical(self, row: tuple[Any, ...]) -> str:
        """Return the line of a row that the digest of a version covers; the row was checked before."""
        schema = self._canonical_schemas.get(row[0])
        if schema is None:
            entry = self._schemas[row[0]]
            schema = canonical([entry["names"], entry["encodings"], entry["sizes"]])
            self._canonical_schemas[row[0]] = schema
        common = row[9:12]
        end = self._canonical_ends.get(common)
        if end is None:
            names = common[1].split(",") if common[1] else []
            end = self._canonical_ends[common] = canonical([common[0], names, common[2]])[1:-1]
        split = "null" if row[1] is None else _quoted(row[1])
        text = f"{split},{row[2]},{_file_text(*row[3:6])},{_file_text(*row[6:9])},{end}"
        if len(row) > 15 and row[15] is not None:
            text += f",{canonical(row[12:15])[1:-1]},{_file_text(*row[15:18])},{_file_text(*row[18:21])}"
        elif row[12:13] not in ((), ("mds",)):
            text += f",{canonical(row[12])}"
        return f"{schema}[{text}]\n"

    def _shard(self, row: tuple[Any, ...], where: str, partial: PartialReading) -> ShardInfo:
        schema, partition, samples, *files = row[:9]
        compression, hash_names, size_limit = row[9:12]
        kind, newline, separator = texts = row[12:15] or ("mds", None, None)
        columns = self._columns.get((schema, *texts)) or self._read_columns(schema, texts, where)
        names = self._common.get((compression, hash_names, size_limit))
        if names is None:
            names = self._read_common(compression, hash_names, size_limit, where)
        raw = _file(*files[:3], where=where)
        meta, zip_meta = (
            (_file(*row[15:18], where=where), _file(*row[18:21], where=where, limit=MAX_STORED_BYTES))
            if len(row) > 15
            else (None, None)
        )
        if raw is None or (kind in ONE_FILE_FORMATS) != (meta is None):
            raise IndexFileError(f"{where}: a {kind!r:.60} shard has a file too few or too many")
        info = ShardInfo(
            schema=columns,
            samples=samples,
            raw=raw,
            zip=_file(*files[3:6], where=where, limit=MAX_STORED_BYTES),
            compression=compression,
            hash_names=names,
            size_limit=size_limit,
            partition=partition,
            format=kind,
            meta=meta,
            zip_meta=zip_meta,
            newline=newline,
            separator=separator,
            blocks=None if partial[0] is None else _block_list(*partial, where=where),
        )
        info.check(where)
        return info

    def _read_columns(self, number: int, texts: tuple[str, str | None, str | None], where: str) -> Schema:
        if number < 0:
            raise IndexFileError(f"{where}: there is no schema {number}")
        entry, (kind, newline, separator) = self._schemas[number], texts
        obj = {"column_names": entry["names"], "column_encodings": entry["encodings"], "column_sizes": entry["sizes"]}
        fields = Fields(obj, where)
        if kind in ONE_FILE_FORMATS:
            found = parse_schema(fields)
        elif kind in TEXT_FORMATS:
            obj["columns"] = dict(zip(entry["names"], entry["encodings"], strict=True))
            layout = parse_layout(Fields({**obj, "newline": newline, "separator": separator}, where), kind)
            found = layout.schema
            if layout.separator != separator or any(size is not None for size in entry["sizes"]):
                raise IndexFileError(f"{where}: separator {separator!r:.60} or column sizes do not belong to {kind}")
        else:
            raise IndexFileError(f"{where}: unknown shard format {kind!r:.60}")
        self._columns[(number, *texts)] = found
        return found

    def _read_common(
        self, compression: str | None, hash_names: str | None, size_limit: int | None, where: str
    ) -> tuple[str, ...]:
        """Check the properties that shards of one writer have in common, and return the names of the hashes."""
        names = tuple(hash_names.split(",")) if hash_names else ()
        check_hash_names(names)
        if compression is not None and parse_compression(compression) is None:
            raise IndexFileError(f"{where}: an empty name for a compression")
        parse_size_limit(size_limit)
        self._common[compression, hash_names, size_limit] = names
        return names


def canonical(value: Any) -> str:
    """Return the JSON without spaces over which digests are computed."""
    return "null" if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _file_text(name: str | None, num_bytes: int | None, hashes: str | None) -> str:
    """Return the canonical JSON of a file."""
    if name is None:
        return "null"
    match = _ONE_HASH.fullmatch(hashes or "")
    text = f'{{"{match[1]}":"{match[2]}"}}' if match else canonical(parse_hashes(hashes))
    return f"[{_quoted(name)},{num_bytes},{text}]"


def parse_hashes(text: str | None) -> dict[str, str]:
    """Parse the hashes of a file, name to digest, from the JSON in a table; the digests are not checked."""
    match = _ONE_HASH.fullmatch(text or "")
    found = {match[1]: match[2]} if match else json.loads(text or "null")
    return {sys.intern(algorithm): digest for algorithm, digest in found.items()}


def _block_list(
    file: str | None, offset: int | None, block_bytes: int | None, digest: int | None, *, where: str
) -> BlockList:
    if offset is None or block_bytes is None or digest is None:
        raise IndexFileError(f"{where}: a block list without offset, size or digest")
    found = BlockList(check_basename(file, where=f"{where}, block list"), offset, block_bytes, digest % (1 << 64))
    found.check(where)
    return found


def _file(
    name: str | None,
    num_bytes: int | None,
    hashes: str | None,
    *,
    where: str,
    limit: int = MAX_FILE_BYTES,
) -> FileInfo | None:
    if name is None:
        return None
    file = FileInfo(name, -1 if num_bytes is None else num_bytes, parse_hashes(hashes))
    file.check(where, limit=limit)
    return file
