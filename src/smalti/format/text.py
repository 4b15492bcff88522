"""Text shards (JSONL, CSV, TSV, XSV): their layout, and their lines, read strictly.

Opens no files; `smalti.format.reading.text` does. Lines are written by `smalti.compat.streaming`, and `ShardPacker` of
`smalti.format.writing.builder` copies them as they are.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from smalti.errors import FormatError, IndexFileError, SchemaError
from smalti.format.json_fields import Fields, fault, finite_float
from smalti.format.schema import MAX_COLUMNS, Schema
from smalti.format.sizes import VERSION

TEXT_FORMATS = frozenset({"json", "csv", "tsv", "xsv"})
"""Values of `format` in an index file for shards of two files: lines of text, and the offsets of the lines."""
TEXT_ENCODINGS = ("str", "int", "float")
"""Encodings that a column of a text shard may have."""
SEPARATORS = {"csv": ",", "tsv": "\t"}
_MAX_MARK_CHARS = 16  # of a line end or a separator; real ones have one or two
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


_read_json = json.JSONDecoder(object_pairs_hook=tuple, parse_float=finite_float).decode
"""Objects become tuples of pairs, which no JSON array does, so repeated keys are detected."""


def decode_lines(layout: TextLayout, lines: list[str]) -> list[list[Any]]:
    """Return the columns of lines without their ends: Python values, one list for each column.

    A line has exactly the columns of the layout: as a strict JSON object, or as values with a separator between them,
    neither quoted nor escaped. Floats that are not finite are accepted in JSON too: MosaicML's writer stores them.

    Raises:
        FormatError: A line is malformed; `line` is its place in `lines`, and the caller adds the shard.
    """
    names, encodings, separator = layout.schema.names, layout.schema.encodings, layout.separator
    if separator is None:
        objects = [_read_object(line, i, layout.schema) for i, line in enumerate(lines)]
        return [[obj[name] for obj in objects] for name in names]
    rows = [line.split(separator, len(names)) for line in lines]  # one value too many is enough to detect
    for i, (line, row) in enumerate(zip(lines, rows, strict=True)):
        if len(row) != len(names) or layout.newline in line:
            raise FormatError(f"not one line of {len(names)} values", line=i)
    columns = zip(names, encodings, zip(*rows, strict=True), strict=True) if rows else ()
    return [_read_texts(encoding, texts, name) for name, encoding, texts in columns] or [[] for _ in names]


def _read_object(line: str, number: int, schema: Schema) -> dict[str, Any]:
    try:
        pairs = _read_json(line)
    except (ValueError, RecursionError) as error:
        raise FormatError("not readable JSON", line=number) from error
    if not isinstance(pairs, tuple) or len(pairs) != len(schema.names):
        raise FormatError(f"not an object of {len(schema.names)} columns", line=number)
    row = dict(pairs)
    for name, encoding in zip(schema.names, schema.encodings, strict=True):
        value: Any = row.get(name)
        kind = type(value)
        if (encoding == "str" and kind is str) or (encoding == "int" and kind is int):
            continue
        if encoding == "int" and kind is bool:  # MosaicML's writer stores booleans as integers
            row[name] = int(value)
        elif encoding == "float" and (kind is float or (kind is int and abs(value) <= 1 << 53)):
            row[name] = float(value)
        else:
            raise FormatError(f"column {name!r}: not a value of {encoding}", line=number, column=name)
    if len(row) != len(schema.names):
        raise FormatError("other columns than the index says, or one of them twice", line=number)
    return row


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
