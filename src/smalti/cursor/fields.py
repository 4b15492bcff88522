"""Checked access to the fields of a saved state: errors of type and range are `CursorError`s that name the field."""

from collections.abc import Mapping, Sequence
from reprlib import Repr
from typing import Any

from smalti.errors import CursorError

MAX_NUMBER = (1 << 63) - 1
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value: Any) -> str:
    """Return the value as text for a message; a long one is cut without formatting all of it."""
    return _SHORT.repr(value)[:80]


def mapping(state: Any, what: str = "") -> Mapping[str, Any]:
    """Return the state if it is a mapping."""
    if not isinstance(state, Mapping):
        where = f"{what!r} is" if what else "expected a mapping as `state_dict()` returns it, found"
        raise CursorError(f"saved state: {where} {type(state).__name__}{', expected a mapping' if what else ''}.")
    return state


def whole(state: Mapping[str, Any], key: str, *, low: int, high: int = MAX_NUMBER) -> int:
    """Return a whole number in [low, high]."""
    value = state.get(key)
    if type(value) is not int or not low <= value <= high:
        raise CursorError(
            f"saved state: {key!r} is {shown(value)}, expected a whole number from {low} to {high}; the state is "
            "damaged or was not written by `state_dict()`: use an older checkpoint.",
            key=key,
        )
    return value


def whole_or_none(state: Mapping[str, Any], key: str, *, low: int, high: int = MAX_NUMBER) -> int | None:
    """Return a whole number in [low, high], or None."""
    return None if state.get(key) is None else whole(state, key, low=low, high=high)


def share(state: Mapping[str, Any], key: str) -> float:
    """Return a number in [0, 1]."""
    value = state.get(key)
    if type(value) not in (int, float) or not 0 <= value <= 1:  # type: ignore[operator]  # a number
        raise CursorError(
            f"saved state: {key!r} is {shown(value)}, expected a number from 0 to 1; the state is damaged: use an "
            "older checkpoint.",
            key=key,
        )
    return float(value)  # type: ignore[arg-type]  # a number


def text(state: Mapping[str, Any], key: str) -> str:
    """Return a text of at most 1,024 characters."""
    value = state.get(key)
    if not isinstance(value, str) or len(value) > 1024:
        raise CursorError(
            f"saved state: {key!r} is {shown(value)}, expected a text of at most 1024 characters.", key=key
        )
    return value


def text_or_none(state: Mapping[str, Any], key: str) -> str | None:
    """Return a text of at most 1,024 characters, or None."""
    return None if state.get(key) is None else text(state, key)


def flag(state: Mapping[str, Any], key: str) -> bool:
    """Return true or false."""
    value = state.get(key)
    if not isinstance(value, bool):
        raise CursorError(f"saved state: {key!r} is {shown(value)}, expected true or false.", key=key)
    return value


def listed(state: Mapping[str, Any], key: str, *, most: int) -> Sequence[Any]:
    """Return a list of 1 to `most` entries."""
    value = state.get(key)
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= most:
        raise CursorError(f"saved state: {key!r} is {shown(value)}, expected a list of 1 to {most} entries.", key=key)
    return value
