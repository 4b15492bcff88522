"""Arrow's structs, maps and lists as JSON text, with what JSON does not know written so that nothing is lost.

Read back by `smalti.format.logical_json`, which says what stands for what.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from smalti.errors import SchemaError
from smalti.spark.arrow_numbers import as_numbers

_dumps = json.JSONEncoder(allow_nan=False).encode
_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass(frozen=True)
class JsonText:
    """Values of one type to their JSON text; of the same values always the same text."""

    kind: Mapping[str, Any]
    """The type, as the manifest describes it."""

    def __call__(self, array: pa.Array) -> pa.Array:
        """One text each, as bytes; a null stays a null.

        Raises:
            SchemaError: text that is no UTF-8, or a map with a key twice.
        """
        try:
            values = _values(array, self.kind)
        except SchemaError as error:
            row = next(row for row in range(len(array)) if not self._is_good(array.slice(row, 1)))
            raise SchemaError(error.message, row=row) from error
        return pa.array([None if value is None else _text(value) for value in values], pa.large_binary())

    def _is_good(self, array: pa.Array) -> bool:
        try:
            _values(array, self.kind)
        except SchemaError:
            return False
        return True


def _text(value: Any) -> bytes:
    return _dumps(value).encode("ascii")


def _values(array: pa.Array, kind: Mapping[str, Any]) -> list[Any]:
    """Each row as what `json` writes, column by column of what is nested."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    family = kind["type"]
    if family == "struct":
        return _structs(array, kind["fields"])
    if family == "list":
        return _lists(array, _values(_inner(array, array.values), kind["of"]))
    if family == "map":
        return _maps(array, kind)
    if family == "float":
        return [_float(value) for value in array.to_pylist()]
    if family == "decimal":
        return [None if value is None else str(value) for value in array.to_pylist()]
    if family == "binary":
        return [None if value is None else base64.b64encode(value).decode("ascii") for value in array.to_pylist()]
    if family in ("date", "timestamp", "duration", "time"):
        numbers: list[Any] = as_numbers(array).to_pylist()
        return numbers
    return _plain(array)


def _plain(array: pa.Array) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError as error:
        raise SchemaError("expected text that is valid UTF-8.") from error
    return values


def _float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return _NAMES.get(value, "NaN")


def _structs(array: pa.StructArray, kinds: Mapping[str, Any]) -> list[Any]:
    # `flatten`, not `field`: it knows where a slice begins.
    columns = [_values(each, kinds[field.name]) for each, field in zip(array.flatten(), array.type, strict=True)]
    names = [field.name for field in array.type]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]


def _maps(array: pa.MapArray, kind: Mapping[str, Any]) -> list[Any]:
    keys = _lists(array, _values(_inner(array, array.keys), kind["keys"]))
    values = _lists(array, _values(_inner(array, array.items), kind["values"]))
    as_object = kind["keys"]["type"] == "text"
    found: list[Any] = []
    for its, items in zip(keys, values, strict=True):
        if its is None:
            found.append(None)
            continue
        if len(set(its)) < len(its):
            raise SchemaError("a map has a key twice, which a dict cannot hold.")
        pairs = zip(its, items, strict=True)
        found.append(dict(pairs) if as_object else list(map(list, pairs)))
    return found


def _inner(array: pa.Array, values: pa.Array) -> pa.Array:
    """What the lists of a slice hold, which is a part of what they all hold."""
    begin = array.offsets[0].as_py()
    return values.slice(begin, array.offsets[len(array)].as_py() - begin)


def _lists(array: pa.Array, items: Sequence[Any]) -> list[Any]:
    ends = array.offsets.to_pylist()
    first, valid = ends[0], array.is_valid().to_pylist()
    return [
        list(items[begin - first : end - first]) if is_valid else None
        for begin, end, is_valid in zip(ends, ends[1:], valid, strict=False)
    ]
