"""CSV and TSV files, plain or compressed: types declared, or learned from all rows of all files.

Quoted fields may have line ends. Text is UTF-8. A row with too few or too many fields, or with a value that is none of
its column's type, is an error with file and line. A file without quotes is read in pieces, side by side.
"""

import csv
import io
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from smalti.conversion.files import SourceFiles
from smalti.conversion.source import SourceOptions
from smalti.conversion.sources.lines import BLOCK_BYTES, LineRange, declared_types, line_ranges
from smalti.conversion.sources.source_file import SourceFile, each_file, find_files, without_compression
from smalti.conversion.sources.text_types import FALSE_VALUES, TRUE_VALUES, ColumnGuess
from smalti.errors import FormatError, SchemaError, SmaltiError
from smalti.sources.listing import LeftOut

_ENDINGS = (".csv", ".tsv")
_MAX_BLOCK_BYTES = 1 << 30
_ROW = re.compile(r"Row #(\d+): (?:Expected (\d+) columns, got (\d+))?")
_VALUE = re.compile(r"CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to ([^:]+): invalid value", re.DOTALL)


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are CSV or TSV files."""
    return any(without_compression(name).endswith(_ENDINGS) for name in names)


@dataclass(frozen=True)
class Dialect:
    """The delimiter and quotes of a file."""

    delimiter: str = ","
    quote: str = '"'
    names: tuple[str, ...] | None = None
    """Names of the columns of files without a header; None if the first row has them."""

    def open(
        self, piece: LineRange, convert: pacsv.ConvertOptions, names: Sequence[str] | None, block_bytes: int
    ) -> Any:
        """Return the reader of a piece; `names` are the columns of a piece that has no header."""
        return pacsv.open_csv(
            pa.PythonFile(piece.open(), mode="r"),
            read_options=pacsv.ReadOptions(
                block_size=block_bytes, column_names=list(names) if names is not None else None, use_threads=False
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter, quote_char=self.quote or False, newlines_in_values=bool(self.quote)
            ),
            convert_options=convert,
        )


def open_source(place: Any, options: SourceOptions) -> "DelimitedSource":
    """Return the rows of the CSV or TSV files at a place: a file, or a folder of them.

    `settings`: `types` by column (Arrow types or their names), `delimiter`, `quote` ("" for none), `names` (of
    files without a header).

    Raises:
        StoreNotFound: There are no files.
        FormatError: A file cannot be read, or a row is malformed.
        SchemaError: The files have different columns.
    """
    given = dict(options.settings)
    types = declared_types(given.pop("types", {}))
    found = find_files(place, options, lambda name: without_compression(name).endswith(_ENDINGS))
    files = each_file(found)
    is_tsv = without_compression(files[0].key).endswith(".tsv")
    names = given.pop("names", None)
    dialect = Dialect(
        given.pop("delimiter", "\t" if is_tsv else ","),
        given.pop("quote", '"'),
        None if names is None else tuple(names),
    )
    for name, mark in (("delimiter", dialect.delimiter), ("quote", dialect.quote)):
        if not _is_mark(mark, may_be_empty=name == "quote"):
            raise ValueError(f"`{name}`: expected one ASCII character, found {mark!r:.100}")
    if given:
        raise ValueError(f"the `settings` of CSV are types, delimiter, quote and names, found {sorted(given)}")
    return _learned(found, dialect, types, options.columns)


def _is_mark(mark: Any, *, may_be_empty: bool) -> bool:
    return isinstance(mark, str) and len(mark.encode()) in ((0, 1) if may_be_empty else (1,))


def _learned(
    found: SourceFiles, dialect: Dialect, types: Mapping[str, pa.DataType], columns: Sequence[str] | None
) -> "DelimitedSource":
    """Read all rows, and return the source with the types of its columns."""
    files = each_file(found)
    guesses: dict[str, ColumnGuess] = {}
    names: list[str] = []
    ranges: list[LineRange] = []
    for file in files:
        header = _header(file, dialect)
        if not names:
            names = header
            unknown = [name for name in (*types, *(columns or ())) if name not in names]
            if unknown:
                raise SchemaError(f"{file.url}: there are no columns {unknown}; the columns are {', '.join(names)}")
            guesses = {name: ColumnGuess() for name in columns or names if name not in types}
        if header != names:
            raise SchemaError(
                f"{file.url} has the columns {', '.join(header)}, and {files[0].url} has {', '.join(names)}; files of "
                "one source have the same columns in the same order"
            )
        is_quoted = _has_quotes(file, dialect)
        pieces = [LineRange(file)] if is_quoted else line_ranges(file)
        for piece in pieces if guesses else ():
            part = DelimitedPart(piece, dialect, tuple(names), pa.schema([(name, pa.string()) for name in guesses]))
            for batch in part.batches():
                for name, guess in guesses.items():
                    guess.update(batch.column(name))
        ranges += pieces
    fields = [
        guesses[name].field(name) if name in guesses else pa.field(name, types[name]) for name in columns or names
    ]
    return DelimitedSource(found, tuple(ranges), dialect, tuple(names), pa.schema(fields))


@dataclass(frozen=True)
class DelimitedSource:
    """The rows of CSV or TSV files."""

    found: SourceFiles
    ranges: tuple[LineRange, ...]
    dialect: Dialect
    names: tuple[str, ...]
    columns: pa.Schema

    @property
    def url(self) -> str:
        """Place of the files."""
        return self.found.url

    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self.columns

    def parts(self) -> list["DelimitedPart"]:
        """Return a part for each piece of the files."""
        return [DelimitedPart(piece, self.dialect, self.names, self.columns) for piece in self.ranges]

    def identity(self) -> Any:
        """Return a digest of the files as they are now."""
        return self.found.identity()

    @property
    def left_out(self) -> LeftOut:
        """Files at the place that are not read."""
        return self.found.left_out


@dataclass(frozen=True)
class DelimitedPart:
    """The rows of one piece of a file."""

    piece: LineRange
    dialect: Dialect
    names: tuple[str, ...]
    schema: pa.Schema = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the file and its bytes."""
        return self.piece.name

    @property
    def num_bytes(self) -> int:
        """Stored size."""
        return self.piece.num_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order.

        Raises:
            FormatError: A row is malformed; the message has its line.
            SchemaError: A value is none of its column's type.
        """
        convert = pacsv.ConvertOptions(
            column_types=self.schema,
            null_values=[""],
            true_values=TRUE_VALUES,
            false_values=FALSE_VALUES,
            strings_can_be_null=False,
            include_columns=self.schema.names,
        )
        has_header = not self.piece.begin and self.dialect.names is None
        names = None if has_header else self.names
        num_rows, block_bytes = 0, BLOCK_BYTES
        while block_bytes <= _MAX_BLOCK_BYTES:
            read = yield from self._read_while_rows_fit(convert, names, block_bytes, num_rows)
            if read is None:
                return
            num_rows, block_bytes = read, block_bytes * 8
        raise FormatError(
            f"{self.piece.file.url}: a row is longer than {block_bytes // 8} bytes; is a quote not closed?",
            key=self.piece.file.key,
        )

    def _read_while_rows_fit(
        self, convert: pacsv.ConvertOptions, names: Sequence[str] | None, block_bytes: int, skipped: int
    ) -> Generator[pa.RecordBatch, None, int | None]:
        """Yield the rows after the first `skipped` ones.

        Returns:
            None at the end; the number of rows read so far if the next one is longer than a block.
        """
        num_rows = skipped
        try:
            for batch in self._read(convert, names, block_bytes, skipped):
                num_rows += batch.num_rows
                yield batch
        except SmaltiError:  # some are ValueErrors
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            if "straddl" not in str(error):
                raise self._located(error) from error
            return num_rows
        return None

    def _read(
        self, convert: pacsv.ConvertOptions, names: Sequence[str] | None, block_bytes: int, skipped: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows after the first `skipped` ones."""
        with self.dialect.open(self.piece, convert, names, block_bytes) as reader:
            for batch in reader:
                rest = batch.slice(min(skipped, batch.num_rows))
                skipped -= batch.num_rows - rest.num_rows
                if rest.num_rows:
                    yield pa.RecordBatch.from_arrays(rest.columns, schema=self.schema)

    def _located(self, error: Exception) -> SmaltiError:
        text = str(error)
        if "Empty CSV file" in text:
            return FormatError(f"{self.piece.file.url}: the file is empty; expected a row with the columns' names")
        if "invalid UTF8" in text:
            where = f"{self.piece.file.url}, line {self.piece.first_line() + _first_not_utf8(self.piece)}"
            return FormatError(f"{where}: text that is not UTF-8; convert the file")
        found = _bad_row(self)
        where = f"{self.piece.file.url}, line {found[0]}" if found else self.piece.file.url
        if found and found[1]:
            return FormatError(f"{where}: {found[1]}", line=found[0], key=self.piece.file.key)
        match = _VALUE.search(text)
        if match is not None:
            name = self.schema.names[int(match[1])] if int(match[1]) < len(self.schema.names) else match[1]
            return SchemaError(f"{where}: a value of column {name!r} is no {match[3]}", key=self.piece.file.key)
        return FormatError(f"{where}: {_ROW.sub('', text)[:200]}", key=self.piece.file.key)


def _header(file: SourceFile, dialect: Dialect) -> list[str]:
    """Return the names of the columns."""
    if dialect.names is not None:
        return list(dialect.names)
    with LineRange(file).open() as stream:
        text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
        try:
            header = next(csv.reader(text, **_python_dialect(dialect)), None)
            "".join(header or ()).encode("utf-8")
        except (csv.Error, UnicodeEncodeError) as error:
            raise FormatError(f"{file.url}, line 1: expected the columns' names in UTF-8: {error}") from error
    if not header:
        raise FormatError(f"{file.url}: the file is empty; expected a row with the columns' names", key=file.key)
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated or "" in header:
        what = f"the columns {', '.join(map(repr, repeated))} stand there twice" if repeated else "a column has no name"
        raise SchemaError(f"{file.url}, line 1: {what}; give each a name of its own, or `names`")
    return header


def _python_dialect(dialect: Dialect) -> dict[str, Any]:
    quoting = csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE
    return {"delimiter": dialect.delimiter, "quotechar": dialect.quote or None, "quoting": quoting, "strict": False}


def _has_quotes(file: SourceFile, dialect: Dialect) -> bool:
    """Return whether a quote stands in a file, so that a line end may be part of a value.

    Raises:
        FormatError: The last quote is not closed.
    """
    if not dialect.quote:
        return False
    mark, count = dialect.quote.encode("utf-8"), 0
    with LineRange(file).open() as stream:
        while piece := stream.read(BLOCK_BYTES):
            count += piece.count(mark)
    if count % 2:
        raise FormatError(
            f"{file.url}: it has {count} quotes ({dialect.quote}), so that one is not closed; repair the file, or give "
            'another `quote` ("" for none)',
            key=file.key,
        )
    return count > 0


def _bad_row(part: DelimitedPart) -> tuple[int, str] | None:
    """Find the first malformed row: its line, and what is wrong; or the line of the first value that does not fit."""
    expected = len(part.names)
    first_line = part.piece.first_line()
    csv.field_size_limit(1 << 30)
    with part.piece.open() as stream:
        rows = csv.reader(io.TextIOWrapper(stream, "utf-8", "replace", newline=""), **_python_dialect(part.dialect))
        line = first_line
        try:
            for number, row in enumerate(rows):
                is_header = number == 0 and not part.piece.begin and part.dialect.names is None
                if row and len(row) != expected:
                    return line, f"expected {expected} fields, found {len(row)}"
                if row and not is_header and not _fits(part, row):
                    return line, ""
                line = first_line + rows.line_num
        except csv.Error as error:
            return line, str(error)
    return None


def _first_not_utf8(piece: LineRange) -> int:
    """Return the place of the first line that is not UTF-8."""
    with piece.open() as stream:
        for number, line in enumerate(stream):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:  # noqa: PERF203 -- after a failure
                return number
    return 0


def _fits(part: DelimitedPart, row: Sequence[str]) -> bool:
    """Return whether the values of a row have the types of their columns."""
    for name, value in zip(part.names, row, strict=True):
        kind = part.schema.field(name).type if name in part.schema.names else pa.string()
        if value == "" or pa.types.is_string(kind):
            continue
        try:
            pa.array([value], pa.string()).cast(kind)
        except pa.ArrowException:
            return False
    return True
