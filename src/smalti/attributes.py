"""Arguments and attributes of public classes: checks of values, and attributes that a subclass may replace.

The library keeps its own values elsewhere and never reads the names of replaceable attributes on an instance, so a
subclass may use any of them for other values. Nothing about data sets belongs here.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Generic, TypeVar, overload

from smalti.errors import ArgumentError, ArgumentTypeError

Value = TypeVar("Value")
_LIBRARY = __name__.partition(".")[0]


class Replaceable(Generic[Value]):
    """A computed attribute, used as a decorator like `property`, that instances of subclasses may assign.

    An instance of a class outside the library keeps what it assigns as an attribute of its own. On an instance of the
    library's own class an assignment is refused, as for a property without a setter.

    Args:
        read: returns the value for an instance.
        assigned: name of the attribute that an assignment on an instance of the library's own class changes.
    """

    def __init__(self, read: Callable[[Any], Value], *, assigned: str = "") -> None:
        self._read = read
        self._write: Callable[[Any, Any], None] | None = None
        if assigned:
            self._write = lambda instance, value: setattr(instance, assigned, value)
        self.__doc__ = None if isinstance(read, operator.attrgetter) else read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

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
            if self._write is None:
                raise AttributeError(f"`{self._name}` of {type(instance).__name__} cannot be assigned.")
            self._write(instance, value)
        else:
            vars(instance)[self._name] = value

    def __delete__(self, instance: object) -> None:
        if self._name not in vars(instance):
            raise AttributeError(f"`{self._name}` of {type(instance).__name__} cannot be deleted.")
        del vars(instance)[self._name]

    def setter(self, write: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """Call a method where the attribute is assigned on an instance of the library's own class; a decorator."""
        self._write = write
        return write


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


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Check that the value of an argument is one of those allowed.

    Raises:
        ValueError: it is not.
    """
    if value not in allowed:
        raise ArgumentError(f"`{name}` must be one of {', '.join(allowed)}, found {value!r}.")


def moved_arguments(homes: Mapping[str, str]) -> Callable[[type[Value]], type[Value]]:
    """Return a decorator of a class whose constructor had other arguments in an earlier release.

    Args:
        homes: by the name of an argument that went, where it is now.

    Raises:
        ArgumentTypeError: on construction, one of these arguments is given.
    """

    def decorated(kind: type[Value]) -> type[Value]:
        construct: Callable[..., None] = kind.__init__

        @wraps(construct)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            moved = [f"`{name}` {homes[name]}" for name in kwargs if name in homes]
            if moved:
                raise ArgumentTypeError(f"{kind.__name__} no longer takes these arguments: {'; '.join(moved)}.")
            construct(self, *args, **kwargs)

        setattr(kind, "__init__", checked)  # noqa: B010 - mypy refuses the assignment of a method
        return kind

    return decorated


def check_flags(**flags: Any) -> None:
    """Check that arguments are true or false: a text such as "no" would count as true.

    Raises:
        ArgumentTypeError: one is neither True nor False; those of numpy are accepted.
    """
    for name, value in flags.items():
        if type(value).__name__ not in {"bool", "bool_"}:
            raise ArgumentTypeError(f"`{name}` must be True or False, found {value!r:.80}.")


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
