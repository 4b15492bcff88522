"""Rows by number, as columns of numpy arrays: gathered from row groups, which an LRU cache keeps in limited memory.

With `cache_type="local-disk"`, a second cache keeps row groups in a folder. A predicate or filters select rows when a
reader is opened, so that steps are counted exactly.
"""

import hashlib
import os
import secrets
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from smalti.compat.petastorm.reading.parquet import ParquetSet
from smalti.compat.petastorm.transform import RowTransform, transform_schema
from smalti.compat.petastorm.unischema import Unischema, UnischemaField, fits_shape, stored_schema
from smalti.dataset.order import RunOrder
from smalti.errors import SchemaError, SmaltiError
from smalti.regular_files import read_regular
from smalti.world import World

_ROW = "__smalti_row__"
_SUFFIX = ".arrow"
_TEMPORARY_SUFFIX = ".tmp"
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
            own: Future[Any] = Future()
            future = self._loading.setdefault(number, own)
        if future is not own:
            try:
                return future.result(self._timeout)
            except FutureTimeout as error:
                raise SmaltiError(
                    f"row group {number} was not loaded after {self._timeout:g} s: the store hangs or is slow; "
                    "give the reader a longer `timeout`.",
                    row_group=number,
                ) from error
        try:
            value = self._load(number)
            size = _num_bytes(value)
        except BaseException as error:
            with self._lock:
                del self._loading[number]
            own.set_exception(error)
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
        own.set_result(value)
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


class DiskCache:
    """Tables by name in one folder, which processes may share; the oldest files are evicted first.

    A table larger than `limit`, the maximal bytes of all files, is not cached.

    Raises:
        ValueError: the folder or the limit is missing, or the limit is less than five rows of `row_bytes` bytes.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | None,
        limit: int | None,
        row_bytes: int | None = None,
        *,
        removes_folder: bool = False,
    ) -> None:
        if location is None or limit is None or limit < 1:
            raise ValueError(
                "cache_type='local-disk' needs `cache_location`, a folder, and `cache_size_limit`, bytes; found "
                f"{location!r} and {limit!r}."
            )
        if row_bytes is not None and limit < 5 * row_bytes:
            raise ValueError(
                f"`cache_size_limit` is {limit} bytes, less than five rows of {row_bytes} bytes; increase it."
            )
        self._folder, self._limit, self._removes = Path(location), limit, removes_folder
        self._lock = threading.Lock()

    def get(self, name: str, fill: Callable[[], pa.Table]) -> pa.Table:
        """Return the table of this name; if it is missing or damaged, call `fill` and cache its result."""
        key = hashlib.sha256(name.encode()).hexdigest()
        for path in self._folder.glob(f"{key}-*{_SUFFIX}"):
            try:
                data = read_regular(path)
            except FileNotFoundError:  # another process evicted it
                continue
            if path.name == _file_name(key, data):
                return pa.ipc.open_file(pa.BufferReader(data)).read_all()
            path.unlink(missing_ok=True)
        table = fill()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        encoded = memoryview(sink.getvalue())
        if len(encoded) <= self._limit:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._lock:
                self._write(_file_name(key, encoded), encoded)
        return table

    def cleanup(self) -> None:
        """Remove the folder if the cache was created with `removes_folder`."""
        if self._removes and self._folder.is_dir():
            shutil.rmtree(self._folder)

    def _write(self, name: str, data: memoryview) -> None:
        """Write a file after the oldest ones were removed, also those that killed processes have left half written."""
        files = []
        for path in (*self._folder.glob(f"*{_SUFFIX}"), *self._folder.glob(f"*{_TEMPORARY_SUFFIX}")):
            with suppress(FileNotFoundError):
                stat = path.stat()
                files.append((stat.st_mtime_ns, stat.st_size, path))
        room = self._limit - len(data) - sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if room >= 0:
                break
            path.unlink(missing_ok=True)
            room += size
        temp = self._folder / f"{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}"
        try:
            temp.write_bytes(data)
            with suppress(FileNotFoundError):  # another process made room
                temp.replace(self._folder / name)
        finally:
            temp.unlink(missing_ok=True)


def _file_name(key: str, data: bytes | memoryview) -> str:
    return f"{key}-{xxhash.xxh3_128_hexdigest(data)}{_SUFFIX}"


@dataclass(frozen=True)
class ReaderOptions:
    """Options for reading, transforming, ordering and dividing rows."""

    columns: tuple[str, ...]
    cache: DiskCache | None
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

    `digest` is that of the data set if all rows are selected, and else of the selection as well.
    """

    def __init__(self, found: ParquetSet, kept: Sequence[Ids | None], options: ReaderOptions) -> None:
        self.found, self.options, self._kept = found, options, tuple(kept)
        self.sizes: Ids = np.array(
            [group.num_rows if rows is None else rows.size for group, rows in zip(found.row_groups, kept, strict=True)],
            dtype=np.int64,
        )
        self._ends = np.cumsum(self.sizes)
        self.digest = found.digest
        if any(rows is not None for rows in kept):
            selection = hashlib.sha256(found.digest.encode())
            for rows in kept:
                selection.update(b"all" if rows is None else rows.size.to_bytes(8, "little") + rows.tobytes())
            self.digest = selection.hexdigest()
        stored = stored_schema(pa.schema([found.schema.field(name) for name in options.columns]))
        self.schema: Unischema = stored if options.transform is None else transform_schema(stored, options.transform)
        self.per_row_group = options.per_row_group and options.transform is not None
        """True if what is cached is the transformed rows of a whole row group."""
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
        places: Ids | None = None
        if ids.size > 1 and bool((np.diff(ids) < 0).any()):
            places = np.empty(ids.size, dtype=np.int64)  # of each id in sorted order
            places[np.argsort(ids, kind="stable")] = np.arange(ids.size)
        ordered = np.sort(ids, kind="stable")
        groups = np.searchsorted(self._ends, ordered, side="right")
        cuts = np.flatnonzero(np.diff(groups)) + 1
        parts: list[Any] = []
        for rows, group in zip(np.split(ordered, cuts), groups[np.concatenate(([0], cuts))].tolist(), strict=True):
            at, kept = rows - (self._ends[group] - self.sizes[group]), self._kept[group]
            # No variable for the row group: it would keep it in memory after the cache has evicted it.
            if self.per_row_group:  # the result of the transform contains only the selected rows
                parts.append(taken(self.held.get(group), at))
            else:
                parts.append(self.held.get(group).take(pa.array(at if kept is None else kept[at])))
        if self.per_row_group:
            joined = {name: _concatenated([part[name] for part in parts]) for name in parts[0]}
            return joined if places is None else taken(joined, places)
        table = pa.concat_tables(parts)
        if places is not None:
            table = table.take(pa.array(places))
        if self.options.transform is not None:
            return self._transformed(table, self.options.transform)
        return {name: _values(_one(column)) for name, column in zip(table.column_names, table.columns, strict=True)}

    def _loaded(self, group: int) -> Any:
        """Return a row group, from the disk cache if it is there; transformed if `per_row_group`."""
        read, cache = partial(self.found.read, group, self.options.columns), self.options.cache
        if cache is None:
            table = read()
        else:
            file, at = self.found.places[group]
            footer = self.found.footers[file]
            name = [self.found.source.url, footer.key, footer.digest, str(at), *self.options.columns]
            table = cache.get("\n".join(name), read)
        if not self.per_row_group or self.options.transform is None:
            return table
        kept = self._kept[group]
        return self._transformed(table if kept is None else table.take(pa.array(kept)), self.options.transform)

    def _transformed(self, table: pa.Table, spec: RowTransform) -> Columns:
        """Return the columns of the result of a transform, checked against its spec.

        Raises:
            SchemaError: other columns, another number of rows, or values of another shape or type than declared.
        """
        frame = table.to_pandas()
        result = frame if spec.func is None else spec.func(frame)
        removed = set(spec.removed_fields)
        if spec.selected_fields is not None:
            removed |= set(frame.columns) - set(spec.selected_fields)
        result = result.drop(columns=[name for name in result.columns if name in removed])
        names = [str(name) for name in result.columns]
        if set(names) != set(self.schema.fields):
            raise SchemaError(
                f"transformed result columns ({', '.join(names)}) do not match the declared ones "
                f"({', '.join(self.schema.fields)}): list new columns in `edit_fields` and removed ones in "
                "`removed_fields`."
            )
        if len(result) != table.num_rows:
            raise SchemaError(
                f"`TransformSpec.func` returned {len(result)} rows for {table.num_rows}: ranks could not take equally "
                "many steps. Select rows with `predicate` or `filters` instead."
            )
        return {name: _declared(result[name], field) for name, field in self.schema.fields.items()}


# ------------------------------------------------------------------ selection of rows


def kept_rows(found: ParquetSet, *, predicate: Any, filters: Any, num_threads: int) -> list[Ids | None]:
    """Return the selected rows of each row group, ascending; None for all rows.

    Only the columns that `predicate` and `filters` use are read.

    Raises:
        SchemaError: they use an unknown column, or the predicate does not return one bool per row.
        ValueError: `filters` are not in pyarrow's form.
    """
    tests: list[tuple[list[str], Callable[[pa.Table], Ids]]] = []
    if filters is not None:
        try:
            groups = [filters] if isinstance(filters[0][0], str) else filters
            names = {name for group in groups for name, _, _ in group}
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise ValueError(
                "`filters` must be a list of (column, operator, value), or a list of such lists, found " + repr(filters)
            ) from error
        tests.append((sorted(names), partial(_matching, pq.filters_to_expression(filters))))
    if predicate is not None:
        tests.append((sorted(predicate.get_fields()), partial(_included, predicate)))
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

    def kept(number: int) -> Ids | None:
        rows: Ids | None = None
        for columns, test in tests:
            selected = test(found.read(number, columns))
            rows = selected if rows is None else np.intersect1d(rows, selected, assume_unique=True)
        return None if rows is None or rows.size == found.row_groups[number].num_rows else rows

    with ThreadPoolExecutor(max(1, num_threads), "smalti-predicate") as pool:
        return list(pool.map(kept, range(len(found.row_groups))))


def _matching(expression: Any, table: pa.Table) -> Ids:
    numbered = table.append_column(_ROW, pa.array(np.arange(table.num_rows, dtype=np.int64)))
    rows: Ids = numbered.filter(expression)[_ROW].to_numpy()
    return rows


def _included(predicate: Any, table: pa.Table) -> Ids:
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
