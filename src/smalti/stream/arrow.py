"""ArrowReader: the samples of a shard set as Arrow batches, shard by shard, for programs that copy whole sets.

Shards are fetched one at a time to a temporary folder, verified, and removed: nothing is kept in the cache. Reading in
the order of an epoch is `opened.OpenStreams`'.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from smalti.catalog.verify import open_checked
from smalti.errors import FormatError, SchemaError
from smalti.format import AnyShard, ShardInfo, parse_encoding
from smalti.format.encodings.numbers import NdArray
from smalti.format.logical import MASK_SUFFIX
from smalti.format.reading.arrow import ArrowColumn, Stored, schema_of, stored_columns, value_columns
from smalti.storage import Store
from smalti.stream.shard_set import ShardSet

BATCH_BYTES = 16 << 20
"""Stored bytes of the samples of a batch, about."""
Rows = NDArray[np.int64]
"""Numbers of samples, in a shard or in the set."""


@dataclass(frozen=True)
class RowSpan:
    """Consecutive samples of one shard."""

    shards: tuple[ShardInfo, ...]
    """The shard, and the shards of added columns that are aligned with it."""
    begin: int
    end: int
    first_row: int
    """Number of the span's first sample in the set, or in the split."""

    @property
    def num_bytes(self) -> int:
        """Uncompressed bytes of the samples, about."""
        whole = sum(shard.raw.num_bytes for shard in self.shards)
        return whole * (self.end - self.begin) // max(1, self.shards[0].samples)


def spans_of(found: ShardSet) -> list[RowSpan]:
    """Return the samples of a set, one span for each shard that has some."""
    spans, row = [], 0
    for place, shard in enumerate(found.shards):
        if shard.samples:
            spans.append(RowSpan(tuple(part.shards[place] for part in found.parts), 0, shard.samples, row))
        row += shard.samples
    return spans


def group_spans(spans: Sequence[RowSpan], size_limit: int, overhead: int = 0) -> list[list[RowSpan]]:
    """Return groups of neighbouring spans; a span that is larger than a group is divided.

    Args:
        spans: Samples in order.
        size_limit: Most bytes of the samples of a group, uncompressed and about: an average of each shard counts.
        overhead: Bytes to add for each sample.
    """
    groups: list[list[RowSpan]] = []
    free = 0
    for span in spans:
        count = span.end - span.begin
        pieces = max(1, min(count, -(-(span.num_bytes + overhead * count) // size_limit)))  # a sample is never cut
        for begin, end in pairwise(span.begin + count * number // pieces for number in range(pieces + 1)):
            piece = replace(span, begin=begin, end=end, first_row=span.first_row + begin - span.begin)
            size = piece.num_bytes + overhead * (end - begin)
            if size > free:
                groups.append([])
                free = size_limit
            groups[-1].append(piece)
            free -= size
    return groups


class RowFilter(Protocol):
    """A condition on columns, by which samples are chosen before the other columns are read."""

    @property
    def names(self) -> Sequence[str]:
        """The columns that it compares."""

    def mask_of(self, columns: Mapping[str, pa.Array]) -> NDArray[np.bool_]:
        """Return which samples are chosen, bool, shape (rows,)."""


@dataclass(frozen=True)
class ArrowReader:
    """Reader of the spans of one set; can be pickled, and is small."""

    store: Store
    encodings: Mapping[str, str]
    logical: Mapping[str, Any]
    names: tuple[str, ...] | None = None
    """Columns to read, in this order; None for all."""
    as_stored: bool = False
    """True for the values as stored, False for the values that they represent."""
    first_arrays: Mapping[str, np.ndarray[Any, Any] | None] | None = None
    """By name of a column whose encoding does not say the number of axes: an empty array like its first one."""

    @classmethod
    def of(
        cls,
        found: ShardSet,
        names: Sequence[str] | None = None,
        *,
        as_stored: bool = False,
        first_arrays: Mapping[str, Any] | None = None,
    ) -> "ArrowReader":
        """Return the reader of a set; fetches the first shards if only their arrays say how many axes they have.

        `first_arrays` are those of another reader of this version.

        Raises:
            SchemaError: there is no such column, one has no form in Arrow, or shards have different columns.
            SmaltiError: a shard cannot be read.
        """
        chosen = None if names is None else tuple(names)
        plain = cls(found.store, found.columns, found.logical_types, chosen, as_stored)
        plain._check_columns(found)
        known = dict(first_arrays or {})
        candidates = () if as_stored else found.columns if chosen is None else chosen
        unclear = [name for name in candidates if name not in known and _has_unknown_axes(found.columns.get(name, ""))]
        known |= _first_arrays(found, unclear) if unclear else {}
        reader = replace(plain, first_arrays=known)
        _ = reader.columns
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.store, self.encodings, self.logical, self.names, self.as_stored, self.first_arrays)
        return type(self), parts  # columns have functions

    @cached_property
    def columns(self) -> list[ArrowColumn]:
        """The columns and their conversion."""
        if self.as_stored:
            return stored_columns(self.encodings, self.logical)
        return value_columns(self.encodings, self.logical, (self.first_arrays or {}).get, self.names)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return schema_of(self.columns)

    def batches(self, span: RowSpan, max_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield the samples of a span in order.

        Raises:
            ChecksumMismatch, FormatError, StoreNotFound: as `open_checked` does.
            SchemaError: a value does not fit its Arrow type.
        """
        return (batch for _, batch in self.chosen(span, None, max_bytes))

    def chosen(
        self, span: RowSpan, condition: RowFilter | None, max_bytes: int = BATCH_BYTES
    ) -> Iterator[tuple[Rows, pa.RecordBatch]]:
        """Yield the samples of a span that a condition chooses, with their numbers in the set; else as `batches`."""
        early = [column for column in self.columns if condition is not None and column.name in condition.names]
        late = [column for column in self.columns if column not in early]
        with self._opened(span) as shards:
            for step in self._steps(span, max_bytes):
                rows, numbers = step, step + (span.first_row - span.begin)
                try:
                    arrays = _values(early, shards, rows)
                    if condition is not None:
                        kept = np.flatnonzero(condition.mask_of(arrays))
                        arrays = {name: array.take(pa.array(kept)) for name, array in arrays.items()}
                        rows, numbers = rows[kept], numbers[kept]
                    if rows.size:
                        arrays |= _values(late, shards, rows)
                except (SchemaError, FormatError) as error:
                    where = f"{self.store.locate(span.shards[0].raw.basename)}, samples from {step[0]} on"
                    raise type(error)(f"{where}: {error.message}", **error.facts) from error
                if rows.size:
                    ordered = [arrays[column.name] for column in self.columns]
                    yield numbers, pa.RecordBatch.from_arrays(ordered, schema=self.schema)

    def gathered(self, span: RowSpan, max_bytes: int = BATCH_BYTES) -> Iterator[tuple[int, dict[str, Stored]]]:
        """Yield the number of each batch's first sample, and its stored columns."""
        with self._opened(span) as shards:
            for rows in self._steps(span, max_bytes):
                yield span.first_row + int(rows[0]) - span.begin, _stored(self.columns, shards, rows)

    def _steps(self, span: RowSpan, max_bytes: int) -> Iterator[Rows]:
        """Yield the rows of each batch in the shard."""
        step = max(1, max_bytes * (span.end - span.begin) // max(1, span.num_bytes))
        for begin in range(span.begin, span.end, step):
            yield np.arange(begin, min(span.end, begin + step))

    @contextmanager
    def _opened(self, span: RowSpan) -> Iterator[list[AnyShard]]:
        with ExitStack() as stack:
            yield [stack.enter_context(open_checked(self.store, shard)) for shard in span.shards]

    def _check_columns(self, found: ShardSet) -> None:
        """Check that all shards have the columns to read, and no others if all are read.

        Raises:
            SchemaError: one does not, as in an index that was put together of two sets.
        """
        names = self.encodings if self.names is None else {*self.names, *(name + MASK_SUFFIX for name in self.names)}
        wanted = {name: encoding for name, encoding in self.encodings.items() if name in names}
        known: set[tuple[int, ...]] = set()
        for span in spans_of(found):
            schemas = tuple(id(shard.schema) for shard in span.shards)
            if schemas in known:
                continue
            known.add(schemas)
            columns: dict[str, str] = {}
            for shard in span.shards:
                columns |= shard.schema.columns()
            others = {name for name in wanted if columns.get(name) != wanted[name]}
            others |= set() if self.names is not None or found.stored_names is not None else set(columns) - set(wanted)
            if others:
                raise SchemaError(
                    f"{self.store.locate(span.shards[0].raw.basename)} has the columns {_listed(columns)}, and the set "
                    f"{_listed(wanted)}: {', '.join(sorted(others))} differ. Name columns that are the same in all "
                    "shards in `columns`, or write the rows with one schema",
                    column=min(others),
                )


def _has_unknown_axes(encoding: str) -> bool:
    """Return whether an encoding is of arrays and does not say how many axes they have."""
    codec = parse_encoding(encoding) if encoding.startswith("ndarray") else None
    return isinstance(codec, NdArray) and codec.shape is None


def _first_arrays(opened: ShardSet, names: Sequence[str]) -> dict[str, Any]:
    """Return an empty array like the first one of each of these columns; None if all are null."""
    found: dict[str, Any] = dict.fromkeys(names)
    for info in (info for span in spans_of(opened) for info in span.shards):
        columns = info.schema.columns()
        missing = [name for name in names if name in columns and found[name] is None]
        if not missing:
            continue
        with open_checked(opened.store, info) as shard:
            for name in missing:
                row, mask = 0, name + MASK_SUFFIX
                if mask in columns:
                    is_null = np.asarray(shard.gather(np.arange(len(shard)), [mask])[mask])
                    row = int(np.argmin(is_null))
                    if is_null[row]:
                        continue
                array = shard.batch(np.array([row]))[name][0]
                found[name] = np.empty((0,) * array.ndim, array.dtype)
    return found


def _values(columns: Sequence[ArrowColumn], shards: Sequence[AnyShard], rows: Rows) -> dict[str, pa.Array]:
    stored = _stored(columns, shards, rows) if columns else {}
    return {column.name: column.array(stored) for column in columns}


def _stored(columns: Sequence[ArrowColumn], shards: Sequence[AnyShard], rows: Rows) -> dict[str, Stored]:
    wanted = {name for column in columns for name in column.stored_names}
    stored: dict[str, Stored] = {}
    for shard in shards:
        stored |= shard.gather(rows, [name for name in shard.info.schema.names if name in wanted])
    return stored


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({encoding})" for name, encoding in columns.items())
