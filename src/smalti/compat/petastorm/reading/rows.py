"""Rows by number, as columns of numpy arrays: gathered from row groups, which an LRU cache keeps in limited memory.

A predicate or filters select rows when a reader is opened, so that steps are counted exactly.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from smalti.compat.petastorm.reading.parquet import ParquetSet
from smalti.compat.petastorm.transform import RowTransform, transform_schema
from smalti.compat.petastorm.unischema import Unischema, UnischemaField, fits_shape, stored_schema
from smalti.dataset.order import RunOrder
from smalti.errors import SchemaError, SmaltiError
from smalti.world import World

Rows = NDArray[np.int64]
_ROW = "__smalti_row__"
Ids = NDArray[np.int64]
Columns = dict[str, np.ndarray[Any, Any]]
"""Array by column name. The first axis is the row; dtype object for text, bytes, and values of different shapes."""


class RowGroupCache:
    """An LRU cache of the results of `load(number)`. Thread-safe.

    It keeps at most `limit` bytes, or a single value that is larger. In addition there is memory for the values that
    callers still use and, per thread, one value that is being loaded. Threads that need a value which another thread
    loads wait for that thread.
    """

    def __init__(self, load: Callable[[int], Any], *, limit: int, timeout: float) -> None:
        self._load, self._limit, self._timeout = load, limit, timeout
        self._kept: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._loading: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self.bytes_held = 0
        """Bytes in the cache."""
        self.most_held = 0
        """Maximum of `bytes_held` so far."""
        self.loads = 0
        """Number of loaded values so far."""

    def get(self, number: int) -> Any:
        """Return the value; an exception of `load` is raised in every thread that waits for the value.

        Raises:
            SmaltiError: another thread loads the value and did not finish within the timeout.
        """
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number][0]
            future = self._loading.get(number)
            if future is None:
                own: Future[Any] = Future()
                self._loading[number] = own
        if future is None:
            return self._loaded(number, own)
        try:
            return future.result(self._timeout)
        except FutureTimeout as error:
            raise SmaltiError(
                f"row group {number} was not loaded after {self._timeout:g} s: the store hangs or is slow; "
                "give the reader a longer `timeout`.",
                row_group=number,
            ) from error

    def _loaded(self, number: int, future: "Future[Any]") -> Any:
        try:
            value = self._load(number)
            size = _num_bytes(value)
        except BaseException as error:
            with self._lock:
                del self._loading[number]
            future.set_exception(error)
            raise
        with self._lock:
            del self._loading[number]
            self._kept[number] = (value, size)
            self.bytes_held += size
            self.loads += 1
            while self.bytes_held > self._limit and len(self._kept) > 1:
                _, (_, evicted) = self._kept.popitem(last=False)
                self.bytes_held -= evicted
            self.most_held = max(self.most_held, self.bytes_held)
        future.set_result(value)
        return value

    def clear(self) -> None:
        """Evict everything."""
        with self._lock:
            self._kept.clear()
            self.bytes_held = 0


def _num_bytes(value: Any) -> int:
    """Return the bytes in memory of a table, or of columns."""
    if isinstance(value, pa.Table):
        return int(value.get_total_buffer_size())
    return sum(
        values.nbytes if values.dtype != object else sum(getattr(each, "nbytes", 64) for each in values)
        for values in value.values()
    )


@dataclass(frozen=True)
class ReaderOptions:
    """Options for reading, transforming, ordering and dividing rows."""

    columns: tuple[str, ...]
    transform: RowTransform | None
    per_row_group: bool
    """True if the transform gets whole row groups, whose results are cached; otherwise the rows of a batch."""
    held_bytes: int
    """Limit of the row group cache, in bytes."""
    order: RunOrder
    """The user's choices."""
    world: World
    batch_size: int
    num_epochs: int | None
    """None: repeat without end."""
    first_epoch: int | None
    """None: continue after the epochs that earlier readers of this process started."""
    num_threads: int
    """0: read in the consumer's thread."""
    num_ahead: int
    timeout: float
    """Seconds to wait for a batch, and for a row group that another thread loads."""
    include_ids: bool = False
    """True if batches contain the id and the position of each row."""


class RowReader:
    """The selected rows of a data set (`kept`, by row group; None for all), numbered over all row groups. Thread-safe.

    `load` reads the columns of a row group, e.g. through a disk cache; by default from the data set.
    """

    def __init__(
        self,
        found: ParquetSet,
        kept: Sequence[Rows | None],
        options: ReaderOptions,
        load: Callable[[int], pa.Table] | None = None,
    ) -> None:
        self.found, self.options, self._kept = found, options, tuple(kept)
        self.sizes: Ids = np.array(
            [group.num_rows if rows is None else rows.size for group, rows in zip(found.row_groups, kept, strict=True)],
            dtype=np.int64,
        )
        self._ends = np.cumsum(self.sizes)
        self.digest = _selection_digest(found.digest, self._kept)
        stored = stored_schema(pa.schema([found.schema.field(name) for name in options.columns]))
        self.schema: Unischema = stored if options.transform is None else transform_schema(stored, options.transform)
        self.per_row_group = options.per_row_group and options.transform is not None
        """True if what is cached is the transformed rows of a whole row group."""
        self._load = load or (lambda number: found.read(number, options.columns))
        self.held = RowGroupCache(self._loaded, limit=options.held_bytes, timeout=options.timeout)
        groups = [group for group in found.row_groups if group.num_rows]
        self.group_bytes = max(1, sum(group.num_bytes for group in groups) // max(1, len(groups)))
        """Mean bytes of a row group, from the footers."""

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def rows(self, ids: Ids) -> Columns:
        """Return the columns of these rows, in this order, transformed.

        Raises:
            SmaltiError: a file is missing, changed or damaged, or the transform returned other columns than declared.
            Exception: the transform failed.
        """
        order = _inverse(ids)
        if self.per_row_group:
            parts = [taken(self.held.get(group), at) for group, at in self._by_group(ids)]
            joined = {name: _concatenated([part[name] for part in parts]) for name in parts[0]}
            return joined if order is None else taken(joined, order)
        table = pa.concat_tables([self.held.get(group).take(pa.array(at)) for group, at in self._by_group(ids)])
        if order is not None:
            table = table.take(pa.array(order))
        if self.options.transform is not None:
            return self._transformed(table, self.options.transform)
        return {name: _values(_one(column)) for name, column in zip(table.column_names, table.columns, strict=True)}

    def _by_group(self, ids: Ids) -> list[tuple[int, Ids]]:
        """Return the row groups of these rows, and the row numbers within each, ascending by row."""
        ordered = np.sort(ids, kind="stable")
        groups = np.searchsorted(self._ends, ordered, side="right")
        cuts = np.flatnonzero(np.diff(groups)) + 1
        parts = []
        for rows, group in zip(np.split(ordered, cuts), groups[np.concatenate(([0], cuts))], strict=True):
            at, kept = rows - (self._ends[group] - self.sizes[group]), self._kept[group]
            # The result of a transform of a row group contains only the selected rows.
            parts.append((int(group), at if kept is None or self.per_row_group else kept[at]))
        return parts

    def _loaded(self, group: int) -> Any:
        table, kept = self._load(group), self._kept[group]
        if not self.per_row_group or self.options.transform is None:
            return table
        return self._transformed(table if kept is None else table.take(pa.array(kept)), self.options.transform)

    def _transformed(self, table: pa.Table, spec: RowTransform) -> Columns:
        frame = table.to_pandas()
        result = frame if spec.func is None else spec.func(frame)
        removed = set(spec.removed_fields) | (
            set() if spec.selected_fields is None else set(frame.columns) - set(spec.selected_fields)
        )
        result = result.drop(columns=[name for name in result.columns if name in removed])
        return _frame_columns(result, self.schema, table.num_rows)


def _selection_digest(digest: str, kept: Sequence[Rows | None]) -> str:
    """Return the digest of a data set with this selection; the digest of the set itself if all rows are selected."""
    if all(rows is None for rows in kept):
        return digest
    selection = hashlib.sha256(digest.encode())
    for rows in kept:
        selection.update(b"all" if rows is None else rows.size.to_bytes(8, "little") + rows.tobytes())
    return selection.hexdigest()


def _inverse(ids: Ids) -> Ids | None:
    """Return the rank of each id in sorted order; None if the ids are sorted already."""
    if ids.size < 2 or bool((np.diff(ids) >= 0).all()):
        return None
    places = np.empty(ids.size, dtype=np.int64)
    places[np.argsort(ids, kind="stable")] = np.arange(ids.size)
    return places


# ------------------------------------------------------------------ selection of rows


def kept_rows(found: ParquetSet, *, predicate: Any, filters: Any, num_threads: int) -> list[Rows | None]:
    """Return the selected rows of each row group, ascending; None for all rows.

    Only the columns that `predicate` and `filters` use are read.

    Raises:
        SchemaError: they use an unknown column, or the predicate does not return one bool per row.
        ValueError: `filters` are not in pyarrow's form.
    """
    tests: list[tuple[list[str], Callable[[pa.Table], Rows]]] = []
    if filters is not None:
        columns = sorted(_columns_in(filters))
        expression = pq.filters_to_expression(filters)
        tests.append((columns, lambda table: _matching(table, expression)))
    if predicate is not None:
        tests.append((sorted(predicate.get_fields()), lambda table: _included(table, predicate)))
    for columns, _ in tests:
        if not columns:
            raise SchemaError("`predicate` uses no column: its `get_fields` must return at least one.")
        missing = [name for name in columns if name not in found.schema.names]
        if missing:
            raise SchemaError(
                f"`predicate` or `filters` use column {missing[0]!r}, but {found.source.url} has "
                f"{', '.join(found.schema.names)}.",
                column=missing[0],
            )
    with ThreadPoolExecutor(max(1, num_threads), "smalti-predicate") as pool:
        return list(pool.map(lambda number: _kept(found, number, tests), range(len(found.row_groups))))


def _kept(found: ParquetSet, number: int, tests: Iterable[tuple[list[str], Callable[[pa.Table], Rows]]]) -> Rows | None:
    kept: Rows | None = None
    for columns, test in tests:
        rows = test(found.read(number, columns))
        kept = rows if kept is None else np.intersect1d(kept, rows, assume_unique=True)
    return None if kept is None or kept.size == found.row_groups[number].num_rows else kept


def _columns_in(filters: Any) -> set[str]:
    try:
        groups = [filters] if isinstance(filters[0][0], str) else filters
        return {name for group in groups for name, _, _ in group}
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise ValueError(
            "`filters` must be a list of (column, operator, value), or a list of such lists, found " + repr(filters)
        ) from error


def _matching(table: pa.Table, expression: Any) -> Rows:
    numbered = table.append_column(_ROW, pa.array(np.arange(table.num_rows, dtype=np.int64)))
    rows: Rows = numbered.filter(expression)[_ROW].to_numpy()
    return rows


def _included(table: pa.Table, predicate: Any) -> Rows:
    result = predicate.do_include(table.to_pandas())
    array = np.asarray(result)
    if array.shape != (table.num_rows,) or array.dtype != np.bool_:
        raise SchemaError(
            f"`predicate` returned {type(result).__name__} of shape {array.shape} and type {array.dtype} for "
            f"{table.num_rows} rows of {', '.join(table.column_names)}; expected a Series of bools, one per row: "
            "a predicate is called with a pandas DataFrame, not with one row."
        )
    return np.flatnonzero(array).astype(np.int64)


# ------------------------------------------------------------------ columns


def taken(columns: Columns, rows: Any) -> Columns:
    """Return rows of the columns: a view for a slice, a copy for row numbers."""
    return {name: values[rows] for name, values in columns.items()}


def _concatenated(arrays: list[Any]) -> Any:
    """Concatenate arrays; the result has dtype object if row groups hold values of different shapes."""
    if len(arrays) == 1:
        return arrays[0]
    if any(each.dtype == object or each.shape[1:] != arrays[0].shape[1:] for each in arrays):
        return _objects([value for each in arrays for value in each])
    return np.concatenate(arrays)


def _one(column: pa.ChunkedArray) -> pa.Array:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _values(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return an array: numbers, times and lists of equal length as numbers; text, bytes and decimals as objects."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(array)
    is_whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind)
    if pa.types.is_floating(kind) or ((is_whole or is_time) and not array.null_count):
        return _writable(array.to_numpy(zero_copy_only=False))
    return _objects(array.to_pylist())


def _lists(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return one array with a row per list if all have the same length; else an array of arrays."""
    if array.null_count:
        return _objects([None if each is None else np.asarray(each) for each in array.to_pylist()])
    fixed = pa.types.is_fixed_size_list(array.type)
    inner = _values(array.flatten())
    lengths = np.full(len(array), array.type.list_size) if fixed else array.value_lengths().to_numpy()
    if len(lengths) and (lengths == lengths[0]).all():
        return inner.reshape(len(array), int(lengths[0]), *inner.shape[1:])
    return _objects(np.split(inner, np.cumsum(lengths)[:-1]) if len(lengths) else [])


def _objects(values: list[Any]) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):  # np.array() would unpack lists and arrays
        made[at] = value
    return made


def _writable(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values if values.flags.writeable else values.copy()


def _frame_columns(frame: Any, schema: Unischema, num_rows: int) -> Columns:
    """Return the columns of the result of a transform, checked against its spec.

    Raises:
        SchemaError: other columns, another number of rows, or values of another shape or type than declared.
    """
    names = [str(name) for name in frame.columns]
    if set(names) != set(schema.fields):
        raise SchemaError(
            f"transformed result columns ({', '.join(names)}) do not match the declared ones "
            f"({', '.join(schema.fields)}): list new columns in `edit_fields` and removed ones in `removed_fields`."
        )
    if len(frame) != num_rows:
        raise SchemaError(
            f"`TransformSpec.func` returned {len(frame)} rows for {num_rows}: ranks could not take equally many steps. "
            "Select rows with `predicate` or `filters` instead."
        )
    return {name: _declared(frame[name], field) for name, field in schema.fields.items()}


def _declared(series: Any, field: UnischemaField) -> np.ndarray[Any, Any]:
    values = series.to_numpy()
    if values.dtype == object and len(values) and isinstance(values[0], np.ndarray | list | tuple):
        rows = [np.asarray(value) for value in values]
        for row in rows:
            if not fits_shape(row.shape, field.shape):
                raise SchemaError(
                    f"column {field.name!r} of the transformed rows holds a value of shape {row.shape}, declared is "
                    f"{field.shape}: declare the column with its shape in `edit_fields`.",
                    column=field.name,
                )
        if any(row.shape != rows[0].shape for row in rows):
            return _objects(rows)
        values = np.stack(rows)
    declared = field.numpy_dtype
    is_type = isinstance(declared, np.dtype) or (isinstance(declared, type) and issubclass(declared, np.generic))
    dtype = np.dtype(declared) if is_type else values.dtype
    if values.dtype == dtype or dtype.kind not in "biufc":
        return _writable(values)
    if values.dtype == object or not np.can_cast(values.dtype, dtype, "same_kind"):
        raise SchemaError(
            f"column {field.name!r} of the transformed rows holds {values.dtype}, declared is {dtype}: return values "
            "of that type, or declare the returned type in `edit_fields`.",
            column=field.name,
        )
    return np.asarray(values.astype(dtype))
