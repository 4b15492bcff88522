"""Options of `format("mds")`: texts by name, without regard to case, as Spark hands them to a data source."""

import json
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from smalti.errors import ArgumentError

_STORAGE = "storage."
"""Prefix of the options of the store."""
_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Options that Spark hands to every source."""
_OF_TABLES = "owner"
"""Option that Spark hands to a source when a table of its catalog is created."""
_VIEW = "`CREATE TEMPORARY VIEW photos USING mds OPTIONS (path '<url>')`"

Parse = Callable[[str], Any]


def flag(text: str) -> bool:
    """Return whether the text is `true`; `false` is the other one allowed."""
    return {"true": True, "false": False}[text.strip().lower()]


def names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, or in a JSON list, which may hold names with commas."""
    if text.lstrip().startswith("["):
        listed = json.loads(text)
        if not all(isinstance(name, str) for name in listed):
            raise ValueError
        return tuple(listed)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def mapping(text: str) -> dict[str, Any]:
    """Return the JSON object that the text holds."""
    parsed: dict[str, Any] = dict(json.loads(text).items())
    return parsed


def policy(text: str) -> str | dict[str, Any]:
    """Return a text, or the JSON object of texts by column."""
    return mapping(text) if text.lstrip().startswith("{") else text.strip()


def optional(text: str) -> str | None:
    """Return the text; None for `none`."""
    return None if text.strip().lower() == "none" else text.strip()


EXPECTED: Mapping[Parse, str] = {
    flag: "true or false",
    int: "a whole number",
    names: "names with commas between them, or a JSON list of texts",
    mapping: 'a JSON object such as {"label": "int64"}',
    optional: "a text, or none",
    policy: 'a text, or a JSON object by column such as {"label": "mask"}',
    str: "a text",
}
"""What each kind of option takes, for messages."""


def parse_options(given: Mapping[str, str], known: Mapping[str, Parse], elsewhere: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the options that were given, by name; those of the store as `storage_options`.

    Args:
        given: Options as Spark hands them over.
        known: Options that there are, with the function that reads each: one of `EXPECTED`.
        elsewhere: Options that make no sense here, each with what to do instead.

    Raises:
        ArgumentError: There is no such option, or its text cannot be read.
    """
    values: dict[str, Any] = {}
    storage: dict[str, Any] = {}
    for name, text in given.items():
        key = name.lower()
        if key.startswith(_STORAGE):
            storage[name[len(_STORAGE) :]] = mapping(text) if text.lstrip().startswith("{") else text
        elif key in known:
            values[key] = _value_of(key, text, known[key])
        elif key not in _OF_SPARK:
            raise ArgumentError(_unknown(key, known, elsewhere))
    if storage:
        values["storage_options"] = storage
    return values


def place_of(given: Mapping[str, str]) -> str:
    """Return the address of the set.

    Raises:
        ArgumentError: None was given.
    """
    path = given.get("path", "")
    if not path:
        raise ArgumentError(
            'format("mds") needs the address of a set, and none was given: name it in `load(url)`, `save(url)` or '
            f"`start(url)`, or in SQL as {_VIEW}; Spark does not hand it on for tables of its catalog"
        )
    return path


def _value_of(name: str, text: str, parse: Parse) -> Any:
    try:
        return parse(text)
    except (ValueError, KeyError, AttributeError) as error:
        raise ArgumentError(f'format("mds"), option `{name}`: expected {EXPECTED[parse]}, found {text!r}') from error


def _unknown(name: str, known: Mapping[str, Parse], elsewhere: Mapping[str, str]) -> str:
    if name == _OF_TABLES:
        return (
            "Spark does not hand on path and options of tables of its catalog to sources in Python, so that they could "
            f"not be read: use {_VIEW}"
        )
    if name in elsewhere:
        return f'format("mds") has no option `{name}` here: {elsewhere[name]}'
    near = get_close_matches(name, known, 1)
    meant = f"did you mean `{near[0]}`? " if near else ""
    return (
        f'format("mds") has no option `{name}`: {meant}there are {", ".join(sorted(known))}, and those of the store as '
        f"`{_STORAGE}<name>`"
    )
