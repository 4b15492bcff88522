"""Predicates: which samples of a batch are chosen, by ids, by an expression of Arrow or by a function of the caller.

Lists of comparisons are in `filters`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

Mask = NDArray[np.bool_]
Batch = Mapping[str, Any]
"""Values by column, as readers get them: arrays, masked where they have nulls, or lists with None."""


class Predicate(ABC):
    """A rule that chooses samples."""

    kind: str
    """The form in which it was given: where, ids, expression or function."""

    @abstractmethod
    def columns_of(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that it reads, of those that a version has.

        Raises:
            SchemaError: it reads a column that there is not.
        """

    @abstractmethod
    def mask(self, batch: Batch, rows: int) -> Mask:
        """Return which of a batch's samples are chosen, bool, shape (rows,).

        Raises:
            SchemaError: the values of a column cannot be compared in this way.
        """


class Ids(Predicate):
    """A list of values of one column."""

    kind = "ids"

    def __init__(self, column: str, values: Iterable[Any]) -> None:
        """Take the values; text stands for a number where the column has numbers."""
        self.column = column
        self.values = frozenset(values)
        self._numbers: NDArray[Any] | None = None

    def columns_of(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the column."""
        return check_columns((self.column,), available)

    def mask(self, batch: Batch, rows: int) -> Mask:
        """Look each value up."""
        found = batch[self.column]
        nulls = np.ma.getmaskarray(found) if isinstance(found, np.ma.MaskedArray) else None
        if isinstance(found, np.ndarray) and found.dtype.kind in "iu" and found.ndim == 1:
            ids = self._whole_numbers(found.dtype)
            numbers = np.asarray(found)
            places = np.searchsorted(ids, numbers) if ids.size else np.zeros(rows, np.int64)
            chosen: Mask = (ids[np.minimum(places, ids.size - 1)] == numbers) if ids.size else np.zeros(rows, bool)
            return chosen if nulls is None else chosen & ~nulls
        if isinstance(found, list) and all(value is None or isinstance(value, str | bytes | int) for value in found):
            return np.fromiter((self._holds(value) for value in found), bool, rows)
        raise SchemaError(
            f"column {self.column!r} holds neither whole numbers nor text, so that ids cannot be looked up in it; give "
            "comparisons (`where`) or a Python function",
            column=self.column,
        )

    def values_in(self, batch: Batch, chosen: Mask) -> set[str]:
        """Return the ids of the chosen samples, as text."""
        found = batch[self.column]
        return {_text(found[row]) for row in np.flatnonzero(chosen).tolist()}

    def missing(self, found: set[str]) -> tuple[str, ...]:
        """Return the ids, as text, that are not among these."""
        return tuple(sorted({_text(value) for value in self.values} - found))

    def _whole_numbers(self, dtype: "np.dtype[Any]") -> NDArray[Any]:
        if self._numbers is None or self._numbers.dtype != dtype:
            limits = np.iinfo(dtype)
            numbers = {self._whole_number(value) for value in self.values}
            self._numbers = np.array(sorted(n for n in numbers if limits.min <= n <= limits.max), dtype)
        return self._numbers

    def _whole_number(self, value: Any) -> int:
        try:
            if isinstance(value, bool | float):
                raise TypeError
            return int(value)
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"column {self.column!r} holds whole numbers, and {value!r:.60} among the ids is none",
                column=self.column,
            ) from error

    def _holds(self, value: Any) -> bool:
        return value is not None and (value in self.values or (isinstance(value, int) and str(value) in self.values))


@dataclass(frozen=True)
class ArrowExpression(Predicate):
    """An expression of `pyarrow.compute`."""

    expression: Any
    kind = "expression"

    def columns_of(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the columns without which the expression cannot be bound to a table."""
        import pyarrow as pa

        empty = pa.table({name: pa.nulls(0) for name in available})
        try:
            empty.filter(self.expression)
        except pa.ArrowInvalid as error:
            raise SchemaError(f"{error}; the columns are {', '.join(available)}") from error
        except pa.ArrowNotImplementedError:  # of nulls; the columns are there
            pass
        return tuple(name for name in available if _needs(self.expression, empty, name))

    def mask(self, batch: Batch, rows: int) -> Mask:
        """Filter the rows."""
        import pyarrow as pa

        arrays = {name: arrow_values(name, values) for name, values in batch.items()}
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
    columns: tuple[str, ...] | None
    """The columns that it gets; None for all."""
    kind = "function"

    def columns_of(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that it was declared with."""
        return tuple(available) if self.columns is None else check_columns(self.columns, available)

    def mask(self, batch: Batch, rows: int) -> Mask:
        """Call the function."""
        found = np.asarray(self.function(batch))
        if found.shape != (rows,) or found.dtype != bool:
            raise SchemaError(
                f"the function must return {rows} booleans, one for each sample of the batch; it returned "
                f"{found.dtype.name} of shape {found.shape}"
            )
        return found


def _needs(expression: Any, empty: Any, name: str) -> bool:
    """Return whether binding fails without a column: Arrow does not list the columns of an expression."""
    import pyarrow as pa

    try:
        empty.drop_columns([name]).filter(expression)
    except pa.ArrowInvalid:
        return True
    except pa.ArrowNotImplementedError:
        return False
    return False


def check_columns(names: Iterable[str], available: Sequence[str]) -> tuple[str, ...]:
    """Return the names, if there are such columns.

    Raises:
        SchemaError: there is one that is not available.
    """
    known = set(available)
    for name in names:
        if name not in known:
            raise SchemaError(f"there is no column {name!r}; the columns are {', '.join(available)}", column=name)
    return tuple(names)


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def arrow_values(name: str, values: Any) -> "pa.Array[Any]":
    """Return the values of a column of a batch as an Arrow array.

    Raises:
        SchemaError: they are arrays, images or nested values, which cannot be compared.
    """
    import pyarrow as pa

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
