"""Checks of whole numbers given as arguments: every integral type is accepted, and nothing else."""

import operator
from typing import Any


def whole_number(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Return the value as a Python int.

    Integers of numpy and torch are accepted as well. Booleans, floats, text and None are refused.

    Args:
        name: name of the argument, for the message.
        value: the user's value.
        low: smallest allowed value; None for no limit.
        high: largest allowed value; None for no limit.

    Raises:
        ValueError: the value is no whole number, or out of range.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        limits = ("" if low is None else f" from {low}") + ("" if high is None else f" to {high}")
        raise ValueError(f"`{name}` must be a whole number{limits}, found {value!r}.")
    return number


def whole_or_none(name: str, value: Any, low: int | None = None, high: int | None = None) -> int | None:
    """Return None for None, and any other value as `whole_number`.

    Raises:
        ValueError: the value is no whole number, or out of range.
    """
    return None if value is None else whole_number(name, value, low, high)
