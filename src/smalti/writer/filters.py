"""Comparisons of columns with values, in the form of `filters` of `pyarrow.parquet.read_table` and pandas.

    [("user_id", "==", 17)]                              one comparison
    [("born", "<", "1990-01-01"), ("score", ">=", 3)]    all of them
    [[("user_id", "in", [17, 18])], [("id", "==", 3)]]   any of the inner lists

A value must be one of the column's type. A comparison with a null is neither true nor false, as in SQL, so that nulls
are chosen by an expression only: `pc.field("note").is_null()`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.errors import ArgumentError, SchemaError
from smalti.writer.predicate import Batch, Mask, Predicate, arrow_values, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

OPERATORS = ("==", "=", "!=", "<", "<=", ">", ">=", "in", "not in")
_COMPARISONS = {
    "==": "equal", "=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal",
}  # fmt: skip
_WORD = re.compile(r"(?P<column>[^=<>!]+?)\s*(?P<operator>==|!=|<=|>=|=|<|>)\s*(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Comparison:
    """A column compared with a value, or with a list of values."""

    column: str
    operator: str
    value: Any
    is_text: bool = False
    """True if the value is the text of one, as on a command line; it is read as the type of the column."""

    def __str__(self) -> str:
        shown = self.value if self.is_text else repr(self.value)
        return f"{self.column} {self.operator} {shown if len(shown) <= 60 else f'{shown[:60]}...'}"

    def truth(self, values: "pa.Array[Any]") -> "pa.Array[Any]":
        """Return whether it holds for each value of the column; null for nulls.

        Raises:
            SchemaError: no value of the column can be compared with its value.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_null(values.type):
            return pa.nulls(len(values), pa.bool_())
        if self.operator in _COMPARISONS:
            return pc.call_function(_COMPARISONS[self.operator], [values, self._typed(self.value, values.type)])
        found = _is_in(values, [self._typed(value, values.type) for value in self.value])
        return found if self.operator == "in" else pc.invert(found)

    def _typed(self, value: Any, kind: "pa.DataType") -> "pa.Scalar[Any]":
        """Return a value as one of the column's type."""
        import pyarrow as pa

        value = value.item() if isinstance(value, np.generic) else value
        try:
            if self.is_text:
                return pa.scalar(Decimal(value)) if pa.types.is_decimal(kind) else pa.scalar(value).cast(kind)
            if _fits(value, kind):
                return _scalar(value, kind)
        except (pa.ArrowException, ArithmeticError, ValueError) as error:
            raise SchemaError(
                f"column {self.column!r} holds {kind}, and {value!r:.60} is no value of it: {error}", column=self.column
            ) from error
        raise SchemaError(
            f"column {self.column!r} holds {kind}, which cannot be compared with {value!r:.60}", column=self.column
        )


@dataclass(frozen=True)
class Filters(Predicate):
    """Comparisons: any of the groups, in each group all."""

    groups: tuple[tuple[Comparison, ...], ...]
    kind = "where"

    def __str__(self) -> str:
        return " or ".join(" and ".join(map(str, group)) for group in self.groups)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are compared."""
        return tuple(dict.fromkeys(each.column for group in self.groups for each in group))

    def columns_of(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that are compared."""
        return check_columns(self.names, available)

    def mask(self, batch: Batch, rows: int) -> Mask:  # noqa: ARG002 -- the batch has a column
        """Compare the columns."""
        return self.mask_of({name: arrow_values(name, values) for name, values in batch.items()})

    def mask_of(self, arrays: "Mapping[str, pa.Array[Any]]") -> Mask:
        """Return which rows of Arrow columns are chosen, bool, shape (rows,).

        Raises:
            SchemaError: the values of a column cannot be compared in this way.
        """
        import pyarrow.compute as pc

        groups = (reduce(pc.and_kleene, (each.truth(arrays[each.column]) for each in group)) for group in self.groups)
        chosen = pc.fill_null(reduce(pc.or_kleene, groups), fill_value=False)
        mask: Mask = np.asarray(chosen.to_numpy(zero_copy_only=False), bool)
        return mask


def as_filters(where: Any) -> Filters:
    """Return the filters that a list of tuples, or a list of lists of tuples, describes.

    Raises:
        SchemaError: it describes none; the message shows the form.
    """
    if not isinstance(where, list) or not where or [] in where:
        raise _fault(where)
    groups = where if all(isinstance(each, list) for each in where) else [where]
    return Filters(tuple(tuple(map(_as_comparison, group)) for group in groups))


def parse_filters(words: Iterable[str]) -> Filters:
    """Return the filters that words such as `user_id=17` or `born<1990-01-01` describe, all of which must hold.

    Raises:
        SchemaError: a word has no column or no operator, or its value is in quotes.
    """
    return Filters((tuple(map(_parse_word, words)),))


def _parse_word(word: str) -> Comparison:
    match = _WORD.fullmatch(word.strip())
    if match is None:
        raise SchemaError(f"expected COLUMN=VALUE, or one of != < <= > >= in place of =, found {word!r:.80}")
    column, operator, value = match.group("column", "operator", "value")
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        raise SchemaError(
            f"{column}: the value {value:.60} has quotes of its own; write {column}{operator}{value[1:-1]:.60}"
        )
    return Comparison(column.strip(), operator, value, is_text=True)


def _as_comparison(found: Any) -> Comparison:
    if not (isinstance(found, tuple | list) and len(found) == 3 and isinstance(found[0], str)):
        raise _fault(found)
    column, operator, value = found
    if operator not in OPERATORS:
        raise SchemaError(f"column {column!r}: {operator!r:.60} is no operator; expected one of {', '.join(OPERATORS)}")
    is_list = isinstance(value, list | tuple | set | frozenset | np.ndarray)
    if is_list != (operator in ("in", "not in")):
        raise SchemaError(f"column {column!r}: `{operator}` needs {'one value' if is_list else 'a list of values'}")
    values = list(value) if is_list else [value]
    if any(each is None for each in values):
        raise SchemaError(
            f"column {column!r}: nothing is equal to null; choose nulls by the expression "
            f"pyarrow.compute.field({column!r}).is_null()",
            column=column,
        )
    return Comparison(column, operator, tuple(values) if is_list else value)


def _fault(found: Any) -> SchemaError:
    return SchemaError(
        f"`where` is {found!r:.80}; expected a list of comparisons such as [('user_id', '==', 17)], a list of such "
        "lists, an expression of pyarrow, or a function"
    )


def _is_in(values: "pa.Array[Any]", wanted: "list[pa.Scalar[Any]]") -> "pa.Array[Any]":
    """Return whether each value is one of these; null for nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):  # scalars of which differ in scale
        found = reduce(
            pc.or_, (pc.equal(values, each) for each in wanted), pa.repeat(pa.scalar(value=False), len(values))
        )
    else:
        found = pc.is_in(values, value_set=pa.array([each.as_py() for each in wanted], kind))
    return pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))


def _fits(value: Any, kind: "pa.DataType") -> bool:
    """Return whether a value of Python's can be one of an Arrow type."""
    import pyarrow as pa

    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    checks: Mapping[Callable[[Any], bool], bool] = {
        pa.types.is_boolean: isinstance(value, bool),
        pa.types.is_integer: is_number or (isinstance(value, float) and value.is_integer()),
        pa.types.is_floating: is_number or isinstance(value, float),
        pa.types.is_decimal: is_number,
        pa.types.is_string: isinstance(value, str),
        pa.types.is_binary: isinstance(value, bytes),
        pa.types.is_temporal: not is_number and not isinstance(value, bool | float | bytes),
    }
    return any(is_kind(kind) and fits for is_kind, fits in checks.items())


def _scalar(value: Any, kind: "pa.DataType") -> "pa.Scalar[Any]":
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return pa.scalar(value).cast(kind)  # of a date, a time, or their text
    if pa.types.is_integer(kind):
        if value != int(value):
            raise ArgumentError("it has a fraction")
        return pa.scalar(int(value), kind)
    if pa.types.is_floating(kind):
        return pa.scalar(float(value)).cast(kind)
    return pa.scalar(Decimal(value)) if pa.types.is_decimal(kind) else pa.scalar(value, kind)
