"""Logical types: what stored values stand for, as a manifest says it, and how they are given to whoever reads them.

A shard stores numbers, text, bytes and JSON; that an int32 counts days, or which rows of a column are null, stands in
the manifest (`docs/types.md`). Other readers of the set see what is stored. Nothing here reads shards or needs Spark.

    {"when": {"type": "timestamp", "unit": "us", "zone": "UTC"}, "age": {"type": "plain", "mask": true}}
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.logical_json import JSON_TYPES, json_value
from smalti.format.logical_numbers import number_type

MASK_SUFFIX = "__is_null"
"""A column `age` with nulls has a column `age__is_null` of uint8 beside it: 1 where the value is null."""

_AS_STORED = {"plain", "decimal", "vector", "image"}
_FAULTS = (ValueError, TypeError, KeyError, ArithmeticError)
Restore = Callable[[Any], Any]


@dataclass(frozen=True)
class _Column:
    name: str
    one: Restore | None
    """A stored value to the value that it stands for; None where that is itself."""
    many: Restore | None
    """The same for the values of a batch: an array, or a list."""
    mask: str | None


class LogicalTypes:
    """How the samples of one shard set are given; thread-safe."""

    def __init__(self, types: Mapping[str, Any], columns: tuple[_Column, ...]) -> None:
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


def _column(name: str, kind: Any, encodings: Mapping[str, str]) -> _Column:
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
    return _Column(name, one, many, mask)


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


def _is_set(column: _Column, stored: Any) -> bool:
    return bool(_restored(column, number_type({"type": "bool"}).one, stored))


def _restored(column: _Column, restore: Restore, stored: Any) -> Any:
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
