"""Numbers that stand for truth values, days, times and spans of time, and arrays of them; pure numpy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError

_DTYPES = {
    ("date", "D"): ("int32", "M8[D]"),
    ("timestamp", "us"): ("int64", "M8[us]"),
    ("duration", "us"): ("int64", "m8[us]"),
    ("duration", "M"): ("int32", "m8[M]"),
    ("time", "ns"): ("int64", "m8[ns]"),
}


@dataclass(frozen=True)
class NumberType:
    """What numbers of one kind stand for."""

    encoding: str
    """What they are stored as."""
    one: Callable[[Any], Any]
    """A number to a numpy scalar."""
    many: Callable[[Any], Any]
    """An array of numbers of any shape to one of the same shape; a view where it can be."""


def number_type(kind: Mapping[str, Any]) -> NumberType:
    """The type that the manifest describes so.

    Raises:
        SchemaError: there is none.
    """
    family = kind.get("type")
    if family == "bool":
        return NumberType("uint8", _boolean, _booleans)
    found = _DTYPES.get((str(family), str(kind.get("unit", "D" if family == "date" else None))))
    if found is None:
        raise SchemaError("no such type")
    encoding, dtype = found
    wanted = np.dtype(dtype)

    def many(values: Any) -> Any:
        # Through int64, which these types are, whatever is stored; for them that is no copy.
        return np.ascontiguousarray(values, np.int64).reshape(np.shape(values)).view(wanted)

    return NumberType(encoding, lambda value: many(value)[()], many)


def _boolean(value: Any) -> Any:
    if value not in (0, 1):
        raise FormatError("expected 0 or 1")
    return np.bool_(value)


def _booleans(values: Any) -> Any:
    wrong = values > 1
    if wrong.any():
        raise FormatError("expected 0 or 1", row=int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1))))
    return values.astype(np.uint8, copy=False).view(np.bool_)
