"""Conditions in text on the columns of a sample: a small part of SQL's, of which nothing is evaluated as code.

    user_id == 17                     = is the same; also != <> < <= > >=
    user_id in (17, 18)               also `not in`
    name like 'Anna %'                % is any text, _ one character; `ilike` ignores case; also `not like`
    born < '1990-01-01'               dates and times are written as text
    note is null                      also `is not null`
    not (a == 1 or b == 2) and c      and, or, not, parentheses; a column of booleans by itself
    `odd name` == x'00ff'             names in backquotes, bytes in hex

A comparison with a null is neither true nor false, as in SQL, so that a null is chosen by `is null` only.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from smalti.errors import SchemaError
from smalti.writer.predicate import Batch, Mask, Predicate, arrow_values, check_columns

_MAX_DEPTH = 100
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    | x'(?P<hex>[0-9a-fA-F]*)'
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<word>[^\W\d]\w*(?:\.\w+)*)
    | (?P<sign>==|!=|<>|<=|>=|[=<>(),])
    )""",
    re.VERBOSE,
)
_COMPARISONS = {
    "=": "equal", "==": "equal", "!=": "not_equal", "<>": "not_equal",
    "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip
_KEYWORDS = frozenset({"and", "or", "not", "in", "like", "ilike", "is", "null", "none", "true", "false"})


@dataclass(frozen=True)
class Condition(Predicate):
    """A condition in text, parsed."""

    text: str
    root: "_Node"
    kind = "where"

    def columns_of(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that are named."""
        return check_columns(dict.fromkeys(self.root.names()), available)

    def mask(self, batch: Batch, rows: int) -> Mask:
        """Evaluate the condition."""
        arrays = {name: arrow_values(name, values) for name, values in batch.items()}
        return _true_of(self.root.truth(arrays), rows)


def parse_condition(text: str) -> Condition:
    """Parse a condition.

    Raises:
        SchemaError: it is not one; the message shows where.
    """
    parser = _Parser(text)
    return Condition(text, parser.parse())


def _true_of(found: Any, rows: int) -> Mask:
    """Return a mask of what is true, and not false or null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = found if isinstance(found, pa.Array) else pa.array([found.as_py()] * rows, pa.bool_())
    mask: Mask = np.asarray(pc.fill_null(array, fill_value=False).to_numpy(zero_copy_only=False), bool)
    return mask


class _Node(ABC):
    """A part of a condition that is true, false or null for each sample."""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the columns that it reads."""

    @abstractmethod
    def truth(self, arrays: Mapping[str, Any]) -> Any:
        """Return an array of booleans and nulls."""


@dataclass(frozen=True)
class _Junction(_Node):
    """`and` or `or` of two conditions."""

    function: str
    left: _Node
    right: _Node

    def names(self) -> Iterable[str]:
        return (*self.left.names(), *self.right.names())

    def truth(self, arrays: Mapping[str, Any]) -> Any:
        import pyarrow.compute as pc

        return pc.call_function(self.function, [self.left.truth(arrays), self.right.truth(arrays)])


@dataclass(frozen=True)
class _Not(_Node):
    """The opposite of a condition; a null stays one."""

    inner: _Node

    def names(self) -> Iterable[str]:
        return self.inner.names()

    def truth(self, arrays: Mapping[str, Any]) -> Any:
        import pyarrow.compute as pc

        return pc.invert(self.inner.truth(arrays))


@dataclass(frozen=True)
class _Column(_Node):
    """A column; by itself it must hold booleans."""

    name: str

    def names(self) -> Iterable[str]:
        return (self.name,)

    def truth(self, arrays: Mapping[str, Any]) -> Any:
        import pyarrow as pa

        found = arrays[self.name]
        if pa.types.is_boolean(found.type) or pa.types.is_null(found.type):
            return found.cast(pa.bool_())
        raise SchemaError(f"column {self.name!r} holds {found.type} and no booleans; compare it", column=self.name)


@dataclass(frozen=True)
class _Comparison(_Node):
    """A column compared with a value or with another column."""

    function: str
    column: str
    other: Any

    def names(self) -> Iterable[str]:
        return (self.column, *(self.other.names() if isinstance(self.other, _Column) else ()))

    def truth(self, arrays: Mapping[str, Any]) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = arrays[self.column]
        if isinstance(self.other, _Column):
            other = arrays[self.other.name]
        elif pa.types.is_null(found.type):
            return pa.nulls(len(found), pa.bool_())
        else:
            found, other = _fitting(self.column, found, self.other)
        try:
            return pc.call_function(self.function, [found, other])
        except pa.ArrowException as error:
            raise SchemaError(f"column {self.column!r} cannot be compared so: {error}", column=self.column) from error


@dataclass(frozen=True)
class _In(_Node):
    """A column whose value is one of a list."""

    column: str
    values: tuple[Any, ...]

    def names(self) -> Iterable[str]:
        return (self.column,)

    def truth(self, arrays: Mapping[str, Any]) -> Any:
        import pyarrow.compute as pc

        parts = [_Comparison("equal", self.column, value).truth(arrays) for value in self.values]
        found = parts[0]
        for part in parts[1:]:
            found = pc.or_kleene(found, part)
        return found


@dataclass(frozen=True)
class _Like(_Node):
    """A text that a pattern matches."""

    column: str
    pattern: str
    ignores_case: bool

    def names(self) -> Iterable[str]:
        return (self.column,)

    def truth(self, arrays: Mapping[str, Any]) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = arrays[self.column]
        if pa.types.is_null(found.type):
            return pa.nulls(len(found), pa.bool_())
        if not pa.types.is_string(found.type):
            raise SchemaError(f"column {self.column!r} holds {found.type} and no text for `like`", column=self.column)
        return pc.match_like(found, self.pattern, ignore_case=self.ignores_case)


@dataclass(frozen=True)
class _IsNull(_Node):
    """A column whose value is null."""

    column: str

    def names(self) -> Iterable[str]:
        return (self.column,)

    def truth(self, arrays: Mapping[str, Any]) -> Any:
        import pyarrow.compute as pc

        return pc.is_null(arrays[self.column])


def _fitting(name: str, found: Any, value: Any) -> tuple[Any, Any]:
    """Return a column and a value of types that Arrow compares exactly.

    Raises:
        SchemaError: no value of the column can be compared with it.
    """
    import pyarrow as pa

    kind = found.type
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    try:
        if pa.types.is_boolean(kind) and isinstance(value, bool):
            return found, pa.scalar(value)
        if pa.types.is_integer(kind) and is_number and value == int(value):
            return found, pa.scalar(int(value), kind)
        if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and is_number:
            number = kind if pa.types.is_floating(kind) else pa.float64()
            return found.cast(number, safe=False), pa.scalar(float(value), number)
        if pa.types.is_decimal(kind) and is_number:
            return found, pa.scalar(Decimal(value))
        if (pa.types.is_string(kind) and isinstance(value, str)) or (
            pa.types.is_binary(kind) and isinstance(value, bytes)
        ):
            return found, pa.scalar(value)
        if pa.types.is_temporal(kind) and not pa.types.is_duration(kind) and isinstance(value, str):
            return found, pa.scalar(value).cast(kind)
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaError(
            f"column {name!r} holds {kind}, and {value!r:.60} is outside of it: {error}", column=name
        ) from error
    raise SchemaError(f"column {name!r} holds {kind}, which cannot be compared with {value!r:.60}", column=name)


class _Parser:
    """A parser by recursive descent: or, and, not, comparison."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split(text))
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        found = self._either()
        if self._peek()[0] != "end":
            raise self._fault("the end, `and` or `or`")
        return found

    def _split(self, text: str) -> Iterable[tuple[str, Any, int]]:
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                column = at + len(text[at:]) - len(text[at:].lstrip())
                raise SchemaError(f"the condition cannot be read from character {column + 1} on: {text[column:]!r:.60}")
            group, value = match.lastgroup, match[match.lastgroup]
            start = match.start(group)
            if group == "word" and value.lower() in _KEYWORDS:
                group, value = "keyword", value.lower()
            yield group, value, start
            at = match.end()
        yield "end", "", len(text)

    def _peek(self) -> tuple[str, Any, int]:
        return self._tokens[self._at]

    def _take(self, *values: str) -> str | None:
        """Return the next token if it is one of these keywords or signs, and consume it."""
        group, value, _ = self._peek()
        if group in ("keyword", "sign") and value in values:
            self._at += 1
            return str(value)
        return None

    def _either(self) -> _Node:
        found = self._both()
        while self._take("or"):
            found = _Junction("or_kleene", found, self._both())
        return found

    def _both(self) -> _Node:
        found = self._negated()
        while self._take("and"):
            found = _Junction("and_kleene", found, self._negated())
        return found

    def _negated(self) -> _Node:
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:
                raise SchemaError(f"the condition is nested more than {_MAX_DEPTH} deep")
            if self._take("not"):
                return _Not(self._negated())
            if self._take("("):
                found = self._either()
                self._expect(")")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> _Node:
        name = self._column()
        if self._take("is"):
            opposite = self._take("not")
            if not self._take("null", "none"):
                raise self._fault("`null`")
            return _Not(_IsNull(name)) if opposite else _IsNull(name)
        if self._take("not"):
            return _Not(self._membership(name, "`in` or `like`"))
        if self._peek()[1] in ("in", "like", "ilike"):
            return self._membership(name, "")
        sign = self._take(*_COMPARISONS)
        return _Column(name) if sign is None else _Comparison(_COMPARISONS[sign], name, self._operand())

    def _membership(self, name: str, expected: str) -> _Node:
        if self._take("in"):
            self._expect("(")
            values = [self._value()]
            while self._take(","):
                if self._peek()[1] == ")":
                    break
                values.append(self._value())
            self._expect(")")
            return _In(name, tuple(values))
        word = self._take("like", "ilike")
        if word is None:
            raise self._fault(expected)
        pattern = self._value()
        if not isinstance(pattern, str):
            raise SchemaError(f"`{word}` needs a text in quotes, found {pattern!r:.60}")
        return _Like(name, pattern, word == "ilike")

    def _column(self) -> str:
        group, value, _ = self._peek()
        if group not in ("word", "quoted"):
            raise self._fault("a column")
        self._at += 1
        return str(value).replace("``", "`")

    def _operand(self) -> Any:
        return _Column(self._column()) if self._peek()[0] in ("word", "quoted") else self._value()

    def _value(self) -> Any:
        found = self._literal(*self._peek()[:2])
        if found is None:
            raise self._fault("a number, a text in quotes, true or false")
        self._at += 1
        return found

    @staticmethod
    def _literal(group: str, value: str) -> Any:
        """Return the value of a token; None if it is no literal."""
        if group == "number":
            return int(value) if re.fullmatch(r"[+-]?\d+", value) else Decimal(value)
        if group == "hex":
            return bytes.fromhex(value)
        if group == "text":
            return value[1:-1].replace(value[0] * 2, value[0])
        if group == "keyword" and value in ("null", "none"):
            raise SchemaError("nothing is equal to null; write `is null` or `is not null`")
        return {"true": True, "false": False}.get(value) if group == "keyword" else None

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._fault(f"`{sign}`")

    def _fault(self, expected: str) -> SchemaError:
        _, value, start = self._peek()
        found = "the end" if not value else repr(value)
        return SchemaError(
            f"the condition {json.dumps(self._text)[:200]}: expected {expected} at character {start + 1}, found {found}"
        )
