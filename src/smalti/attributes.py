"""Arguments and attributes of public classes: checks of values, and attributes that a subclass may replace.

The library keeps its own values elsewhere and never reads the names of replaceable attributes on an instance, so a
subclass may use any of them for other values. Nothing about data sets belongs here.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

from smalti.errors import ArgumentError, ArgumentTypeError

Value = TypeVar("Value")
_LIBRARY = __name__.partition(".")[0]


class Replaceable(Generic[Value]):
    """A computed attribute, used as a decorator like `property`, that instances of subclasses may assign.

    An instance of a class outside the library keeps what it assigns as an attribute of its own. On an instance of the
    library's own class an assignment is refused, as for a property without a setter.
    """

    def __init__(self, read: Callable[[Any], Value]) -> None:
        self._read = read
        self._name = read.__name__
        self.__doc__ = read.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> "Replaceable[Value]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object, owner: type) -> "Replaceable[Value] | Value":
        if instance is None:
            return self
        own = vars(instance)
        value: Value = own[self._name] if self._name in own else self._read(instance)
        return value

    def __set__(self, instance: object, value: Any) -> None:
        if type(instance).__module__.partition(".")[0] == _LIBRARY:
            self._assign(instance, value)
        else:
            vars(instance)[self._name] = value

    def __delete__(self, instance: object) -> None:
        if self._name not in vars(instance):
            raise AttributeError(f"`{self._name}` of {type(instance).__name__} cannot be deleted.")
        del vars(instance)[self._name]

    def _assign(self, instance: object, value: Any) -> None:  # noqa: ARG002 - used by `Setting`
        raise AttributeError(f"`{self._name}` of {type(instance).__name__} cannot be assigned.")


class Setting(Replaceable[Value]):
    """A `Replaceable` for an option: assigning to an instance of the library's own class changes the option."""

    def __init__(self, read: Callable[[Any], Value], write: Callable[[Any, Any], None]) -> None:
        super().__init__(read)
        self._write = write

    def _assign(self, instance: object, value: Any) -> None:
        self._write(instance, value)


def setting(write: Callable[[Any, Any], None]) -> Callable[[Callable[[Any], Value]], Setting[Value]]:
    """Return a decorator that turns a function into a `Setting`; `write` is called with instance and value."""

    def decorated(read: Callable[[Any], Value]) -> Setting[Value]:
        return Setting(read, write)

    return decorated


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
        raise ArgumentError(f"`{name}` must be a whole number{limits}, found {value!r}.")
    return number


def whole_or_none(name: str, value: Any, low: int | None = None, high: int | None = None) -> int | None:
    """Return None for None, and any other value as `whole_number`.

    Raises:
        ValueError: the value is no whole number, or out of range.
    """
    return None if value is None else whole_number(name, value, low, high)


def check_flags(**flags: Any) -> None:
    """Check that arguments are true or false: a text such as "no" would count as true.

    Raises:
        ArgumentTypeError: one is neither True nor False; those of numpy are accepted.
    """
    for name, value in flags.items():
        if type(value).__name__ not in {"bool", "bool_"}:
            raise ArgumentTypeError(f"`{name}` must be True or False, found {value!r:.80}.")


def check_callable(name: str, value: Any) -> None:
    """Check that an argument is None or can be called.

    Raises:
        ArgumentTypeError: it is neither.
    """
    if value is not None and not callable(value):
        raise ArgumentTypeError(f"`{name}` must be a function, found {value!r:.80}.")


def mapping_of(name: str, value: Any) -> dict[str, Any]:
    """Return a copy of a mapping from names to values, empty for None.

    The message does not show the value, which may hold a secret.

    Raises:
        ArgumentTypeError: it is no mapping, or has a key that is no text.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ArgumentTypeError(f'`{name}` must be a mapping such as {{"key": "value"}}, found {type(value).__name__}.')
    return dict(value)


def seconds_above_zero(name: str, value: Any) -> float:
    """Return a number of seconds as a float.

    Raises:
        ArgumentError: it is no number above 0.
    """
    try:
        seconds = 0.0 if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = 0.0
    if not seconds > 0:
        raise ArgumentError(f"`{name}` must be a number of seconds above 0, found {value!r:.80}.")
    return seconds
