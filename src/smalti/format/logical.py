"""Logical types: what stored values stand for, as a manifest says it, and how they are given to whoever reads them.

A shard stores numbers, text, bytes and JSON; that an int32 counts days, or which rows of a column are null, stands in
the manifest (`docs/types.md`). Other readers of the set see what is stored. Nothing here reads shards or needs Spark.

    {"when": {"type": "timestamp", "unit": "us", "zone": "UTC"}, "age": {"type": "plain", "mask": true}}

Values that are stored as JSON and hold more than JSON knows: dates, decimals, bytes, NaN, keys that are no text.

What stands in the JSON for each (`docs/types.md`): numbers of days and microseconds, the digits of a decimal, base64,
the names of floats that are no numbers, and pairs for a map whose keys are no text.

Numbers that stand for truth values, days, times and spans of time, and arrays of them; pure numpy.
"""

import base64
import binascii
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
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
        return NumberType("uint8", _boolean, _booleans_of_numbers)
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


def _booleans_of_numbers(values: Any) -> Any:
    wrong = values > 1
    if wrong.any():
        raise FormatError("expected 0 or 1", row=int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1))))
    return values.astype(np.uint8, copy=False).view(np.bool_)


JSON_TYPES = frozenset({"list", "struct", "map"})
NOT_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MAX_DEPTH = 100  # Spark's own parser of types stops sooner
RestoreJson = Callable[[Any], Any]


def json_value(kind: Any, depth: int = 0) -> RestoreJson | None:
    """From what JSON holds to the value that it stands for; None where that is itself. A null stays None.

    Raises:
        SchemaError: the manifest describes no such type.
    """
    if depth > _MAX_DEPTH:
        raise SchemaError(f"nested more than {_MAX_DEPTH} deep")
    family = str(kind.get("type")) if isinstance(kind, Mapping) else None
    if family in ("int", "text", "bool"):
        return None
    if family in _LEAVES:
        return _or_null(_LEAVES[family])
    if family == "list":
        return _list(json_value(kind.get("of"), depth + 1))
    if family == "struct" and isinstance(kind.get("fields"), Mapping):
        return _struct({name: json_value(each, depth + 1) for name, each in kind["fields"].items()})
    if family == "map":
        return _map(kind.get("keys"), json_value(kind.get("values"), depth + 1), depth)
    return _or_null(_number(kind if isinstance(kind, Mapping) else {}))


def _or_null(restore: RestoreJson) -> RestoreJson:
    return lambda value: None if value is None else restore(value)


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if value not in NOT_NUMBERS:
        raise FormatError("expected a float")
    return NOT_NUMBERS[value]


def _decimal(value: Any) -> Decimal:
    if not isinstance(value, str):
        raise FormatError("expected the digits of a decimal")
    return Decimal(value)


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError) as error:
        raise FormatError("expected base64") from error


_LEAVES: dict[Any, RestoreJson] = {"float": _float, "decimal": _decimal, "binary": _bytes}


def _number(kind: Mapping[str, Any]) -> RestoreJson:
    one = number_type(kind).one

    def restore(value: Any) -> Any:
        if type(value) is not int:
            raise FormatError("expected a whole number")
        return one(np.int64(value))

    return restore


def _list(item: RestoreJson | None) -> RestoreJson | None:
    if item is None:
        return None

    def restore(value: Any) -> Any:
        if not isinstance(value, list):
            raise FormatError("expected a list")
        return list(map(item, value))

    return _or_null(restore)


def _struct(fields: Mapping[str, RestoreJson | None]) -> RestoreJson | None:
    wanted = {name: each for name, each in fields.items() if each is not None}
    if not wanted:
        return None

    def restore(value: Any) -> Any:
        if not isinstance(value, dict):
            raise FormatError("expected an object")
        return value | {name: each(value[name]) for name, each in wanted.items()}

    return _or_null(restore)


def _map(keys: Any, item: RestoreJson | None, depth: int) -> RestoreJson | None:
    if isinstance(keys, Mapping) and keys.get("type") == "text":
        return None if item is None else _or_null(_object(item))
    key = json_value(keys, depth + 1)

    def restore(value: Any) -> Any:
        if not isinstance(value, list):
            raise FormatError("expected a list of pairs")
        found = {key(k) if key else k: item(v) if item else v for k, v in value}
        if len(found) != len(value):
            raise FormatError("a map has a key twice")
        return found

    return _or_null(restore)


def _object(item: RestoreJson) -> RestoreJson:
    def restore(value: Any) -> Any:
        if not isinstance(value, dict):
            raise FormatError("expected an object")
        return {name: item(each) for name, each in value.items()}

    return restore


MASK_SUFFIX = "__is_null"
"""A column `age` with nulls has a column `age__is_null` of uint8 beside it: 1 where the value is null."""

_AS_STORED = {"plain", "decimal", "vector", "image"}
_FAULTS = (ValueError, TypeError, KeyError, ArithmeticError)
Restore = Callable[[Any], Any]


@dataclass(frozen=True)
class _LogicalColumn:
    name: str
    one: Restore | None
    """A stored value to the value that it stands for; None where that is itself."""
    many: Restore | None
    """The same for the values of a batch: an array, or a list."""
    mask: str | None


class LogicalTypes:
    """How the samples of one shard set are given; thread-safe."""

    def __init__(self, types: Mapping[str, Any], columns: tuple[_LogicalColumn, ...]) -> None:
        """Use `parse_logical`."""
        self.types = types
        self._columns = columns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogicalTypes) and self.types == other.types

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.types)))

    def sample(self, stored: dict[str, Any]) -> dict[str, Any]:
        """The sample with each value as what it stands for, None for a null, and without masks; changes `stored`.

        Raises:
            FormatError: a stored value stands for nothing.
        """
        for column in self._columns:
            if column.mask is not None and _is_set(column, stored.pop(column.mask)):
                stored[column.name] = None
            elif column.one is not None:
                stored[column.name] = _restored(column, column.one, stored[column.name])
        return stored

    def batch(self, stored: dict[str, Any]) -> dict[str, Any]:
        """The same for a batch by column: arrays with nulls are masked arrays, lists have None; changes `stored`.

        Raises:
            FormatError: a stored value stands for nothing; `sample` is its row in the batch.
        """
        for column in self._columns:
            if column.many is not None:
                stored[column.name] = _restored(column, column.many, stored[column.name])
            if column.mask is not None:
                is_null = _restored(column, _booleans, stored.pop(column.mask))
                stored[column.name] = _masked(stored[column.name], is_null)
        return stored


def parse_logical(types: Mapping[str, Any], encodings: Mapping[str, str]) -> LogicalTypes | None:
    """How samples are given; None where they are given as they are stored.

    Args:
        types: column to logical type, as in a manifest.
        encodings: column to encoding, of the shards.

    Raises:
        SchemaError: a type that this version of Smalti does not know, or that does not fit its column.
    """
    columns = []
    for name, kind in types.items():
        if name not in encodings:
            raise _unfit(name, kind, "the set has no such column")
        columns.append(_column(name, kind, encodings))
    needed = tuple(each for each in columns if each.one is not None or each.mask is not None)
    return LogicalTypes(types, needed) if needed else None


def _column(name: str, kind: Any, encodings: Mapping[str, str]) -> _LogicalColumn:
    family = kind.get("type") if isinstance(kind, Mapping) else None
    if not isinstance(family, str):
        raise _unfit(name, kind, "expected an object with a 'type'")
    mask = name + MASK_SUFFIX if kind.get("mask") else None
    if mask is not None and encodings.get(mask) != "uint8":
        raise _unfit(name, kind, f"its nulls should be marked in a column {mask!r} of uint8")
    encoding = encodings[name]
    try:
        one, many = _ways(family, kind, encoding)
    except SchemaError as error:
        raise _unfit(name, kind, f"{error.message} (stored as {encoding})") from error
    return _LogicalColumn(name, one, many, mask)


def _ways(family: str, kind: Mapping[str, Any], encoding: str) -> tuple[Restore | None, Restore | None]:
    if family in _AS_STORED:
        return None, None
    if family in JSON_TYPES:
        if encoding != "json":
            raise SchemaError("expected a column of JSON")
        one = json_value(kind)
        return (None, None) if one is None else (one, _each(one))
    if family == "array":
        if not encoding.startswith("ndarray"):
            raise SchemaError("expected a column of arrays")
        of = kind.get("of")
        numbers = number_type(of if isinstance(of, Mapping) else {})
        return numbers.many, lambda values: _arrays(numbers.many, values)
    numbers = number_type(kind)
    if encoding != numbers.encoding:
        raise SchemaError(f"expected a column of {numbers.encoding}")
    return numbers.one, numbers.many


def _each(one: Restore) -> Restore:
    def many(values: Any) -> list[Any]:
        found: list[Any] = []
        try:
            found.extend(map(one, values))
        except _FAULTS as error:
            raise FormatError(str(error), row=len(found)) from error
        return found

    return many


def _arrays(many: Restore, values: Any) -> Any:
    return many(values) if isinstance(values, np.ndarray) else _each(many)(values)


def _booleans(stored: Any) -> Any:
    return number_type({"type": "bool"}).many(stored)


def _is_set(column: _LogicalColumn, stored: Any) -> bool:
    return bool(_restored(column, number_type({"type": "bool"}).one, stored))


def _restored(column: _LogicalColumn, restore: Restore, stored: Any) -> Any:
    try:
        return restore(stored)
    except _FAULTS as error:
        row = error.facts.get("row", 0) if isinstance(error, FormatError) else 0
        raise FormatError(
            f"column {column.name!r}: what is stored is no value of its logical type ({error}); the shard or the "
            "manifest is damaged. Fetch it again, run the writer again, or read what is stored with `logical=False`.",
            column=column.name,
            sample=row,
        ) from error


def _masked(values: Any, is_null: Any) -> Any:
    if isinstance(values, np.ndarray):
        mask = is_null.reshape(-1, *(1,) * (values.ndim - 1))
        return np.ma.MaskedArray(values, np.broadcast_to(mask, values.shape).copy())
    return [None if null else value for value, null in zip(values, is_null.tolist(), strict=True)]


def _unfit(name: str, kind: Any, why: str) -> SchemaError:
    return SchemaError(
        f"column {name!r:.80}: the manifest says the logical type {reprlib.repr(kind)}, and this version of Smalti "
        f"cannot give it: {why}. Update smalti, or read what is stored with `logical=False`.",
        column=name,
    )
