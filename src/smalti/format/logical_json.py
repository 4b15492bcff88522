"""Values that are stored as JSON and hold more than JSON knows: dates, decimals, bytes, NaN, keys that are no text.

What stands in the JSON for each (`docs/types.md`): numbers of days and microseconds, the digits of a decimal, base64,
the names of floats that are no numbers, and pairs for a map whose keys are no text.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.logical_numbers import number_type

JSON_TYPES = frozenset({"list", "struct", "map"})
NOT_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MAX_DEPTH = 100  # Spark's own parser of types stops sooner
Restore = Callable[[Any], Any]


def json_value(kind: Any, depth: int = 0) -> Restore | None:
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


def _or_null(restore: Restore) -> Restore:
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


_LEAVES: dict[Any, Restore] = {"float": _float, "decimal": _decimal, "binary": _bytes}


def _number(kind: Mapping[str, Any]) -> Restore:
    one = number_type(kind).one

    def restore(value: Any) -> Any:
        if type(value) is not int:
            raise FormatError("expected a whole number")
        return one(np.int64(value))

    return restore


def _list(item: Restore | None) -> Restore | None:
    if item is None:
        return None

    def restore(value: Any) -> Any:
        if not isinstance(value, list):
            raise FormatError("expected a list")
        return list(map(item, value))

    return _or_null(restore)


def _struct(fields: Mapping[str, Restore | None]) -> Restore | None:
    wanted = {name: each for name, each in fields.items() if each is not None}
    if not wanted:
        return None

    def restore(value: Any) -> Any:
        if not isinstance(value, dict):
            raise FormatError("expected an object")
        return value | {name: each(value[name]) for name, each in wanted.items()}

    return _or_null(restore)


def _map(keys: Any, item: Restore | None, depth: int) -> Restore | None:
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


def _object(item: Restore) -> Restore:
    def restore(value: Any) -> Any:
        if not isinstance(value, dict):
            raise FormatError("expected an object")
        return {name: item(each) for name, each in value.items()}

    return restore
