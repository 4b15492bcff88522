"""Rows by number, gathered for whole batches from row groups that are held open within a bound of bytes.

Row groups that are being read from: loaded once, kept by latest use within a bound of bytes.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from smalti.compat.petastorm.parquet import ParquetSet
from smalti.compat.petastorm.selection import Rows, selection_digest
from smalti.compat.petastorm.transform import RowTransform
from smalti.compat.petastorm.unischema import (
    Columns,
    Schema,
    arrow_columns,
    frame_columns,
    stored_schema,
    taken,
    transformed_schema,
)
from smalti.errors import SmaltiError


class Held:
    """What `load(number)` returned, for the numbers used last. Thread-safe.

    Kept are at most `limit` bytes, or one value where that alone has more; beside them, what callers still use and
    what is being loaded, one for each thread at most. Threads that want the same number wait for the one that loads it.
    """

    def __init__(
        self, load: Callable[[int], Any], num_bytes: Callable[[Any], int], *, limit: int, timeout: float
    ) -> None:
        self._load, self._num_bytes, self._limit, self._timeout = load, num_bytes, limit, timeout
        self._kept: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._flying: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self.bytes_held = 0
        """Bytes kept now."""
        self.most_held = 0
        """Bytes kept at most so far."""
        self.loads = 0
        """Values loaded so far."""

    def get(self, number: int) -> Any:
        """The value; what loading it raised is raised, in every thread that wanted it.

        Raises:
            SmaltiError: another thread loads it, and was not done within the timeout.
        """
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number][0]
            flight = self._flying.get(number)
            if flight is None:
                mine: Future[Any] = Future()
                self._flying[number] = mine
        if flight is None:
            return self._loaded(number, mine)
        try:
            return flight.result(self._timeout)
        except WaitedTooLong as error:
            raise SmaltiError(
                f"row group {number} was not loaded after {self._timeout:g} s: the store hangs, or reading it takes "
                "longer; give the reader a longer `timeout`.",
                row_group=number,
            ) from error

    def _loaded(self, number: int, flight: "Future[Any]") -> Any:
        try:
            value = self._load(number)
            size = self._num_bytes(value)
        except BaseException as error:
            with self._lock:
                del self._flying[number]
            flight.set_exception(error)
            raise
        with self._lock:
            del self._flying[number]
            self._kept[number] = (value, size)
            self.bytes_held += size
            self.loads += 1
            while self.bytes_held > self._limit and len(self._kept) > 1:
                _, (_, gone) = self._kept.popitem(last=False)
                self.bytes_held -= gone
            self.most_held = max(self.most_held, self.bytes_held)
        flight.set_result(value)
        return value

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._kept.clear()
            self.bytes_held = 0


Ids = NDArray[np.int64]


@dataclass(frozen=True)
class RowOptions:
    """What is read of each row, and what is done with it."""

    columns: tuple[str, ...]
    transform: RowTransform | None
    per_row_group: bool
    """Whether the transform gets whole row groups, whose results are then held; otherwise the rows of a batch."""
    held_bytes: int
    """Bytes of row groups that are held open."""
    timeout: float
    """Seconds to wait for a row group that another thread loads."""


class RowReader:
    """The rows of a data set, numbered over all row groups, those left out by a predicate not counted. Thread-safe.

    Args:
        found: the data set.
        kept: of each row group, which rows there are; None for all.
        options: columns, transform, bounds.
        load: reads a row group's columns, such as through a cache; by default from the data set.
    """

    def __init__(
        self,
        found: ParquetSet,
        kept: Sequence[Rows | None],
        options: RowOptions,
        load: Callable[[int], pa.Table] | None = None,
    ) -> None:
        self.found, self.options, self._kept = found, options, tuple(kept)
        self.sizes: Ids = np.array(
            [group.num_rows if rows is None else rows.size for group, rows in zip(found.row_groups, kept, strict=True)],
            dtype=np.int64,
        )
        self._ends = np.cumsum(self.sizes)
        self.digest = selection_digest(found.digest, self._kept)
        stored = stored_schema(pa.schema([found.schema.field(name) for name in options.columns]))
        self.schema: Schema = stored if options.transform is None else transformed_schema(stored, options.transform)
        self._load = load or (lambda number: found.read(number, options.columns))
        size = _columns_bytes if options.per_row_group else _table_bytes
        self.held = Held(self._loaded, size, limit=options.held_bytes, timeout=options.timeout)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    @property
    def group_bytes(self) -> int:
        """Bytes of a row group as its footer says, on average over rows."""
        groups = [group for group in self.found.row_groups if group.num_rows]
        return max(1, sum(group.num_bytes for group in groups) // max(1, len(groups)))

    def rows(self, ids: Ids) -> Columns:
        """The columns of these rows, in this order, transformed.

        Raises:
            SmaltiError: a file is gone, changed or damaged, or the transform broke its word.
            Exception: what the transform raised.
        """
        if self._per_row_group:
            return _joined([taken(self.held.get(group), at) for group, at in self._by_group(ids)], _inverse(ids))
        table = self._table(ids)
        if self.options.transform is None:
            return arrow_columns(table)
        return self._transformed(table)

    @property
    def _per_row_group(self) -> bool:
        return self.options.per_row_group and self.options.transform is not None

    def _by_group(self, ids: Ids) -> list[tuple[int, Ids]]:
        """The row groups that these rows lie in, and the rows' numbers in each, ascending by row."""
        ordered = np.sort(ids, kind="stable")
        groups = np.searchsorted(self._ends, ordered, side="right")
        cuts = np.flatnonzero(np.diff(groups)) + 1
        parts = []
        for rows, group in zip(np.split(ordered, cuts), groups[np.concatenate(([0], cuts))], strict=True):
            at, kept = rows - (self._ends[group] - self.sizes[group]), self._kept[group]
            # What a transform left of a row group has only the kept rows.
            parts.append((int(group), at if kept is None or self._per_row_group else kept[at]))
        return parts

    def _table(self, ids: Ids) -> pa.Table:
        parts = [self.held.get(group).take(pa.array(at)) for group, at in self._by_group(ids)]
        table = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
        order = _inverse(ids)
        return table if order is None else table.take(pa.array(order))

    def _loaded(self, group: int) -> Any:
        table = self._load(group)
        if not self._per_row_group:
            return table
        kept = self._kept[group]
        return self._transformed(table if kept is None else table.take(pa.array(kept)))

    def _transformed(self, table: pa.Table) -> Columns:
        spec = self.options.transform
        assert spec is not None  # noqa: S101 -- for the type checker: both callers have looked
        frame = table.to_pandas()
        result = frame if spec.func is None else spec.func(frame)
        gone = set(spec.removed_fields) | (
            set() if spec.selected_fields is None else set(frame.columns) - set(spec.selected_fields)
        )
        result = result.drop(columns=[name for name in result.columns if name in gone])
        return frame_columns(result, self.schema, table.num_rows)


def _inverse(ids: Ids) -> Ids | None:
    """Where each of these ids stands among them sorted; None where they are sorted."""
    if ids.size < 2 or bool((np.diff(ids) >= 0).all()):
        return None
    places = np.empty(ids.size, dtype=np.int64)
    places[np.argsort(ids, kind="stable")] = np.arange(ids.size)
    return places


def _joined(parts: list[Columns], order: Ids | None) -> Columns:
    joined = {name: _together([part[name] for part in parts]) for name in parts[0]}
    return joined if order is None else taken(joined, order)


def _together(arrays: list[Any]) -> Any:
    """Arrays one after the other; of objects where row groups hold values of different shapes."""
    if len(arrays) == 1:
        return arrays[0]
    if any(each.dtype == object or each.shape[1:] != arrays[0].shape[1:] for each in arrays):
        made = np.empty(sum(map(len, arrays)), dtype=object)
        for at, value in enumerate(value for each in arrays for value in each):
            made[at] = value
        return made
    return np.concatenate(arrays)


def _table_bytes(table: pa.Table) -> int:
    return int(table.get_total_buffer_size())


def _columns_bytes(columns: Any) -> int:
    if isinstance(columns, pa.Table):
        return _table_bytes(columns)
    return sum(
        values.nbytes if values.dtype != object else sum(getattr(each, "nbytes", 64) for each in values)
        for values in columns.values()
    )
