"""Logical types: what stored values represent, as a manifest declares it, and how samples are restored from them.

A shard stores numbers, text, bytes and JSON. That an int32 counts days, or which rows of a column are null, stands in
the manifest (`docs/types.md`); other readers of the set see the stored values. Restoring has three layers here: numbers
that represent booleans, dates, times and durations (`number_type`), values nested in JSON (`json_restorer`), and the
columns of a set (`LogicalTypes`). Nothing here reads shards or needs Spark.

    {"when": {"type": "timestamp", "unit": "us", "zone": "UTC"}, "age": {"type": "plain", "mask": true}}
"""

import base64
import binascii
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError

MASK_SUFFIX = "__is_null"
"""A column `age` with nulls has a second column `age__is_null` of uint8: 1 where the value is null."""

_AS_STORED = {"plain", "decimal", "vector", "image"}  # types whose values are returned as stored
_VALUE_ERRORS = (ValueError, TypeError, KeyError, ArithmeticError)  # raised for damaged stored values
Restore = Callable[[Any], Any]
"""From a stored value, or an array of stored values, to what they represent."""
_JSON_TYPES = frozenset({"list", "struct", "map"})
_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MAX_DEPTH = 100  # levels of nested types; Spark's own parser of types stops sooner
_DTYPES = {  # type and unit in the manifest: encoding of the column, numpy dtype
    ("date", "D"): ("int32", "M8[D]"),
    ("timestamp", "us"): ("int64", "M8[us]"),
    ("duration", "us"): ("int64", "m8[us]"),
    ("duration", "M"): ("int32", "m8[M]"),
    ("time", "ns"): ("int64", "m8[ns]"),
}


@dataclass(frozen=True)
class NumberType:
    """Storage and restoration of one kind of number."""

    encoding: str
    """Encoding of the column that stores them."""
    restore: Restore
    """Converts a number to a numpy scalar, and an array of any shape to one of the same shape; a view if possible."""


def number_type(kind: Mapping[str, Any]) -> NumberType:
    """Return the type that the manifest describes so.

    Raises:
        SchemaError: there is none.
    """
    family = kind.get("type")
    if family == "bool":
        return NumberType("uint8", _boolean)
    found = _DTYPES.get((str(family), str(kind.get("unit", "D" if family == "date" else None))))
    if found is None:
        raise SchemaError("no such type")
    encoding, dtype = found
    numpy_dtype = np.dtype(dtype)

    def restore(values: Any) -> Any:
        # Through int64, the storage of numpy's times, whatever is stored; no copy if that is int64.
        restored = np.ascontiguousarray(values, np.int64).reshape(np.shape(values)).view(numpy_dtype)
        return restored if isinstance(values, np.ndarray) else restored[()]

    return NumberType(encoding, restore)


def _boolean(values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        if values not in (0, 1):
            raise FormatError("expected 0 or 1")
        return np.bool_(values)
    wrong = values > 1
    if wrong.any():
        raise FormatError("expected 0 or 1", row=int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1))))
    return values.astype(np.uint8, copy=False).view(np.bool_)


def json_restorer(kind: Any, depth: int = 0) -> Restore | None:
    """Return the function that restores a value from JSON; None if it is the value itself. A null stays None.

    Raises:
        SchemaError: the manifest describes no such type.
    """
    if depth > _MAX_DEPTH:
        raise SchemaError(f"nested more than {_MAX_DEPTH} deep")
    family = str(kind.get("type")) if isinstance(kind, Mapping) else None
    if family in ("int", "text", "bool"):
        return None
    if family in _LEAVES:
        return _LEAVES[family]
    if family == "list":
        item = json_restorer(kind.get("of"), depth + 1)
        return None if item is None else _typed(list, "a list", lambda value: list(map(item, value)))
    if family == "struct" and isinstance(kind.get("fields"), Mapping):
        restorers = {name: json_restorer(field, depth + 1) for name, field in kind["fields"].items()}
        needed = {name: restorer for name, restorer in restorers.items() if restorer is not None}

        def restore_fields(value: Any) -> Any:
            return value | {name: restorer(value[name]) for name, restorer in needed.items()}

        return _typed(dict, "an object", restore_fields) if needed else None
    if family == "map":
        return _map(kind.get("keys"), json_restorer(kind.get("values"), depth + 1), depth)
    restore = number_type(kind if isinstance(kind, Mapping) else {}).restore
    return _typed(int, "a whole number", lambda value: restore(np.int64(value)))


def _typed(kind: type, what: str, restore: Restore) -> Restore:
    """Return the restoration of a value that JSON holds as this type; a null stays None."""

    def restore_typed(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not kind:
            raise FormatError(f"expected {what}")
        return restore(value)

    return restore_typed


def _float(value: Any) -> float | None:
    if value is None or type(value) is float:
        return value
    if value not in _NON_FINITE:
        raise FormatError("expected a float")
    return _NON_FINITE[value]


def _bytes(value: Any) -> bytes | None:
    try:
        return None if value is None else base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError) as error:
        raise FormatError("expected base64") from error


_LEAVES: dict[Any, Restore] = {
    "float": _float,
    "decimal": _typed(str, "the digits of a decimal", Decimal),
    "binary": _bytes,
}


def _map(keys: Any, item: Restore | None, depth: int) -> Restore | None:
    if isinstance(keys, Mapping) and keys.get("type") == "text":
        if item is None:
            return None
        return _typed(dict, "an object", lambda value: {name: item(each) for name, each in value.items()})
    key = json_restorer(keys, depth + 1)

    def restore(value: Any) -> Any:
        found = {key(k) if key else k: item(v) if item else v for k, v in value}
        if len(found) != len(value):
            raise FormatError("a map has a key twice")
        return found

    return _typed(list, "a list of pairs", restore)


@dataclass(frozen=True)
class _LogicalColumn:
    name: str
    restore: Restore | None
    """Restores a stored value, or the array of a batch; None if it is the value itself."""
    mask: str | None
    is_number: bool
    """True if a batch is one array, also of an encoding of the user's that returns a list."""


@dataclass(frozen=True)
class LogicalTypes:
    """The logical types of one shard set, and the restoration of its samples; thread-safe. Made by `parse_logical`."""

    types: Mapping[str, Any]
    _columns: tuple[_LogicalColumn, ...] = field(compare=False, repr=False)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.types)))

    def sample(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Restore the values of a sample, with None for a null, and remove masks; changes `stored`.

        Raises:
            FormatError: a stored value is not a value of its logical type.
        """
        for column in self._columns:
            if column.mask is not None and _restored(column, _boolean, stored.pop(column.mask)):
                stored[column.name] = None
            elif column.restore is not None:
                stored[column.name] = _restored(column, column.restore, stored[column.name])
        return stored

    def batch(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Do the same for a batch by column: arrays with nulls are masked arrays, lists have None; changes `stored`.

        Raises:
            FormatError: a stored value is not a value of its logical type; `sample` is its row in the batch.
        """
        for column in self._columns:
            values = np.asarray(stored[column.name]) if column.is_number else stored[column.name]
            if column.restore is not None:
                many = column.restore if isinstance(values, np.ndarray) else _each(column.restore)
                values = stored[column.name] = _restored(column, many, values)
            if column.mask is None:
                continue
            is_null = _restored(column, _boolean, stored.pop(column.mask))
            if isinstance(values, np.ndarray):
                mask = np.broadcast_to(is_null.reshape(-1, *(1,) * (values.ndim - 1)), values.shape).copy()
                stored[column.name] = np.ma.MaskedArray(values, mask)
            else:
                pairs = zip(values, is_null.tolist(), strict=True)
                stored[column.name] = [None if null else value for value, null in pairs]
        return stored


def masks_of(types: Mapping[str, Any]) -> dict[str, str]:
    """Return the column that marks the nulls, by the column that has some; `types` is column to logical type."""
    return {name: name + MASK_SUFFIX for name, kind in types.items() if isinstance(kind, Mapping) and kind.get("mask")}


def parse_logical(types: Mapping[str, Any], encodings: Mapping[str, str]) -> LogicalTypes | None:
    """Return the logical types of a set; None if all its samples are returned as stored.

    `types` is column to logical type, as in a manifest; `encodings` is column to encoding, of the shards.

    Raises:
        SchemaError: a type that this version of Smalti does not know, or that does not fit its column.
    """
    columns, masks = [], masks_of(types)
    for name, kind in types.items():
        if name not in encodings:
            raise _unusable(name, kind, "the set has no such column")
        family = kind.get("type") if isinstance(kind, Mapping) else None
        if not isinstance(family, str):
            raise _unusable(name, kind, "expected an object with a 'type'")
        mask = masks.get(name)
        if mask is not None and encodings.get(mask) != "uint8":
            raise _unusable(name, kind, f"its nulls should be marked in a column {mask!r} of uint8")
        try:
            restore = _restorer(family, kind, encodings[name])
        except SchemaError as error:
            raise _unusable(name, kind, f"{error.message} (stored as {encodings[name]})") from error
        if restore is not None or mask is not None:
            is_number = restore is not None and family not in {"array", *_JSON_TYPES}
            columns.append(_LogicalColumn(name, restore, mask, is_number))
    return LogicalTypes(types, tuple(columns)) if columns else None


def _restorer(family: str, kind: Mapping[str, Any], encoding: str) -> Restore | None:
    if family in _AS_STORED:
        return None
    if family in _JSON_TYPES:
        if encoding != "json":
            raise SchemaError("expected a column of JSON")
        return json_restorer(kind)
    if family == "array":
        if not encoding.startswith("ndarray"):
            raise SchemaError("expected a column of arrays")
        of = kind.get("of")
        return number_type(of if isinstance(of, Mapping) else {}).restore
    numbers = number_type(kind)
    if encoding != numbers.encoding:
        raise SchemaError(f"expected a column of {numbers.encoding}")
    return numbers.restore


def _each(one: Restore) -> Restore:
    def many(values: Any) -> list[Any]:
        found: list[Any] = []
        try:
            found.extend(map(one, values))
        except _VALUE_ERRORS as error:
            raise FormatError(str(error), row=len(found)) from error
        return found

    return many


def _restored(column: _LogicalColumn, restore: Restore, stored: Any) -> Any:
    try:
        return restore(stored)
    except _VALUE_ERRORS as error:
        row = error.facts.get("row", 0) if isinstance(error, FormatError) else 0
        raise FormatError(
            f"column {column.name!r}: a stored value is not a value of its logical type ({error}); the shard or the "
            "manifest is damaged. Fetch it again, run the writer again, or read what is stored by a "
            "StreamingDataset with `logical=False`.",
            column=column.name,
            sample=row,
        ) from error


def _unusable(name: str, kind: Any, why: str) -> SchemaError:
    return SchemaError(
        f"column {name!r:.80}: the manifest declares the logical type {reprlib.repr(kind)}, which this version "
        f"of Smalti cannot read: {why}. Update smalti, or read what is stored by a StreamingDataset with "
        "`logical=False`.",
        column=name,
    )
