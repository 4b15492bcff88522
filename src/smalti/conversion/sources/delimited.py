"""CSV and TSV files, plain or compressed: types declared, or learned from all rows of all files.

Rows are read by `pyarrow.csv` alone, in blocks of whole rows; `row_blocks` finds where rows end. A row with too few or
too many fields, or with a value that is none of its column's type, is an error with file and line. A file without
quotes is read in pieces, side by side.

A quote opens a value only at the start of a field, is doubled within it, and is closed at the end of the field
(RFC 4180). Within a field that does not begin with one, it is a character like any other. The parser accepts text after
a closing quote, and removes the quote; so that no value is altered, such text is an error here.

The types of columns of text are learned from all values. A type is taken only if it holds all values as they are
written.

`007` and `+1` are text, and so are numbers that the type does not hold: whole numbers beyond 64 bits, those of more
than 15 digits among fractions, and numbers that a float makes infinite or 0. A number with a point or an exponent
becomes the nearest float: `1.10` is 1.1. An empty field is a null in a column of numbers or dates, and an empty text in
a column of text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from smalti.conversion.files import SourceFiles, StoredFile, without_compression
from smalti.conversion.source import OpenedPart, OpenedSource, SourceOptions, check_columns
from smalti.conversion.sources.lines import (
    BATCH_ROWS,
    BOM,
    MAX_COLUMNS,
    MAX_LINE_BYTES,
    Block,
    LineRange,
    declared_types,
    find_text_files,
    line_blocks,
    line_ranges,
    too_long,
)
from smalti.errors import FormatError, SchemaError
from smalti.writer.tables.values import fits

_NEWLINE, _RETURN = 10, 13
_MAX_QUOTES = 1 << 24
_MAX_HEADER_BYTES = 16 << 20
_LINE_END = re.compile(rb"\r?\n|\r")
Places = npt.NDArray[np.int64]
_ENDINGS = (".csv", ".tsv")
_DELIMITERS = (",", "\t", ";", "|")
_ROW = re.compile(r"Row #(\d+): ")
_COUNTS = re.compile(r"Expected (\d+) columns, got (\d+)")
_COLUMN = re.compile(r"In CSV column #(\d+): ")
_INTEGER = r"^(?:0|-?[1-9][0-9]*)$"
# Digits alone have at most 15 places: a float holds these exactly.
_FLOAT = (
    r"^-?(?:(?:0|[1-9][0-9]*)?\.[0-9]+(?:[eE][+-]?[0-9]+)?|(?:0|[1-9][0-9]*)\.?[eE][+-]?[0-9]+"
    r"|(?:0|[1-9][0-9]*)\.|0|[1-9][0-9]{0,14})$|^(?:nan|NaN|-?inf|-?Inf)$"
)
_INFINITE = r"^\s*[-+]?(?i:inf|infinity)\s*$"
_NOT_ZERO = r"^[^eE]*[1-9]"
_BOOLEAN = r"^(?:true|false|True|False|TRUE|FALSE)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"


_CANDIDATES: dict[pa.DataType, str] = {
    pa.bool_(): _BOOLEAN,
    pa.int64(): _INTEGER,
    pa.float64(): _FLOAT,
    pa.date32(): _DATE,
    pa.timestamp("us"): _TIME + "$",
    pa.timestamp("us", "UTC"): _TIME + r"(?:Z|[+-][0-9]{2}:?[0-9]{2})$",
}
"""The types of columns, and the texts that may be values of each."""


def _holds(kind: pa.DataType, texts: pa.Array) -> bool:
    """Return whether a type has these values as they are written."""
    pattern = _CANDIDATES[kind]
    # Most columns are refused by their first value, without a pass over all.
    if not re.search(pattern, texts[0].as_py()) or not pc.all(pc.match_substring_regex(texts, pattern)).as_py():
        return False
    if not pt.is_floating(kind):
        return pt.is_boolean(kind) or fits(texts, kind)
    try:
        numbers = texts.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        return False
    # A float does not hold `1e999`, which would become infinite, nor `1e-999`, which would become 0.
    infinite, zero = texts.filter(pa.array(np.isinf(numbers))), texts.filter(pa.array(numbers == 0))
    are_infinite = pc.all(pc.match_substring_regex(infinite, _INFINITE)).as_py() is not False
    return are_infinite and not pc.any(pc.match_substring_regex(zero, _NOT_ZERO)).as_py()


class ColumnGuess:
    """The types that a column can still have after some of its values."""

    def __init__(self) -> None:
        self._candidates = list(_CANDIDATES)
        self._has_values = False
        self.has_empty = False
        """True if a field is empty."""

    def update(self, values: pa.Array) -> None:
        """Take further values, as text, into account."""
        if not self._candidates:
            return
        filled = values.filter(pc.not_equal(values, ""))
        self.has_empty = self.has_empty or len(filled) < len(values)
        if len(filled):
            self._has_values = True
            self._candidates = [kind for kind in self._candidates if _holds(kind, filled)]

    def field(self, name: str) -> pa.Field:
        """Return the column."""
        if not self._candidates or not self._has_values:
            return pa.field(name, pa.string(), nullable=False)
        return pa.field(name, self._candidates[0], nullable=self.has_empty)


@dataclass(frozen=True)
class Dialect:
    """The delimiter, quote and header of CSV files."""

    delimiter: str
    quote: str
    """Empty for none."""
    names: tuple[str, ...] | None = None
    """Names of the columns; None if the first row has them."""
    has_header: bool = True
    """True if the first row of each file has names, and no values."""
    is_declared: bool = False
    """True if the caller gave the delimiter."""

    def has_quotes(self, data: bytes) -> bool:
        """Return whether there is a quote in these bytes."""
        return bool(self.quote) and self.quote.encode() in data


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are CSV or TSV files."""
    return any(map(_is_wanted, names))


def _is_wanted(name: str) -> bool:
    return without_compression(name).endswith(_ENDINGS)


def open_source(place: Any, options: SourceOptions) -> OpenedSource:
    """Return the rows of the CSV or TSV files at a place: a file, or a folder of them.

    `settings`: `types` by column (Arrow types or their names), `delimiter`, `quote` ("" for none), `names` (of
    files without a header), `header` (True if the files have one, and `names` are in place of its names).

    Raises:
        StoreNotFound: There are no files.
        FormatError: A file cannot be read, or a row is malformed.
        SchemaError: The files have different columns, or a setting has an unusable value.
    """
    given = options.settings_of("CSV files", "types", "delimiter", "quote", "names", "header")
    types = declared_types(
        given.pop("types", {}),
        _parse_null,
        files="CSV",
        advice="Declare 'string', and convert the values in `transform`",
    )
    found = find_text_files(place, options, _is_wanted, ".csv or .tsv")
    is_tsv = without_compression(found.files[0].key).endswith(".tsv")
    dialect = _dialect(given, "\t" if is_tsv else ",")
    return _learned(found, dialect, types, options.columns)


def _dialect(given: dict[str, Any], delimiter: str) -> Dialect:
    """Take the settings of a dialect.

    Raises:
        SchemaError: One has an unusable value.
    """
    names = given.pop("names", None)
    has_header = given.pop("header", names is None)
    if not isinstance(has_header, bool) or (names is None and not has_header):
        raise SchemaError(f"`header`: expected True, or False together with `names`, found {has_header!r:.100}")
    if names is not None:
        is_list = isinstance(names, list | tuple) and bool(names) and all(isinstance(name, str) for name in names)
        if not is_list or "" in names or len(set(names)) < len(names) or len(names) > MAX_COLUMNS:
            raise SchemaError(f"`names`: expected a list of different names of columns, found {names!r:.100}")
        names = tuple(names)
    is_declared = "delimiter" in given
    marks = {"delimiter": given.pop("delimiter", delimiter), "quote": given.pop("quote", '"')}
    for name, mark in marks.items():
        is_one = isinstance(mark, str) and len(mark) == 1 and mark.isascii() and mark not in "\n\r\0"
        if not is_one and not (name == "quote" and mark == ""):
            raise SchemaError(f"`{name}`: expected one ASCII character within a line, found {mark!r:.100}")
    if marks["delimiter"] == marks["quote"]:
        raise SchemaError(f"`delimiter` and `quote`: expected two characters, found {marks['quote']!r} for both")
    return Dialect(**marks, names=names, has_header=has_header, is_declared=is_declared)


def _parse_null(kind: pa.DataType) -> None:
    pacsv.read_csv(
        pa.BufferReader(b"x\n\n"),
        parse_options=pacsv.ParseOptions(ignore_empty_lines=False),
        convert_options=pacsv.ConvertOptions(column_types={"x": kind}, null_values=[""]),
    )


def _learned(
    found: SourceFiles, dialect: Dialect, types: Mapping[str, pa.DataType], columns: Sequence[str] | None
) -> OpenedSource:
    """Read all rows, and return the source with the types of its columns."""
    files = found.each()
    guesses = None if dialect.names is None else _guesses(files[0], dialect.names, types, columns)
    named = dialect  # with the names of the columns, when they are known
    ranges: list[LineRange] = []
    for file in files:
        header = dialect.names
        is_quoted = False
        for block in row_blocks(LineRange(file), dialect):
            header = header or _header(block, dialect)
            named = named if named.names else replace(dialect, names=header)
            if guesses is None:
                guesses = _guesses(file, header, types, columns)
            if header != named.names:
                raise SchemaError(
                    f"{file.url} has the columns {', '.join(header):.1000}, and {files[0].url} has "
                    f"{', '.join(named.names or ()):.1000}; files of one source have the same columns in the same "
                    "order. Convert them one by one; or if they have no header, give the names of their columns, "
                    "settings={'names': [...]}",
                    key=file.key,
                )
            is_quoted = is_quoted or dialect.has_quotes(block.data)
            if guesses:
                table = _table(block, named, pa.schema([(name, pa.string()) for name in guesses]))
                for guess, column in zip(guesses.values(), table.columns, strict=True):
                    for chunk in column.chunks:
                        guess.update(chunk)
        if header is None:
            raise FormatError(
                f"{file.url}: the file is empty; expected a row with the columns' names. Remove the file, or give the "
                "names of the columns of files without a header, settings={'names': [...]}",
                key=file.key,
            )
        ranges += [LineRange(file)] if is_quoted else line_ranges(file)
    learned = guesses or {}
    fields = [
        learned[name].field(name) if name in learned else pa.field(name, types[name])
        for name in columns or named.names or ()
    ]
    schema = pa.schema(fields)
    parts = [OpenedPart(piece.name, piece.num_bytes, partial(_rows_of, piece, named, schema)) for piece in ranges]
    return found.source(schema, parts)


def _guesses(
    file: StoredFile, names: Sequence[str], types: Mapping[str, pa.DataType], columns: Sequence[str] | None
) -> dict[str, ColumnGuess]:
    """Return what is known of each column whose type is not declared.

    Raises:
        SchemaError: The caller names columns that there are not.
    """
    check_columns(file.url, (*types, *(columns or ())), names)
    return {name: ColumnGuess() for name in columns or names if name not in types}


def _header(block: Block, dialect: Dialect) -> tuple[str, ...]:
    """Return the names of the columns, by the first block of a file.

    Raises:
        FormatError: The first row has no names, or too many.
        SchemaError: Names are empty or repeated, or the delimiter seems to be another one.
    """
    row = block.data[: _header_bytes(block, dialect)]
    if not row.strip(b"\r\n"):
        raise block.error("the line is empty; expected the columns' names. Remove the line")
    if row.count(dialect.delimiter.encode()) >= MAX_COLUMNS:
        raise block.error(
            f"there are more than {MAX_COLUMNS} columns. Store values that belong together as one column, such as a "
            "list in JSON lines"
        )
    try:
        names = _read(row, dialect, pacsv.ConvertOptions(), ignore_empty=True).schema.names
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise block.error(f"expected the columns' names in UTF-8 ({error}). Convert the file to UTF-8") from error
    _refuse_other_delimiter(block, dialect, names)
    unique = set(names)
    if len(unique) < len(names) or "" in unique:
        repeated = sorted(name for name in unique if name and names.count(name) > 1) if len(unique) < len(names) else []
        what = f"column {repeated[0]!r:.100} is there more than once" if repeated else "a column has no name"
        raise block.error(
            f"{what}. Give names in place of those of the header, settings={{'header': True, 'names': [...]}}; the "
            "index of pandas is left out by to_csv(index=False)",
            kind=SchemaError,
        )
    return tuple(names)


def _header_bytes(block: Block, dialect: Dialect) -> int:
    """Return the length of the row with names; 0 if the block has none.

    Raises:
        FormatError: The row is too long.
    """
    if block.at or block.piece.begin or not dialect.has_header:
        return 0
    end = first_row_end(block, dialect)
    if not end:
        raise too_long(block, "header")
    return end


def _refuse_other_delimiter(block: Block, dialect: Dialect, names: Sequence[str]) -> None:
    """Raise an error if the only column's name shows that another character divides the fields.

    Raises:
        SchemaError: It does.
    """
    if len(names) != 1 or dialect.is_declared:
        return
    name, used = names[0], dialect.delimiter
    if len(name) == len("sep=;") and name.startswith("sep="):
        raise block.error(
            f"the line {name!r} is meant for Excel. Remove the line, and give settings={{'delimiter': {name[-1]!r}}}",
            kind=SchemaError,
        )
    other = max((mark for mark in _DELIMITERS if mark != used), key=name.count)
    if other in name:
        raise block.error(
            f"there is one column {name!r:.100} if {used!r} divides fields. Give settings={{'delimiter': {other!r}}}; "
            f"if it is one column, settings={{'delimiter': {used!r}}}",
            kind=SchemaError,
        )


def _read(data: bytes, dialect: Dialect, convert: pacsv.ConvertOptions, *, ignore_empty: bool) -> pa.Table:
    """Return the rows of a block of whole rows."""
    if data.startswith(BOM):  # the parser leaves out a byte order mark, and here it is a character of a value
        data = BOM + data
    return pacsv.read_csv(
        pa.BufferReader(data),
        pacsv.ReadOptions(
            block_size=len(data) + 1, column_names=dialect.names and list(dialect.names), use_threads=False
        ),
        # Lines within values matter only where blocks are divided, and this is one block.
        pacsv.ParseOptions(
            delimiter=dialect.delimiter, quote_char=dialect.quote or False, ignore_empty_lines=ignore_empty
        ),
        convert,
    )


def _table(block: Block, dialect: Dialect, schema: pa.Schema) -> pa.Table:
    """Return the rows of a block with the columns of a schema. An empty line is a value if there is one column.

    Raises:
        FormatError: A row is malformed; the message has its line.
        SchemaError: A value is none of its column's type.
    """
    skipped = _header_bytes(block, dialect)
    data = block.data[skipped:] if skipped else block.data
    ignore_empty = len(dialect.names or ()) > 1
    if not data or (ignore_empty and data[:1] in b"\r\n" and not data.strip(b"\r\n")):
        return schema.empty_table()
    convert = pacsv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        true_values=["true", "True", "TRUE"],
        false_values=["false", "False", "FALSE"],
        strings_can_be_null=False,
        include_columns=schema.names,
    )
    try:
        table = _read(data, dialect, convert, ignore_empty=ignore_empty)
    except (pa.ArrowException, ValueError) as error:
        raise _located(block, skipped, dialect, str(error)) from error
    # A number that became infinite: a declared float does not hold it.
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if not pt.is_floating(column.type) or not pc.any(pc.is_inf(column)).as_py():
            continue
        texts = _table(block, dialect, pa.schema([(name, pa.string())])).column(0)
        is_text = pc.match_substring_regex(texts, _INFINITE)
        is_number = pc.and_(pc.fill_null(pc.is_inf(column), fill_value=False), pc.invert(is_text))
        row = pc.index(is_number, value=True).as_py()
        if row >= 0:
            raise block.error(
                f"{texts[row].as_py()[:50]!r} of column {name!r} is beyond {column.type}. Declare a wider type in "
                "the setting `types`, such as 'string'",
                _row_offset(block, dialect, row),
                SchemaError,
            )
    return table


def _row_offset(block: Block, dialect: Dialect, row: int) -> int:
    """Return where a row of values begins in a block, as the parser counts rows: from 0, without empty ones."""
    ends = row_ends(block, dialect)
    header = _header_bytes(block, dialect)
    begins = [begin for begin in (0, *ends[:-1].tolist()) if begin >= header]
    if len(dialect.names or ()) > 1:
        begins = [begin for begin in begins if block.data[begin : begin + 1] not in (b"\n", b"\r")]
    return int(begins[min(row, len(begins) - 1)])


def _located(block: Block, skipped: int, dialect: Dialect, reason: str) -> Exception:
    """Return the error of the parser with file and line."""
    names = dialect.names or ()
    row, counts, column = _ROW.search(reason), _COUNTS.search(reason), _COLUMN.search(reason)
    offset = _row_offset(block, dialect, int(row[1]) - 1) if row else skipped
    if counts:
        return block.error(
            f"expected {counts[1]} fields, found {counts[2]}. Correct the line, or give the character that divides "
            "fields, settings={'delimiter': ...}",
            offset,
        )
    if "invalid UTF8" in reason:
        return block.error("text that is not UTF-8. Convert the file to UTF-8", offset)
    if column and int(column[1]) < len(names):
        what = re.sub(r"^(CSV conversion error to [^:]*: )", "", reason[(row or column).end() :])
        return block.error(
            f"column {names[int(column[1])]!r}: {what[:200]!s}. Declare a type in the setting `types` that "
            "has the value, such as 'string'",
            offset,
            SchemaError,
        )
    return block.error(reason[:200], offset)


def _rows_of(piece: LineRange, dialect: Dialect, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one piece of a file in order.

    Raises:
        FormatError: A row is malformed; the message has its line.
        SchemaError: A value is none of its column's type.
    """
    for block in row_blocks(piece, dialect):
        for batch in _table(block, dialect, schema).to_batches(BATCH_ROWS):
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def row_blocks(piece: LineRange, dialect: Dialect) -> Iterator[Block]:
    """Yield blocks of whole rows; their quotes are well-formed.

    Raises:
        FormatError: A quote is malformed or not closed, or a row is longer than `MAX_LINE_BYTES`.
    """
    rest, at = b"", 0
    for lines in line_blocks(piece):
        data = rest + lines.data if rest else lines.data
        block = Block(piece, data, at)
        if len(data) > _MAX_QUOTES and dialect.quote and data.count(dialect.quote.encode()) > _MAX_QUOTES:
            raise too_long(block, f"row (with more than {_MAX_QUOTES} quotes)")
        cut = _end_of_rows(block, dialect)
        rest = data[cut:]
        if cut:
            yield block if cut == len(data) else Block(piece, data[:cut], at)
            at += cut
        if len(rest) > MAX_LINE_BYTES:
            raise too_long(Block(piece, b"", at), "row (is a quote not closed?)")
    if rest:
        block = Block(piece, rest, at)
        quotes = np.flatnonzero(np.frombuffer(rest, np.uint8) == ord(dialect.quote))
        *_, place = _open_and_close(block, quotes, dialect)
        raise block.error(
            f"a quote ({dialect.quote}) is opened and not closed. Close it; or if the file has values that begin with "
            "such a character and no quoted values, give settings={'quote': ''}",
            place,
        )


def first_row_end(block: Block, dialect: Dialect) -> int:
    """Return the place behind the first row of a block whose quotes are well-formed; 0 if the row is too long."""
    data = block.data
    first = _LINE_END.search(data)
    if first is not None and not dialect.has_quotes(data[: first.end()]):
        return first.end()
    ends = row_ends(replace(block, data=data[: data.rfind(b"\n", 0, _MAX_HEADER_BYTES) + 1]), dialect)
    return int(ends[0]) if len(ends) else 0


def row_ends(block: Block, dialect: Dialect) -> Places:
    """Return the places behind the ends of the rows of a block whose quotes are well-formed; also of empty rows."""
    codes = np.frombuffer(block.data, np.uint8)
    ends = np.flatnonzero(codes == _NEWLINE)
    returns = np.flatnonzero(codes == _RETURN)
    if len(returns):
        ends = np.sort(np.concatenate([ends, returns[codes[np.minimum(returns + 1, len(codes) - 1)] != _NEWLINE]]))
    if dialect.has_quotes(block.data):
        ends = ends[np.searchsorted(_structural(block, dialect), ends) % 2 == 0]
    return ends + 1


def _end_of_rows(block: Block, dialect: Dialect) -> int:
    """Return the place behind the last whole row of whole lines."""
    data = block.data
    if not dialect.has_quotes(data):
        return len(data)
    quotes = _structural(block, dialect)
    if len(quotes) % 2 == 0:
        return len(data)
    place = data.rfind(b"\n", 0, int(quotes[-1]))
    while place >= 0:
        quotes_before = int(np.searchsorted(quotes, place))
        if quotes_before % 2 == 0:
            break
        place = data.rfind(b"\n", 0, int(quotes[quotes_before - 1]))
    return place + 1


def _structural(block: Block, dialect: Dialect) -> Places:
    """Return the places of the quotes that open and close, in turn; both quotes of a doubled one may be among them."""
    codes = np.frombuffer(block.data, np.uint8)
    quote = ord(dialect.quote)
    places = np.flatnonzero(codes == quote)
    is_edge = np.zeros(256, bool)
    is_edge[[ord(dialect.delimiter), _NEWLINE, _RETURN, quote]] = True
    opening, closing = places[0::2], places[1::2]
    if opening[0] == 0:
        opening = opening[1:]
    # Every second quote opens: so it is if each one stands at the edge of a field or beside another quote.
    if is_edge[codes[opening - 1]].all() and is_edge[codes[closing + 1]].all():
        return places
    return np.array(list(_open_and_close(block, places, dialect)), np.int64)


def _open_and_close(block: Block, places: Places, dialect: Dialect) -> Iterator[int]:
    """Yield the places of quotes that open and close; slow, for blocks with quotes within fields without quotes.

    Raises:
        FormatError: Text follows a closing quote.
    """
    data = block.data
    quote, edges = ord(dialect.quote), {ord(dialect.delimiter), _NEWLINE, _RETURN}
    is_open, doubled = False, -1
    for place in places.tolist():
        if is_open:
            if place == doubled:
                continue
            if data[place + 1] == quote:
                doubled = place + 1
                continue
            if data[place + 1] not in edges:
                shown = data[max(0, place - 10) : place + 10].decode("utf-8", "replace").splitlines()
                raise block.error(
                    f"text follows a closing quote, as in {' '.join(shown)!r}. Write a quote within a value as "
                    f"{dialect.quote * 2}; Spark does so with .option('escape', '\"'). If quotes have no meaning in "
                    "this file, give settings={'quote': ''}",
                    place,
                )
            is_open = False
            yield place
        elif not place or data[place - 1] in edges:
            is_open = True
            yield place
