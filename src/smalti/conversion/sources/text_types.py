"""Types of columns of text, learned from all values: a type is taken only if all values are written as it writes them.

`007` and `+1` are text, as they are no numbers that come back as they were written; whole numbers beyond 64 bits are
text, too. An empty field is a null in a column of numbers or dates, and an empty text in a column of text.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

_INTEGER = r"^(?:0|-?[1-9][0-9]*)$"
# Digits alone have at most 15 places: a float holds these exactly.
_FLOAT = (
    r"^-?(?:(?:0|[1-9][0-9]*)?\.[0-9]+(?:[eE][+-]?[0-9]+)?|(?:0|[1-9][0-9]*)\.?[eE][+-]?[0-9]+"
    r"|(?:0|[1-9][0-9]*)\.|0|[1-9][0-9]{0,14})$|^(?:nan|NaN|-?inf|-?Inf)$"
)
_BOOLEAN = r"^(?:true|false|True|False|TRUE|FALSE)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
TRUE_VALUES = ["true", "True", "TRUE"]
FALSE_VALUES = ["false", "False", "FALSE"]

_Test = Callable[[pa.Array], bool]


def _matches(pattern: str, kind: pa.DataType | None = None) -> _Test:
    def test(values: pa.Array) -> bool:
        if not pc.all(pc.match_substring_regex(values, pattern)).as_py():
            return False
        return kind is None or _casts(values, kind)

    return test


def _casts(values: pa.Array, kind: pa.DataType) -> bool:
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _is_float(values: pa.Array) -> bool:
    """Return whether these are numbers that a float holds: `1e999` would become infinite."""
    if not _matches(_FLOAT, pa.float64())(values):
        return False
    infinite = values.filter(pc.is_inf(values.cast(pa.float64())))
    return not pc.any(pc.match_substring_regex(infinite, "[0-9]")).as_py()


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
