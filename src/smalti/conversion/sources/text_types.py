"""Types of columns of text, learned from all values: a type is taken only if it holds all values as they are written.

`007` and `+1` are text, and so are numbers that the type does not hold: whole numbers beyond 64 bits, those of more
than 15 digits among fractions, and numbers that a float makes infinite or 0. A number with a point or an exponent
becomes the nearest float: `1.10` is 1.1. An empty field is a null in a column of numbers or dates, and an empty text in
a column of text.
"""

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
TRUE_VALUES = ["true", "True", "TRUE"]
FALSE_VALUES = ["false", "False", "FALSE"]

_Test = Callable[[pa.Array], bool]


def is_infinite_text(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return for each text whether it stands for an infinite number."""
    return pc.match_substring_regex(texts, _INFINITE)


def _all_match(values: pa.Array, pattern: str) -> bool:
    # Most columns are refused by their first value, without a pass over all.
    return bool(re.search(pattern, values[0].as_py())) and pc.all(pc.match_substring_regex(values, pattern)).as_py()


def _matches(pattern: str, kind: pa.DataType | None = None) -> _Test:
    def test(values: pa.Array) -> bool:
        return _all_match(values, pattern) and (kind is None or _casts(values, kind))

    return test


def _casts(values: pa.Array, kind: pa.DataType) -> bool:
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _is_float(values: pa.Array) -> bool:
    """Return whether these are numbers that a float holds: `1e999` would become infinite, and `1e-999` 0."""
    if not _all_match(values, _FLOAT):
        return False
    try:
        numbers = values.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        return False
    infinite, zero = np.isinf(numbers), numbers == 0
    if infinite.any() and not pc.all(is_infinite_text(values.filter(pa.array(infinite)))).as_py():
        return False
    return not zero.any() or not pc.any(pc.match_substring_regex(values.filter(pa.array(zero)), _NOT_ZERO)).as_py()


_CANDIDATES: dict[pa.DataType, _Test] = {
    pa.bool_(): _matches(_BOOLEAN),
    pa.int64(): _matches(_INTEGER, pa.int64()),
    pa.float64(): _is_float,
    pa.date32(): _matches(_DATE, pa.date32()),
    pa.timestamp("us"): _matches(_TIME + "$", pa.timestamp("us")),
    pa.timestamp("us", "UTC"): _matches(_TIME + r"(?:Z|[+-][0-9]{2}:?[0-9]{2})$", pa.timestamp("us", "UTC")),
}


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
            self._candidates = [kind for kind in self._candidates if _CANDIDATES[kind](filled)]

    def field(self, name: str) -> pa.Field:
        """Return the column."""
        if not self._candidates or not self._has_values:
            return pa.field(name, pa.string(), nullable=False)
        return pa.field(name, self._candidates[0], nullable=self.has_empty)
