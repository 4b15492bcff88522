"""Strict reading of JSON objects of unknown origin: a typed value in range, or an error that names the place."""

import math
from collections.abc import Mapping
from typing import Any

from smalti.errors import IndexFileError

_MISSING = object()
_NESTED = (dict, list)
_TEXTS = frozenset({str})
_MAX_SHOWN = 300  # characters of a place or an expectation, which may contain text of the file


def fault(where: str, expected: str, found: object, **facts: Any) -> IndexFileError:
    """Return the error for a place in an index file; shows numbers and short texts, of other values only the type."""
    if found is _MISSING:
        shown = "nothing"
    elif found is None or isinstance(found, int | float):
        shown = repr(found)[:40]
    else:
        shown = repr(found) if isinstance(found, str) and len(found) <= 40 else type(found).__name__
    return IndexFileError(
        f"{where[:_MAX_SHOWN]}: expected {expected[:_MAX_SHOWN]}, found {shown}; the index file is damaged, or was not "
        "written by an MDS writer.",
        where=where,
        **facts,
    )


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs; ValueError if a key is repeated. For `json.loads(object_pairs_hook=...)`."""
    obj = dict(pairs)
    if len(obj) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return obj


def refuse_constant(name: str) -> None:
    """Raise ValueError for NaN and the infinities. For `json.loads(parse_constant=...)`."""
    raise ValueError(f"{name} is not JSON")


def finite_float(text: str) -> float:
    """Return the float; ValueError if it is too large for one. For `json.loads(parse_float=...)`."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large for a float")
    return value


def is_deeper_than(value: Any, max_depth: int) -> bool:
    """Return whether lists and dicts of a parsed JSON value are nested more than `max_depth` levels deep."""
    level = [value] if type(value) in _NESTED else []
    for _ in range(max_depth):
        if not level:
            return False
        level = [
            item
            for parent in level
            for item in (parent.values() if type(parent) is dict else parent)
            if type(item) in _NESTED
        ]
    return bool(level)


class Fields:
    """One JSON object and the place where it stands, such as `index.json: $.shards[3]`."""

    def __init__(self, obj: object, where: str) -> None:
        if not isinstance(obj, dict):
            raise fault(where, "an object", obj)
        self._obj = obj
        self.where = where

    def at(self, key: str) -> str:
        """Return the place of `key`."""
        return f"{self.where}.{key}"

    def get(self, key: str, default: Any = _MISSING) -> Any:
        """Return the value without a check of its type.

        Raises:
            IndexFileError: It is missing and there is no default.
        """
        value = self._obj.get(key, default)
        if value is _MISSING:
            raise fault(self.at(key), "a value", value)
        return value

    def text(self, key: str) -> str:
        """Return a text."""
        value = self._obj.get(key, _MISSING)
        if not isinstance(value, str):
            raise fault(self.at(key), "a text", value)
        return value

    def texts(self, key: str, default: Any = _MISSING) -> tuple[str, ...]:
        """Return a list of texts."""
        value = self._obj.get(key, default)
        if not isinstance(value, list) or not _TEXTS.issuperset(map(type, value)):
            raise fault(self.at(key), "a list of texts", value)
        return tuple(value)

    def mapping(self, key: str, default: Any = _MISSING) -> Mapping[str, Any]:
        """Return an object; null counts as the default."""
        value = self._obj.get(key, default)
        if value is None and default is not _MISSING:
            value = default
        if not isinstance(value, dict):
            raise fault(self.at(key), "an object", value)
        return value
