"""Text shards (JSONL, CSV, TSV, XSV): their layout, and their lines, written without loss and read strictly.

Opens no files; `smalti.format.reading.text` and `smalti.format.writing.builder` do.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from smalti.errors import FormatError, IndexFileError, SchemaError
from smalti.format.encodings.encoding import kind_of
from smalti.format.json_fields import Fields, fault, finite_float
from smalti.format.schema import MAX_COLUMNS, Schema, refused_value
from smalti.format.sizes import VERSION

TEXT_FORMATS = frozenset({"json", "csv", "tsv", "xsv"})
"""Values of `format` in an index file for shards of two files: lines of text, and the offsets of the lines."""
TEXT_ENCODINGS = ("str", "int", "float")
"""Encodings that a column of a text shard may have."""
SEPARATORS = {"csv": ",", "tsv": "\t"}
_MAX_MARK_CHARS = 16  # of a line end or a separator; real ones have one or two
_JSON_SPACE = frozenset(" \t\r\n")
# `int` and `float` also accept 1_000, spaces and digits of other scripts; texts of these characters have none of them.
_INT_CHARS = frozenset("0123456789-")
_FLOAT_CHARS = frozenset("0123456789+-.eEinfa")


@dataclass(frozen=True)
class TextLayout:
    """The properties that all lines of a text shard share."""

    format: str
    """json, csv, tsv or xsv."""
    schema: Schema
    """Encodings out of str, int and float; all sizes None."""
    newline: str = "\n"
    """End of every line; may be empty for json."""
    separator: str | None = None
    """Text between the values of a line; None for json."""

    @property
    def header(self) -> bytes:
        """The first line of the data file: the names of the columns; empty for json."""
        if self.separator is None:
            return b""
        return (self.separator.join(self.schema.names) + self.newline).encode("utf-8")

    def config(self, *, compression: str | None, hashes: tuple[str, ...], size_limit: int | None) -> dict[str, Any]:
        """Return the description that index entry and meta file share, with the keys that MosaicML's reader takes."""
        common = {
            "compression": compression,
            "format": self.format,
            "hashes": list(hashes),
            "newline": self.newline,
            "size_limit": size_limit,
            "version": VERSION,
        }
        if self.format == "json":
            return {"columns": self.schema.columns(), **common}
        names = {"column_encodings": list(self.schema.encodings), "column_names": list(self.schema.names)}
        return {**names, **common, **({"separator": self.separator} if self.format == "xsv" else {})}

    def check_writable(self) -> None:
        """Return only if lines of this layout can be read again, by Smalti and by MosaicML's reader.

        Raises:
            SchemaError: A column of another type, or a line end, separator or column name that would be ambiguous.
        """
        bad = sorted(set(self.schema.encodings) - set(TEXT_ENCODINGS))
        if not self.schema.names or bad:
            raise SchemaError(
                f"`columns`: expected at least one, each of {', '.join(TEXT_ENCODINGS)}, found {bad or 'none'}; use "
                "`MDSWriter` for other types."
            )
        problem = _mark_problem(self.format, self.newline, self.separator)
        if problem:
            raise SchemaError(problem)
        if self.format == "json" and not _JSON_SPACE.issuperset(self.newline):
            raise SchemaError("`newline`: between JSON values only spaces, tabs and line ends are allowed.")
        if self.separator is not None:
            for name in self.schema.names:
                if self.newline in name or self.separator in name:
                    raise SchemaError(f"column {name!r}: the name contains the separator or the line end.", column=name)
            if self.separator.join(self.schema.names).split(self.separator) != list(self.schema.names):
                raise SchemaError("`separator`: the names of the columns cannot be told apart with it; use another.")


def text_schema(columns: Mapping[str, str]) -> Schema:
    """Return the schema of text shards to be written: columns in code-point order of their names.

    Raises:
        SchemaError: An unusable or ambiguous name, or an encoding other than str, int and float.
    """
    for name, encoding in columns.items():
        if encoding not in TEXT_ENCODINGS:
            raise SchemaError(
                f"column {name!r}: a text shard holds {', '.join(TEXT_ENCODINGS)} only; use `MDSWriter` for "
                f"{encoding!r}.",
                column=name,
                encoding=encoding,
            )
    names = Schema.from_columns(dict.fromkeys(columns, "str")).names  # checks the names
    return _schema_of(names, tuple(columns[name] for name in names))


def parse_layout(fields: Fields, kind: str) -> TextLayout:
    """Parse and check the layout of an index entry whose `format` is `kind`, one of `TEXT_FORMATS`.

    Raises:
        IndexFileError: A value is missing, of another type, or contradictory.
    """
    if kind == "json":
        columns = fields.mapping("columns")
        if not all(isinstance(encoding, str) for encoding in columns.values()):
            raise fault(fields.at("columns"), "an object of texts", columns)
        names = tuple(sorted(columns))  # an object has no order: use the one that Smalti and MosaicML write
        encodings = tuple(columns[name] for name in names)
    else:
        names, encodings = fields.texts("column_names"), fields.texts("column_encodings")
        if len(names) != len(encodings):
            raise fault(fields.at("column_names"), "as many names as encodings", f"{len(names)}, {len(encodings)}")
    if not 1 <= len(names) <= MAX_COLUMNS or len(set(names)) != len(names):
        raise fault(fields.at("column_names"), f"1 to {MAX_COLUMNS} names, each once", f"{len(names)} names")
    separator = fields.text("separator") if kind == "xsv" else SEPARATORS.get(kind)
    newline = fields.text("newline")
    if not set(encodings) <= set(TEXT_ENCODINGS):
        raise fault(fields.where, f"column encodings out of {', '.join(TEXT_ENCODINGS)}", None)
    problem = _mark_problem(kind, newline, separator)
    if not problem and not all(map(is_utf8, names)):
        problem = "`column_names`: a name that UTF-8 cannot hold."
    if problem:
        raise IndexFileError(f"{fields.where}: {problem}", where=fields.where)
    return layout_of(kind, _schema_of(names, encodings), newline, separator)


@lru_cache(maxsize=256)
def layout_of(kind: str, schema: Schema, newline: str, separator: str | None) -> TextLayout:
    """Return the layout with these parts; the same object for the same parts."""
    return TextLayout(kind, schema, newline, separator)


def encode_config(config: Mapping[str, Any]) -> bytes:
    """Return the description that ends every meta file, as MosaicML writes it."""
    return json.dumps(config, sort_keys=True).encode("ascii")


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can hold the text, which excludes unpaired surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _mark_problem(kind: str, newline: Any, separator: Any) -> str | None:
    for what, mark in (("newline", newline), ("separator", separator)):
        if mark is None:
            continue
        least = 0 if kind == "json" else 1
        if not isinstance(mark, str) or not least <= len(mark) <= _MAX_MARK_CHARS or not is_utf8(mark):
            return f"`{what}`: expected a text of {least} to {_MAX_MARK_CHARS} characters."
    if separator is not None and (separator in newline or newline in separator):
        return "`separator` and `newline` must not contain each other: lines could not be told apart."
    return None


@lru_cache(maxsize=256)  # the shards of a set share one schema: a million entries need one copy
def _schema_of(names: tuple[str, ...], encodings: tuple[str, ...]) -> Schema:
    return Schema(names, encodings, (None,) * len(names))


class Lines(ABC):
    """Conversion between samples and lines; stateless, so thread-safe.

    A law: `decode(encode(sample))` equals `sample` with the same types, or `encode` raises.
    """

    def __init__(self, layout: TextLayout) -> None:
        self.layout = layout
        self.names = layout.schema.names
        self.encodings = layout.schema.encodings

    def encode(self, sample: Mapping[str, Any], row: int) -> bytes:
        """Return the line of a sample, with its end.

        Raises:
            SchemaError: A column is missing or unknown, or a value does not fit; `column` and `row` are attributes.
        """
        if len(sample) != len(self.names) or any(name not in sample for name in self.names):
            self.layout.schema.check_sample(sample, row)
        values = []
        for name, encoding in zip(self.names, self.encodings, strict=True):
            try:
                values.append(plain_value(encoding, sample[name]))
            except SchemaError as error:  # noqa: PERF203 - only here the column is known
                raise self._refused(name, row, error) from error
        return self._line(values, row)

    @abstractmethod
    def _line(self, values: list[Any], row: int) -> bytes:
        """Return the line of plain values, in the order of the columns."""

    @abstractmethod
    def decode(self, lines: list[str]) -> list[list[Any]]:
        """Return the columns of lines without their ends: Python values, one list for each column.

        Raises:
            FormatError: A line is malformed; `line` is its place in `lines`, and the caller adds the shard.
        """

    def _longest(self, values: list[Any]) -> str:
        """Return the column of the integer with the most digits."""
        bits = [value.bit_length() if isinstance(value, int) else 0 for value in values]
        return self.names[bits.index(max(bits))]

    def _refused(self, name: str, row: int, error: SchemaError) -> SchemaError:
        return refused_value(error, column=name, encoding=self.encodings[self.names.index(name)], row=row)


def make_lines(layout: TextLayout) -> Lines:
    """Return the conversion for a layout."""
    return JsonLines(layout) if layout.separator is None else SeparatedLines(layout)


def plain_value(encoding: str, value: Any) -> Any:
    """Return `value` as the Python type that the line is made of.

    Raises:
        SchemaError: It is of another type, or a text that UTF-8 cannot hold; the caller adds the place.
    """
    if encoding == "str" and isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise SchemaError(f"expected text that UTF-8 can hold: {error.reason} at {error.start}.") from error
        return str(value)
    if encoding == "int" and isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if encoding == "float" and isinstance(value, float | np.float16 | np.float32):
        return float(value)
    expected = {"str": "text", "int": "an integer", "float": "a float"}[encoding]
    raise SchemaError(f"expected {expected}, found {kind_of(value)}.")


class JsonLines(Lines):
    """A JSON object on each line, keys sorted, non-ASCII characters escaped."""

    def __init__(self, layout: TextLayout) -> None:
        super().__init__(layout)
        self._write = json.JSONEncoder(sort_keys=True, allow_nan=False).encode
        # Objects become tuples of pairs, which no JSON array does, so repeated keys are detected.
        self._read = json.JSONDecoder(object_pairs_hook=tuple, parse_float=finite_float).decode

    def _line(self, values: list[Any], row: int) -> bytes:
        for name, value in zip(self.names, values, strict=True):
            if isinstance(value, float) and not math.isfinite(value):
                raise self._refused(
                    name, row, SchemaError("a number that is not finite; JSON has none. Use CSV, TSV or MDS.")
                )
        try:
            text = self._write(dict(zip(self.names, values, strict=True)))
        except ValueError as error:  # Python's limit on the digits of one number; readers have it as well
            raise self._refused(self._longest(values), row, SchemaError("an integer with too many digits.")) from error
        return (text + self.layout.newline).encode("ascii")

    def decode(self, lines: list[str]) -> list[list[Any]]:
        """Return the values of strict JSON objects with exactly the columns of the layout.

        Floats that are not finite are accepted in columns of floats: MosaicML's writer stores them.
        """
        rows = []
        for i, line in enumerate(lines):
            try:
                pairs = self._read(line)
            except (ValueError, RecursionError) as error:
                raise FormatError("not readable JSON", line=i) from error
            if not isinstance(pairs, tuple) or len(pairs) != len(self.names):
                raise FormatError(f"not an object of {len(self.names)} columns", line=i)
            row = dict(pairs)
            for name, encoding in zip(self.names, self.encodings, strict=True):
                value: Any = row.get(name)
                kind = type(value)
                if (encoding == "str" and kind is str) or (encoding == "int" and kind is int):
                    continue
                if encoding == "int" and kind is bool:  # MosaicML's writer stores booleans as integers
                    row[name] = int(value)
                elif encoding == "float" and (kind is float or (kind is int and abs(value) <= 1 << 53)):
                    row[name] = float(value)
                else:
                    raise FormatError(f"column {name!r}: not a value of {encoding}", line=i, column=name)
            if len(row) != len(self.names):
                raise FormatError("other columns than the index says, or one of them twice", line=i)
            rows.append(row)
        return [[row[name] for row in rows] for name in self.names]


class SeparatedLines(Lines):
    """Values with a separator between them, neither quoted nor escaped."""

    def _line(self, values: list[Any], row: int) -> bytes:
        separator, newline = self.layout.separator or "", self.layout.newline
        try:
            texts = [str(value) for value in values]
        except ValueError as error:  # as for JSON
            raise self._refused(self._longest(values), row, SchemaError("an integer with too many digits.")) from error
        text = separator.join(texts)
        # One comparison for all cases, including separators of several characters that arise across two values.
        if newline in text or text.split(separator) != texts:
            bad = [n for n, value in zip(self.names, texts, strict=True) if separator in value or newline in value]
            if not bad:  # the separator arises across two values: take the first value that is not read back
                pieces = text.split(separator)
                bad = [n for n, value, piece in zip(self.names, texts, pieces, strict=False) if value != piece]
            reason = "contains the separator or the line end, and such lines have no quotes; write JSON or MDS."
            raise self._refused((bad or self.names)[0], row, SchemaError(f"the text {reason}"))
        return (text + newline).encode("utf-8")

    def decode(self, lines: list[str]) -> list[list[Any]]:
        """Return the values of lines with exactly as many values as columns, each a plain number if it must be."""
        separator, width = self.layout.separator, len(self.names)
        rows = [line.split(separator, width) for line in lines]  # one value too many is enough to detect
        for i, (line, row) in enumerate(zip(lines, rows, strict=True)):
            if len(row) != width or self.layout.newline in line:
                raise FormatError(f"not one line of {width} values", line=i)
        columns = zip(self.names, self.encodings, zip(*rows, strict=True), strict=True) if rows else ()
        return [_read_texts(encoding, texts, name) for name, encoding, texts in columns] or [[] for _ in self.names]


def _read_texts(encoding: str, texts: tuple[str, ...], name: str) -> list[Any]:
    """Return the values of one column of several lines; an error has the first line whose value is damaged."""
    if encoding == "str":
        return list(texts)
    numbers = _read_numbers(encoding, texts)
    if numbers is None:
        line = next(i for i, text in enumerate(texts) if _read_numbers(encoding, (text,)) is None)
        raise FormatError(f"column {name!r}: not a value of {encoding}", line=line, column=name)
    return numbers


def _read_numbers(encoding: str, texts: tuple[str, ...]) -> list[Any] | None:
    """Return the numbers in plain digits; None if a text is something else, or a number too large for a float."""
    allowed, read = (_INT_CHARS, int) if encoding == "int" else (_FLOAT_CHARS, float)
    if not allowed.issuperset("".join(texts)):
        return None
    try:
        numbers: list[Any] = list(map(read, texts))
    except ValueError:
        return None
    if encoding == "int" or not any(map(math.isinf, numbers)):
        return numbers
    is_too_large = any(math.isinf(number) and "inf" not in text for number, text in zip(numbers, texts, strict=True))
    return None if is_too_large else numbers
