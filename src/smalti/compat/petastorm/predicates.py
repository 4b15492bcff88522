"""Petastorm's predicates, which select rows; evaluated on columns where possible."""

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any


class PredicateBase(ABC):
    """Base class of predicates. A subclass needs only these two methods."""

    @abstractmethod
    def get_fields(self) -> Collection[str]:
        """Return the columns that the predicate reads."""

    @abstractmethod
    def do_include(self, values: Any) -> Any:
        """Return a Series of bools, True for rows to read, for a pandas DataFrame of these columns."""


class in_set(PredicateBase):  # noqa: N801 -- Petastorm's name
    """Rows whose value is in a set.

    Examples:
        >>> chosen = in_set({1}, "label")
        >>> with make_batch_reader("file:///data/rows.parquet", num_epochs=1, predicate=chosen) as reader:
        ...     sorted(next(reader).id.tolist())
        [1, 3, 5, 7, 9]
    """

    def __init__(self, inclusion_values: Iterable[Any], predicate_field: str) -> None:
        self._values, self._field = list(inclusion_values), predicate_field

    def get_fields(self) -> Collection[str]:
        """Return the columns that the predicate reads."""
        return {self._field}

    def do_include(self, values: Any) -> Any:
        """Return True for rows to read."""
        return values[self._field].isin(self._values)


class in_intersection(PredicateBase):  # noqa: N801
    """Rows whose list contains at least one value of a set.

    Examples:
        >>> tagged = in_intersection({"cat", "dog"}, "tags")
    """

    def __init__(self, inclusion_values: Iterable[Any], _predicate_field: str) -> None:
        self._values, self._field = set(inclusion_values), _predicate_field

    def get_fields(self) -> Collection[str]:
        """Return the columns that the predicate reads."""
        return {self._field}

    def do_include(self, values: Any) -> Any:
        """Return True for rows to read."""
        return values[self._field].map(lambda listed: not self._values.isdisjoint(listed)).astype(bool)


class in_lambda(PredicateBase):  # noqa: N801
    """Rows selected by a function, called with a Series for each column, and with `state_arg` if that is not None.

    Examples:
        >>> chosen = in_lambda(["label"], lambda label: label == 1)
        >>> with make_batch_reader("file:///data/rows.parquet", num_epochs=1, predicate=chosen) as reader:
        ...     sorted(next(reader).id.tolist())
        [1, 3, 5, 7, 9]
    """

    def __init__(
        self, predicate_fields: Sequence[str], predicate_func: Callable[..., Any], state_arg: Any = None
    ) -> None:
        if not isinstance(predicate_fields, list):
            raise TypeError(f"`predicate_fields` must be a list of columns, found {predicate_fields!r}.")
        self._fields, self._function, self._state = predicate_fields, predicate_func, state_arg

    def get_fields(self) -> Collection[str]:
        """Return the columns that the predicate reads."""
        return set(self._fields)

    def do_include(self, values: Any) -> Any:
        """Return True for rows to read."""
        state = () if self._state is None else (self._state,)
        return self._function(*(values[name] for name in self._fields), *state)


class in_negate(PredicateBase):  # noqa: N801
    """Rows that another predicate rejects.

    Examples:
        >>> chosen = in_negate(in_set({0}, "label"))
        >>> with make_batch_reader("file:///data/rows.parquet", num_epochs=1, predicate=chosen) as reader:
        ...     sorted(next(reader).id.tolist())
        [1, 3, 5, 7, 9]
    """

    def __init__(self, predicate: PredicateBase) -> None:
        self._predicate = predicate

    def get_fields(self) -> Collection[str]:
        """Return the columns that the predicate reads."""
        return self._predicate.get_fields()

    def do_include(self, values: Any) -> Any:
        """Return True for rows to read."""
        return ~self._predicate.do_include(values).astype(bool)


class in_reduce(PredicateBase):  # noqa: N801
    """Rows for which `reduce_func` (`all`, `any`, or your own) of the results of several predicates is true.

    Examples:
        >>> chosen = in_reduce([in_set({1}, "label"), in_set(range(20), "id")], all)
        >>> with make_batch_reader("file:///data/rows.parquet", num_epochs=1, predicate=chosen) as reader:
        ...     sorted(next(reader).id.tolist())
        [1, 3, 5, 7, 9]
    """

    def __init__(self, predicate_list: Sequence[PredicateBase], reduce_func: Callable[[Sequence[bool]], bool]) -> None:
        self._predicates, self._reduce = list(predicate_list), reduce_func

    def get_fields(self) -> Collection[str]:
        """Return the columns that the predicate reads."""
        return {name for predicate in self._predicates for name in predicate.get_fields()}

    def do_include(self, values: Any) -> Any:
        """Return True for rows to read."""
        results = [predicate.do_include(values) for predicate in self._predicates]
        rows = [bool(self._reduce([bool(each) for each in row])) for row in zip(*results, strict=True)]
        return type(results[0])(rows, index=values.index, dtype=bool)


class in_pseudorandom_split(PredicateBase):  # noqa: N801
    """Rows of one part of a split by the hash of a column; each value is in the same part as in Petastorm.

    `fraction_list` has the sizes of the parts, such as [0.8, 0.2]; `subset_index` counts from 0.

    Examples:
        >>> training = in_pseudorandom_split([0.8, 0.2], 0, "id")
        >>> validation = in_pseudorandom_split([0.8, 0.2], 1, "id")
    """

    def __init__(self, fraction_list: Sequence[float], subset_index: int, predicate_field: str) -> None:
        if not 0 <= subset_index < len(fraction_list):
            raise ValueError(f"`subset_index` is {subset_index}, expected one of {len(fraction_list)} parts.")
        self._field = predicate_field
        low, high = sum(fraction_list[:subset_index]), sum(fraction_list[: subset_index + 1])
        self._low, self._high = low * (sys.maxsize - 1), high * (sys.maxsize - 1)

    def get_fields(self) -> Collection[str]:
        """Return the columns that the predicate reads."""
        return {self._field}

    def do_include(self, values: Any) -> Any:
        """Return True for rows to read."""
        return values[self._field].map(lambda value: self._low <= _bucket(str(value)) < self._high).astype(bool)


def _bucket(text: str) -> int:
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16) % sys.maxsize
