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

Parse = Callable[[str], Any]


def flag(text: str) -> bool:
    """Return whether the text is `true`; `false` is the other one allowed."""
    return {"true": True, "false": False}[text.strip().lower()]


def names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, or in a JSON list, which may hold names with commas."""
    if text.lstrip().startswith("["):
        listed = json.loads(text)
        if not all(isinstance(name, str) for name in listed):
            raise ArgumentError("expected a list of texts")
        return tuple(listed)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def words(text: str) -> tuple[str, ...]:
    """Return the one text, or those of a JSON list."""
    return names(text) if text.lstrip().startswith("[") else (text,)


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
    words: "a comparison such as label=3, or a JSON list of such texts",
    mapping: 'a JSON object such as {"label": "int64"}',
    optional: "a text, or none",
    policy: 'a text, or a JSON object by column such as {"label": "mask"}',
    str: "a text",
}
"""Values that an option may have, for messages, by the function that reads it."""


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
            parse = known[key]
            try:
                values[key] = parse(text)
            except (ValueError, KeyError, AttributeError) as error:
                raise ArgumentError(
                    f'format("mds"), option `{key}`: expected {EXPECTED[parse]}, found {text!r}'
                ) from error
        elif key in elsewhere:
            raise ArgumentError(f'format("mds") has no option `{key}` here: {elsewhere[key]}')
        elif key not in _OF_SPARK:
            near = get_close_matches(key, known, 1)
            meant = f"did you mean `{near[0]}`? " if near else ""
            raise ArgumentError(
                f'format("mds") has no option `{key}`: {meant}there are {", ".join(sorted(known))}, and those of the '
                f"store as `{_STORAGE}<name>`"
            )
    if storage:
        values["storage_options"] = storage
    return values


def place_of(given: Mapping[str, str]) -> str:
    """Return the address of the set.

    Raises:
        ArgumentError: None was given.
    """
    path = given.get("path", "")
    if not path or "provider" in given:  # properties of a table, which Spark 4.3 does not hand over when it is read
        raise ArgumentError(
            'format("mds") needs the address of a set, and none was given: name it in `load(url)`, `save(url)` or '
            "`start(url)`. In SQL, make a view: CREATE TEMPORARY VIEW name USING mds OPTIONS (path '<url>'); a table "
            "(CREATE TABLE) loses its options in Spark up to 4.3"
        )
    return path
