"""Checked values of configurations: their types, and errors that name the field, what was expected and what was found.

`configuration` makes a class a frozen dataclass whose values pydantic checks. Imports no torch.
"""

import difflib
import json
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, Strict
from typing_extensions import dataclass_transform

from smalti.errors import SchemaError, SmaltiError
from smalti.redaction import HiddenOptions

C = TypeVar("C")

SECRET = ("storage_options", "run_storage_options")
"""Fields whose values are shown nowhere."""
OPTIONS = "a mapping of options, with values of JSON"
MAX_COUNT = 10**9
"""Largest value of a count."""
_MAX_SECONDS = 10**7  # some months; the operating system's timers end at some centuries
_MAX_INTEGER = (1 << 63) - 1
_MAX_TEXT = 10_000
_TEXT = f"text of 1 to {_MAX_TEXT:,} characters, in UTF-8 and without NUL"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_NAMES_OF_TYPES = {int: "a whole number", float: "a number", str: "text", bool: "True or False", NoneType: "None"}
_BEST = re.compile(r"(min|max) \S+")
_LIMITS = {
    "greater_than_equal": ("ge", "at least {:,}"),
    "greater_than": ("gt", "above {:,}"),
    "less_than_equal": ("le", "at most {:,}"),
    "less_than": ("lt", "below {:,}"),
}
"""Types of pydantic's errors about limits: the name of the limit, and what is expected."""


def _plain_number(value: Any) -> Any:
    """Return a number of Python for one of NumPy.

    Raises:
        ValueError: it has more than 64 bits.
    """
    if isinstance(value, Real) and type(value) not in {bool, int, float}:
        value = int(value) if isinstance(value, Integral) else float(value)
    if type(value) in {int, float} and abs(value) > _MAX_INTEGER:
        raise ValueError("a number of at most 64 bits, and not infinite")
    return value


def _checked_text(value: str) -> str:
    if len(value) > _MAX_TEXT or "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(_TEXT)
    return value


def is_json(value: Mapping[str, Any]) -> bool:
    """Return whether JSON can hold a mapping."""
    try:
        json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def checked(is_valid: Callable[[Any], object], expected: str) -> AfterValidator:
    """Return a validator of values that says what is expected."""

    def check(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(expected)
        return value

    return AfterValidator(check)


class _NotOneOfError(ValueError):
    """A name that is none of some names."""

    def __init__(self, expected: str, names: Sequence[str]) -> None:
        super().__init__(expected)
        self.names = names


def one_of(names: Sequence[str], or_path: str = "") -> AfterValidator:
    """Return a validator of names, or of `module:name` if `or_path` says what that names."""
    known = f"one of {', '.join(names)}" if len(names) > 1 else f"'{names[0]}'"
    expected = f"{known}, or '{or_path}'" if or_path else known

    def check(value: str) -> str:
        if value not in names and not (or_path and ":" in value):
            raise _NotOneOfError(expected, names)
        return value

    return AfterValidator(check)


Whole = Annotated[int, BeforeValidator(_plain_number), Strict()]
Number = Annotated[float, BeforeValidator(_plain_number), Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
MaybeEmpty = Annotated[str, Strict(), AfterValidator(_checked_text)]
Text = Annotated[MaybeEmpty, checked(bool, _TEXT)]
Texts = Annotated[tuple[MaybeEmpty, ...], BeforeValidator(as_tuple)]
Options = Annotated[
    Mapping[str, Any], checked(is_json, OPTIONS), AfterValidator(lambda options: MappingProxyType(dict(options)))
]
Secrets = Annotated[Mapping[str, Any], AfterValidator(lambda options: MappingProxyType(HiddenOptions(options)))]
Best = Annotated[Text, checked(_BEST.fullmatch, "`min` or `max`, a space and the name of a figure")]
Count = Annotated[Whole, Field(ge=1, le=MAX_COUNT)]
Seconds = Annotated[Number, Field(gt=0, le=_MAX_SECONDS)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
Weight = Annotated[Number, Field(ge=0, le=MAX_COUNT)]
Fractions = Annotated[
    tuple[Number, ...],
    BeforeValidator(as_tuple),
    checked(lambda values: all(0 < value < 1 for value in values), "a list, each a fraction in (0, 1)"),
]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def configuration(kind: type[C]) -> type[C]:
    """Make a class a frozen dataclass whose values pydantic checks; a value that is not allowed is a SchemaError.

    A static method `advice_on(name)` may return a sentence for the error about an unknown field.
    """
    rules = pydantic.ConfigDict(
        extra="forbid", validate_default=True, use_attribute_docstrings=True, arbitrary_types_allowed=True
    )
    frozen: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, repr=False, config=rules)(kind)
    validate = frozen.__init__

    def __init__(self: Any, **values: Any) -> None:  # noqa: N807 - of the class
        try:
            validate(self, **values)
        except pydantic.ValidationError as error:
            raise _explained(frozen, error, values) from None

    frozen.__init__ = __init__
    return frozen  # type: ignore[no-any-return]


def _explained(kind: type, error: pydantic.ValidationError, values: Mapping[str, Any]) -> SmaltiError:
    """Return the first fault of some values as an error that names the field, and what was expected and found."""
    faults = error.errors(include_url=False, include_input=False)
    unknown = sorted(str(fault["loc"][0]) for fault in faults if fault["type"] == "unexpected_keyword_argument")
    missing = sorted(str(fault["loc"][0]) for fault in faults if fault["type"] == "missing")
    if unknown or missing:
        advice_on: Callable[[str], str] = getattr(kind, "advice_on", lambda _: "")
        return SchemaError(
            f"these are not the fields of {kind.__name__}: unknown fields {unknown}, missing fields {missing}. Correct "
            "the names, or if another version of Smalti wrote them, read them with that version."
            + "".join(map(advice_on, unknown)),
            unknown=tuple(unknown),
            missing=tuple(missing),
        )
    first, *_ = sorted(faults, key=lambda fault: fault["type"] != "value_error")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SmaltiError):
        return cause
    name = str(first["loc"][0])
    if first["type"] in _LIMITS:
        limit, words = _LIMITS[first["type"]]
        bound = first["ctx"][limit]
        expected = "0 or more" if (limit, bound) == ("ge", 0) else words.format(bound)
    elif cause is not None:
        whole = "a list, each " if len(first["loc"]) > 1 and isinstance(first["loc"][1], int) else ""
        expected = f"{whole}{cause}"
    else:
        expected = _described(get_type_hints(kind)[name])
    value = values[name] if name in values else getattr(kind, name)
    near = did_you_mean(str(value), cause.names) if isinstance(cause, _NotOneOfError) else ""
    return wrong(name, expected, value, near)


def wrong(name: str, expected: str, value: Any, near: str = "") -> SchemaError:
    """Return the error of a field with a value that is not allowed."""
    shown = type(value).__name__ if name in SECRET else _SHORT.repr(plain(value))
    return SchemaError(f"`{name}` must be {expected}, not {shown}.{near}", field=name, found=shown)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names what is spelled nearly like a name; empty if nothing is."""
    near = difflib.get_close_matches(name, list(known), n=2)
    return f" Did you mean {' or '.join(f'`{other}`' for other in near)}?" if near else ""


def _described(hint: Any) -> str:
    """Return the type of a field in words."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return " or ".join(map(_described, get_args(hint)))
    if kind is tuple:
        return f"a list, each {_described(get_args(hint)[0])}"
    return _NAMES_OF_TYPES.get(kind, "a mapping of options")


def plain(value: Any) -> Any:
    """Return the value of a field as JSON holds it."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value
