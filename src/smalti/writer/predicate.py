"""Predicates: which samples of a batch are chosen, by ids, by comparisons, by an expression of Arrow or by a function.

Comparisons of columns with values have the form of `filters` of `pyarrow.parquet.read_table` and pandas:

    [("user_id", "==", 17)]                              one comparison
    [("born", "<", "1990-01-01"), ("score", ">=", 3)]    all of them
    [[("user_id", "in", [17, 18])], [("id", "==", 3)]]   any of the inner lists

A value must be one of the column's type. A comparison with a null is neither true nor false, as in SQL, so that nulls
are chosen by an expression only: `pc.field("note").is_null()`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from smalti.errors import ArgumentError, SchemaError

Mask = NDArray[np.bool_]
Batch = Mapping[str, Any]
"""Values by column, as readers get them: arrays, masked where they have nulls, or lists with None."""
OPERATORS = ("==", "=", "!=", "<", "<=", ">", ">=", "in", "not in")
_COMPARISONS = {
    "==": "equal", "=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal",
}  # fmt: skip
_WORD = re.compile(r"(?P<column>[^=<>!]+?)\s*(?P<operator>==|!=|<=|>=|=|<|>)\s*(?P<value>.*)", re.DOTALL)


class Predicate(ABC):
    """A rule that chooses samples."""

    kind: str
    """The form in which it was given: where, ids, expression or function."""
    names: tuple[str, ...] | None = None
    """The columns that it reads; None for all."""

    def __str__(self) -> str:
        return f"a {self.kind}"

    def columns_of(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that it reads, of those that a version has.

        Raises:
            SchemaError: it reads a column that there is not.
        """
        known = set(available)
        for name in self.names or ():
            if name not in known:
                raise SchemaError(f"there is no column {name!r}; the columns are {', '.join(available)}", column=name)
        return tuple(available) if self.names is None else self.names

    @abstractmethod
    def mask(self, batch: Batch, rows: int) -> Mask:
        """Return which of a batch's samples are chosen, bool, shape (rows,).

        Raises:
            SchemaError: the values of a column cannot be compared in this way.
        """

    def num_missing(self) -> int | None:
        """Return the number of ids of which no sample was chosen so far; None if samples are not chosen by ids."""
        return None


class Ids(Predicate):
    """A list of values of one column."""

    kind = "ids"

    def __init__(self, column: str, values: Iterable[Any]) -> None:
        """Take the values; text stands for a number where the column has numbers."""
        self.column = column
        self.names = (column,)
        self.values = frozenset(values)
        self._numbers: NDArray[Any] | None = None
        self._chosen: set[str] = set()

    def __str__(self) -> str:
        return f"{len(self.values)} ids of {self.column!r}"

    def mask(self, batch: Batch, rows: int) -> Mask:
        """Look each value up."""
        found, chosen = batch[self.column], np.zeros(rows, bool)
        if isinstance(found, np.ndarray) and found.dtype.kind in "iu" and found.ndim == 1:
            ids, numbers = self._whole_numbers(found.dtype), np.asarray(found)
            if ids.size:
                places = np.minimum(np.searchsorted(ids, numbers), ids.size - 1)
                chosen = (ids[places] == numbers) & ~np.ma.getmaskarray(found)
        elif isinstance(found, list) and all(value is None or isinstance(value, str | bytes | int) for value in found):
            chosen = np.fromiter((self._holds(value) for value in found), bool, rows)
        else:
            raise SchemaError(
                f"column {self.column!r} holds neither whole numbers nor text, so that ids cannot be looked up in it; "
                "give comparisons (`where`) or a Python function",
                column=self.column,
            )
        self._chosen |= {_text(found[row]) for row in np.flatnonzero(chosen).tolist()}
        return chosen

    def num_missing(self) -> int:
        """Return the number of ids of which no sample was chosen so far."""
        return len({_text(value) for value in self.values} - self._chosen)

    def _whole_numbers(self, dtype: "np.dtype[Any]") -> NDArray[Any]:
        if self._numbers is None or self._numbers.dtype != dtype:
            limits = np.iinfo(dtype)
            numbers = set()
            value: Any = None
            try:
                for value in self.values:
                    if isinstance(value, bool | float):
                        raise TypeError
                    numbers.add(int(value))
            except (TypeError, ValueError) as error:
                raise SchemaError(
                    f"column {self.column!r} holds whole numbers, and {value!r:.60} among the ids is none",
                    column=self.column,
                ) from error
            self._numbers = np.array(sorted(n for n in numbers if limits.min <= n <= limits.max), dtype)
        return self._numbers

    def _holds(self, value: Any) -> bool:
        return value is not None and (value in self.values or (isinstance(value, int) and str(value) in self.values))


@dataclass(frozen=True)
class ArrowExpression(Predicate):
    """An expression of `pyarrow.compute`."""

    expression: Any
    kind = "expression"

    def columns_of(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the columns without which the expression cannot be bound to a table: Arrow does not list them."""
        empty = pa.table({name: pa.nulls(0) for name in available})
        if error := self._binding_error(empty):
            raise SchemaError(f"{error}; the columns are {', '.join(available)}") from error
        return tuple(name for name in available if self._binding_error(empty.drop_columns([name])))

    def _binding_error(self, table: "pa.Table[Any]") -> "pa.ArrowInvalid | None":
        try:
            table.filter(self.expression)
        except pa.ArrowInvalid as error:
            return error
        except pa.ArrowNotImplementedError:  # of nulls; the columns are there
            pass
        return None

    def mask(self, batch: Batch, rows: int) -> Mask:
        """Filter the rows."""
        arrays = {name: _arrow_values(name, values) for name, values in batch.items()}
        table = pa.table({**arrays, "": pa.array(np.arange(rows))})
        try:
            chosen = table.filter(self.expression).column("").to_numpy()
        except pa.ArrowException as error:
            raise SchemaError(f"the expression {self.expression} cannot be evaluated: {error}") from error
        found = np.zeros(rows, bool)
        found[chosen] = True
        return found


@dataclass(frozen=True)
class Function(Predicate):
    """A function of the caller: from a batch by column to one boolean for each sample."""

    function: Callable[[Batch], Any]
    names: tuple[str, ...] | None
    """The columns that it gets; None for all."""
    kind = "function"

    def mask(self, batch: Batch, rows: int) -> Mask:
        """Call the function."""
        found = np.asarray(self.function(batch))
        if found.shape != (rows,) or found.dtype != bool:
            raise SchemaError(
                f"the function must return {rows} booleans, one for each sample of the batch; it returned "
                f"{found.dtype.name} of shape {found.shape}"
            )
        return found


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
        if pa.types.is_null(values.type):
            return pa.nulls(len(values), pa.bool_())
        if self.operator in _COMPARISONS:
            return pc.call_function(_COMPARISONS[self.operator], [values, self._typed(self.value, values.type)])
        kind, wanted = values.type, [self._typed(value, values.type) for value in self.value]
        if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):  # scalars of which differ in scale
            none = pa.repeat(pa.scalar(value=False), len(values))
            is_in = reduce(pc.or_, (pc.equal(values, each) for each in wanted), none)
        else:
            is_in = pc.is_in(values, value_set=pa.array([each.as_py() for each in wanted], kind))
        is_in = pc.if_else(pc.is_valid(values), is_in, pa.scalar(None, pa.bool_()))
        return is_in if self.operator == "in" else pc.invert(is_in)

    def _typed(self, value: Any, kind: "pa.DataType") -> "pa.Scalar[Any]":
        """Return a value as one of the column's type."""
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
    def names(self) -> tuple[str, ...]:  # type: ignore[override]  # read only
        """The columns that are compared."""
        return tuple(dict.fromkeys(each.column for group in self.groups for each in group))

    def mask(self, batch: Batch, rows: int) -> Mask:  # noqa: ARG002 -- the batch has a column
        """Compare the columns."""
        return self.mask_of({name: _arrow_values(name, values) for name, values in batch.items()})

    def mask_of(self, arrays: "Mapping[str, pa.Array[Any]]") -> Mask:
        """Return which rows of Arrow columns are chosen, bool, shape (rows,).

        Raises:
            SchemaError: the values of a column cannot be compared in this way.
        """
        groups = (reduce(pc.and_kleene, (each.truth(arrays[each.column]) for each in group)) for group in self.groups)
        chosen = pc.fill_null(reduce(pc.or_kleene, groups), fill_value=False)
        mask: Mask = np.asarray(chosen.to_numpy(zero_copy_only=False), bool)
        return mask


def predicate_of(
    where: Any, *, ids: Iterable[Any] | None, column: str | None, columns: Iterable[str] | None
) -> Predicate:
    """Return the predicate of one way to choose samples.

    Raises:
        SchemaError: a comparison is malformed.
        ValueError: not exactly one way was chosen.
    """
    if (where is None) == (ids is None):
        raise ArgumentError("give either `where` or `ids`, which choose the samples")
    is_function = callable(where) and not isinstance(where, pc.Expression)
    if columns is not None and not is_function:
        raise ArgumentError("`columns` belong to a function as `where`; others tell which columns they read")
    if ids is not None:
        if column is None:
            raise ArgumentError("`ids` need the `column` that they are values of")
        return Ids(column, ids)
    if column is not None:
        raise ArgumentError("`column` belongs to `ids`; comparisons name their columns themselves")
    if isinstance(where, Predicate):
        return where
    if isinstance(where, pc.Expression):
        return ArrowExpression(where)
    if is_function:
        return Function(where, None if columns is None else tuple(columns))
    return as_filters(where)


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
    comparisons = []
    for word in words:
        match = _WORD.fullmatch(word.strip())
        if match is None:
            raise SchemaError(f"expected COLUMN=VALUE, or one of != < <= > >= in place of =, found {word!r:.80}")
        column, operator, value = match.group("column", "operator", "value")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            raise SchemaError(
                f"{column}: the value {value:.60} has quotes of its own; write {column}{operator}{value[1:-1]:.60}"
            )
        comparisons.append(Comparison(column.strip(), operator, value, is_text=True))
    return Filters((tuple(comparisons),))


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


def _fits(value: Any, kind: "pa.DataType") -> bool:
    """Return whether a value of Python's can be one of an Arrow type."""
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
    if pa.types.is_temporal(kind):
        return pa.scalar(value).cast(kind)  # of a date, a time, or their text
    if pa.types.is_integer(kind):
        if value != int(value):
            raise ArgumentError("it has a fraction")
        return pa.scalar(int(value), kind)
    if pa.types.is_floating(kind):
        return pa.scalar(float(value)).cast(kind)
    return pa.scalar(Decimal(value)) if pa.types.is_decimal(kind) else pa.scalar(value, kind)


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _arrow_values(name: str, values: Any) -> "pa.Array[Any]":
    """Return the values of a column of a batch as an Arrow array.

    Raises:
        SchemaError: they are arrays, images or nested values, which cannot be compared.
    """
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biufMm":
        plain = np.asarray(values)
        plain = plain.astype(np.float32) if plain.dtype == np.float16 else plain
        nulls = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
        return pa.array(plain, mask=nulls)
    if isinstance(values, list) and all(
        v is None or isinstance(v, str | bytes | int | float | Decimal) for v in values
    ):
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError) as error:
            raise SchemaError(f"column {name!r} cannot be compared: {error}", column=name) from error
    raise SchemaError(
        f"column {name!r} holds arrays, images or nested values, and comparisons are for numbers, text, "
        "bytes, booleans, dates and times; give a Python function",
        column=name,
    )
