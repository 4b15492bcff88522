"""The layout of JSONL, CSV, TSV and XSV shards: columns, line ends, separators. Opens no files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from smalti.errors import IndexFileError, SchemaError
from smalti.format.json_fields import Fields, fault
from smalti.format.schema import MAX_COLUMNS, Schema
from smalti.format.sizes import VERSION

TEXT_FORMATS = frozenset({"json", "csv", "tsv", "xsv"})
"""Values of `format` in an index file for shards of two files: lines of text, and the offsets of the lines."""
TEXT_ENCODINGS = ("str", "int", "float")
"""Encodings that a column of a text shard may have."""
SEPARATORS = {"csv": ",", "tsv": "\t"}
_MAX_MARK_CHARS = 16  # of a line end or a separator; real ones have one or two
_JSON_SPACE = frozenset(" \t\r\n")


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
    problem = _mark_problem(kind, newline, separator) or _name_problem(names)
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


def _name_problem(names: tuple[str, ...]) -> str | None:
    return None if all(map(is_utf8, names)) else "`column_names`: a name that UTF-8 cannot hold."


@lru_cache(maxsize=256)  # the shards of a set share one schema: a million entries need one copy
def _schema_of(names: tuple[str, ...], encodings: tuple[str, ...]) -> Schema:
    return Schema(names, encodings, (None,) * len(names))
