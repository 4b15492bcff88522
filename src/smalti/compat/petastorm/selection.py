"""Row selection by a predicate or filters, computed when a reader is opened, so that steps are counted exactly."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from smalti.compat.petastorm.parquet import ParquetSet
from smalti.errors import SchemaError

Rows = NDArray[np.int64]
_ROW = "__smalti_row__"


def kept_rows(found: ParquetSet, *, predicate: Any, filters: Any, num_threads: int) -> list[Rows | None]:
    """Return the selected rows of each row group, ascending; None for all rows.

    Only the columns that `predicate` and `filters` use are read.

    Raises:
        SchemaError: they use an unknown column, or the predicate does not return one bool per row.
        ValueError: `filters` are not in pyarrow's form.
    """
    tests: list[tuple[list[str], Callable[[pa.Table], Rows]]] = []
    if filters is not None:
        columns = sorted(_columns(filters))
        expression = pq.filters_to_expression(filters)
        tests.append((columns, lambda table: _matching(table, expression)))
    if predicate is not None:
        tests.append((sorted(predicate.get_fields()), lambda table: _included(table, predicate)))
    for columns, _ in tests:
        _check_columns(found, columns)
    with ThreadPoolExecutor(max(1, num_threads), "smalti-predicate") as pool:
        return list(pool.map(lambda number: _kept(found, number, tests), range(len(found.row_groups))))


def selection_digest(digest: str, kept: Sequence[Rows | None]) -> str:
    """Return the digest of a data set with this selection; the digest of the set itself if all rows are selected."""
    if all(rows is None for rows in kept):
        return digest
    selection = hashlib.sha256(digest.encode())
    for rows in kept:
        selection.update(b"all" if rows is None else rows.size.to_bytes(8, "little") + rows.tobytes())
    return selection.hexdigest()


def _kept(found: ParquetSet, number: int, tests: Iterable[tuple[list[str], Callable[[pa.Table], Rows]]]) -> Rows | None:
    num_rows = found.row_groups[number].num_rows
    kept: Rows | None = None
    for columns, test in tests:
        rows = test(found.read(number, columns))
        kept = rows if kept is None else np.intersect1d(kept, rows, assume_unique=True)
    return None if kept is None or kept.size == num_rows else kept


def _columns(filters: Any) -> set[str]:
    try:
        groups = [filters] if isinstance(filters[0][0], str) else filters
        return {name for group in groups for name, _, _ in group}
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise ValueError(
            "`filters` must be a list of (column, operator, value), or a list of such lists, found " + repr(filters)
        ) from error


def _check_columns(found: ParquetSet, columns: Sequence[str]) -> None:
    if not columns:
        raise SchemaError("`predicate` uses no column: its `get_fields` must return at least one.")
    missing = [name for name in columns if name not in found.schema.names]
    if missing:
        raise SchemaError(
            f"`predicate` or `filters` use column {missing[0]!r}, but {found.source.url} has "
            f"{', '.join(found.schema.names)}.",
            column=missing[0],
        )


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
