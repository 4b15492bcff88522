"""Fields of a saved state, each checked for type and range; a fault is a `CursorError` that names the field."""

from collections.abc import Mapping, Sequence
from reprlib import Repr
from typing import Any

from smalti.errors import CursorError

MOST_NUMBER = (1 << 63) - 1
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value: Any) -> str:
    """The value as a message says it; of a long one, its beginning, without spelling out the rest."""
    return _SHORT.repr(value)[:80]


def mapping(state: Any, what: str = "") -> Mapping[str, Any]:
    """The state itself, if it is a mapping."""
    if not isinstance(state, Mapping):
        where = f"{what!r} is" if what else "expected a mapping as `state_dict()` returns it, found"
        raise CursorError(f"saved state: {where} {type(state).__name__}{', expected a mapping' if what else ''}.")
    return state


def whole(state: Mapping[str, Any], key: str, *, low: int, high: int = MOST_NUMBER) -> int:
    """A whole number in [low, high]."""
    value = state.get(key)
    if type(value) is not int or not low <= value <= high:
        raise CursorError(
            f"saved state: {key!r} is {shown(value)}, expected a whole number from {low} to {high}; the state is "
            "damaged or was not written by `state_dict()`: use an older checkpoint.",
            key=key,
        )
    return value


def whole_or_none(state: Mapping[str, Any], key: str, *, low: int, high: int = MOST_NUMBER) -> int | None:
    """The same, or None."""
    return None if state.get(key) is None else whole(state, key, low=low, high=high)


def text(state: Mapping[str, Any], key: str) -> str:
    """A text of at most 1,024 characters."""
    value = state.get(key)
    if not isinstance(value, str) or len(value) > 1024:
        raise CursorError(
            f"saved state: {key!r} is {shown(value)}, expected a text of at most 1024 characters.", key=key
        )
    return value


def text_or_none(state: Mapping[str, Any], key: str) -> str | None:
    """The same, or None."""
    return None if state.get(key) is None else text(state, key)


def flag(state: Mapping[str, Any], key: str) -> bool:
    """True or false."""
    value = state.get(key)
    if not isinstance(value, bool):
        raise CursorError(f"saved state: {key!r} is {shown(value)}, expected true or false.", key=key)
    return value


def listed(state: Mapping[str, Any], key: str, *, most: int) -> Sequence[Any]:
    """A list of 1 to `most` entries."""
    value = state.get(key)
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= most:
        raise CursorError(f"saved state: {key!r} is {shown(value)}, expected a list of 1 to {most} entries.", key=key)
    return value
