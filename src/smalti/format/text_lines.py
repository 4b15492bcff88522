"""Lines of text: one sample to a line, written without loss, and read strictly. Knows no files and no offsets."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.encodings.encoding import kind_of
from smalti.format.schema import refused_value
from smalti.format.text_layout import TextLayout

# `int` and `float` also accept 1_000, spaces and digits of other scripts; texts of these characters have none of them.
_INT_CHARS = frozenset("0123456789-")
_FLOAT_CHARS = frozenset("0123456789+-.eEinfa")


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

        Args:
            sample: Exactly the columns of the layout.
            row: Number of the sample, for messages.

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
    wanted = {"str": "text", "int": "an integer", "float": "a float"}[encoding]
    raise SchemaError(f"expected {wanted}, found {kind_of(value)}.")


class JsonLines(Lines):
    """A JSON object on each line, keys sorted, non-ASCII characters escaped."""

    def __init__(self, layout: TextLayout) -> None:
        super().__init__(layout)
        self._write = json.JSONEncoder(sort_keys=True, allow_nan=False).encode
        # Objects become tuples of pairs, which no JSON array does, so repeated keys are detected.
        self._read = json.JSONDecoder(object_pairs_hook=tuple, parse_float=_finite).decode

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
                row[name] = _read_json(encoding, row.get(name), (name, i))
            if len(row) != len(self.names):
                raise FormatError("other columns than the index says, or one of them twice", line=i)
            rows.append(row)
        return [[row[name] for row in rows] for name in self.names]


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large for a float")
    return value


def _read_json(encoding: str, value: Any, place: tuple[str, int]) -> Any:
    kind = type(value)
    if (encoding == "str" and kind is str) or (encoding == "int" and kind is int):
        return value
    if encoding == "int" and kind is bool:  # MosaicML's writer stores booleans as integers
        return int(value)
    if encoding == "float" and (kind is float or (kind is int and abs(value) <= 1 << 53)):
        return float(value)
    raise FormatError(f"column {place[0]!r}: not a value of {encoding}", line=place[1], column=place[0])


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
            self._explain(texts, row)
        return (text + newline).encode("utf-8")

    def _explain(self, texts: list[str], row: int) -> None:
        separator, newline = self.layout.separator or "", self.layout.newline
        bad = [n for n, text in zip(self.names, texts, strict=True) if separator in text or newline in text]
        if not bad:  # the separator arises across two values: take the first value that is not read back
            found = separator.join(texts).split(separator)
            bad = [n for n, text, got in zip(self.names, texts, found, strict=False) if text != got]
        reason = (
            "contains the separator or the line end, and such lines have no quotes; use `JSONWriter` or `MDSWriter`."
        )
        raise self._refused((bad or self.names)[0], row, SchemaError(f"the text {reason}"))

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
    if encoding == "str":
        return list(texts)
    allowed, read = (_INT_CHARS, int) if encoding == "int" else (_FLOAT_CHARS, float)
    try:
        if allowed.issuperset("".join(texts)):
            values: list[Any] = list(map(read, texts))
            if encoding == "int" or all(map(math.isfinite, values)) or not _overflowed(texts, values):
                return values
    except ValueError:
        pass  # the loop below finds the value
    for i, text in enumerate(texts):
        if not _is_plain(encoding, text):
            raise FormatError(f"column {name!r}: not a value of {encoding}", line=i, column=name)
    raise FormatError(f"column {name!r}: not values of {encoding}", line=0, column=name)


def _overflowed(texts: tuple[str, ...], values: list[float]) -> bool:
    return any(math.isinf(value) and "inf" not in text for text, value in zip(texts, values, strict=True))


def _is_plain(encoding: str, text: str) -> bool:
    try:
        if encoding == "int":
            return _INT_CHARS.issuperset(text) and isinstance(int(text), int)
        return _FLOAT_CHARS.issuperset(text) and not _overflowed((text,), [float(text)])
    except ValueError:
        return False
