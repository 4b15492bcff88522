"""The class by which Spark knows `format("mds")`, and its reader; needs PySpark 4.0 or later.

Reading: the schema of a version, its partitions, and their samples as Arrow batches.

A version is planned once, on the driver: the manifest is read, and a partition gets the entries of its own shards.
Tasks fetch these, verify them and send the columns on; nothing is kept in a cache. The types are Arrow's as
`smalti.format.reading.arrow` restores them, and Spark's as PySpark translates those.
"""

import inspect
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from smalti.catalog import Manifest
from smalti.catalog.sidecars import columns_of
from smalti.catalog.table.shard_table import sizes_of
from smalti.errors import ArgumentError, CatalogError, SchemaError
from smalti.format.reading.arrow import ArrowColumn
from smalti.format.sizes import parse_byte_count
from smalti.spark.mds.options import Parse, flag, names, parse_options, place_of, words
from smalti.spark.mds.writing import WRITE_OPTIONS, ShardSetStreamWriter, ShardSetWriter
from smalti.stream import StreamOptions
from smalti.stream.arrow import ArrowReader, RowSpan, group_spans, spans_of
from smalti.stream.shard_set import ShardSet, find_shard_set, load_shard_set
from smalti.writer.predicate import parse_filters

SAMPLE_ID = "_sample_id"
"""Column with the number of the sample in the version, which `delete` and `add_columns` take."""
_OPTIONS: Mapping[str, Parse] = {
    "version": str,
    "split": str,
    "columns": names,
    "where": words,
    "sample_ids": flag,
    "partition_size": str,
}
_ELSEWHERE = {
    **dict.fromkeys(WRITE_OPTIONS, "it is an option of writing"),
    "tag": "give the tag as `version`",
}
_PARTITION_SIZE = "128mb"
_MAX_DIGITS = 38  # of Spark's decimals
_NEAREST = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20),
    pa.float16(): pa.float32(),
}
"""Arrow types that Spark lacks, and the smallest type of Spark's that holds all of their values."""


@dataclass(frozen=True)
class Pin:
    """The version that a DataFrame reads, once its schema is known."""

    version: int
    """Its number; 0 for a set without versions."""
    digest: str
    first_arrays: Mapping[str, Any] | None = field(default=None, compare=False)
    """Those of its `ArrowReader`, which cost the reading of a shard."""


def _columns_of(manifest: Manifest) -> set[str]:
    return set(manifest.schema.names).union(*(entry.columns for entry in columns_of(manifest.sidecars)))


def _spark_field(column: ArrowColumn) -> StructField:
    """Return name and type of a column for Spark."""
    kind = None
    with suppress(PySparkException):
        kind = from_arrow_type(_nearest(column.field.type))
    is_decimal = isinstance(kind, DecimalType)
    if kind is None or (is_decimal and not 0 <= kind.scale <= kind.precision <= _MAX_DIGITS):
        raise SchemaError(
            f"column {column.name!r} ({column.encoding}) has type {column.field.type}, for which Spark has none: leave "
            "it out with the option `columns`",
            column=column.name,
        )
    return StructField(column.name, kind, column.field.nullable)


def _check_asked(asked: StructType, own: StructType) -> None:
    """Check that columns have the types that a schema asks for; it may allow nulls where there are none.

    Raises:
        SchemaError: One has another type.
    """
    for given, stored in zip(asked, own, strict=True):
        kind = with_nulls = stored.dataType.json()
        for name in ("containsNull", "valueContainsNull", "nullable"):  # of its elements, values and fields
            with_nulls = with_nulls.replace(f'"{name}":false', f'"{name}":true')
        if given.dataType.json() not in (kind, with_nulls):
            raise SchemaError(
                f"column {given.name!r} has type {stored.dataType.simpleString()}, and the schema that was given says "
                f"{given.dataType.simpleString()}: load it as it is, and cast it",
                column=given.name,
            )
        if stored.nullable and not given.nullable:
            raise SchemaError(f"column {given.name!r} has nulls, and the schema that was given allows none")


def _nearest(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type of Spark's that holds the values of a type."""
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        item = kind.value_field
        return pa.list_(pa.field("element", _nearest(item.type), nullable=item.nullable))
    return _NEAREST.get(kind, kind)


@dataclass
class Part(InputPartition):  # type: ignore[misc]
    """The samples of one Spark partition."""

    spans: tuple[RowSpan, ...] = ()


class ShardSetReader(DataSourceReader):  # type: ignore[misc]
    """The reader of the columns of a version that the options choose.

    It is planned on the driver, and sent to the tasks without the manifest.

    Raises:
        ArgumentError: An option cannot be used.
        SchemaError: There is no such column, or one has no type in Spark.
        CatalogError: The version is not the pinned one.
        SmaltiError: The set cannot be opened, as for `find_shard_set`.
    """

    def __init__(self, given: Mapping[str, str], pin: Pin | None = None, asked: StructType | None = None) -> None:
        """Open the set.

        Args:
            given: Options as Spark hands them over.
            pin: The version to open, if another one is not to be taken.
            asked: Schema that the user or Spark wants, to which columns are cut.
        """
        place, options = place_of(given), parse_options(given, _OPTIONS, _ELSEWHERE)
        size = parse_byte_count(options.get("partition_size", _PARTITION_SIZE), what="`partition_size`")
        self._partition_bytes = max(1, size)
        self._where = parse_filters(options["where"]) if "where" in options else None
        wanted = options.get("columns") if asked is None else tuple(asked.names)
        with_ids = SAMPLE_ID in (wanted or ()) or (asked is None and options.get("sample_ids", False))
        version = options.get("version")
        number, tag = (int(version), None) if version is not None and version.isdecimal() else (None, version)
        if pin is not None and pin.version:
            number, tag = pin.version, None
        stream = StreamOptions(
            place,
            options.get("split"),
            number,
            tag,
            storage_options=options.get("storage_options", {}),
            allow_unsafe_types=True,  # such columns have no type in Spark, and the error says what to do
        )
        self._found = self._find(stream, wanted, pin)
        url, manifest = self._found.store.url, self._found.manifest
        if with_ids and SAMPLE_ID in _columns_of(manifest):
            if options.get("sample_ids", False):
                raise SchemaError(f"{url} has a column {SAMPLE_ID!r} of its own: leave `sample_ids` out")
            with_ids = False
        if pin not in (None, Pin(manifest.version, manifest.digest)):
            raise CatalogError(
                f"{url} is not what it was when the DataFrame was made, and has no older versions: load it again",
                url=url,
            )
        known = None if pin is None else pin.first_arrays
        self._reader = ArrowReader.of(self._found, self._found.options.columns, first_arrays=known)
        self.pin = Pin(manifest.version, manifest.digest, self._reader.first_arrays)
        self.schema = StructType(self._fields(wanted, with_ids=with_ids))
        if asked is not None:
            _check_asked(asked, self.schema)
        # PySpark 4.0 has no such argument, and means UTC.
        zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
        self._arrow_schema = to_arrow_schema(asked or self.schema, **zone)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_reader", "_where", "_arrow_schema")}

    def _find(self, options: StreamOptions, wanted: tuple[str, ...] | None, pin: Pin | None) -> ShardSet:
        """Load the manifest, and choose the columns that are wanted or compared."""
        find = find_shard_set if pin is None else load_shard_set  # the first one warns of splits that are read as one
        if wanted is None:
            return find(options)
        compared = () if self._where is None else self._where.names
        columns = tuple(dict.fromkeys([*wanted, *compared]))
        found = find(replace(options, columns=tuple(name for name in columns if name != SAMPLE_ID)))
        is_own = SAMPLE_ID in columns and SAMPLE_ID in _columns_of(found.manifest)
        return find(replace(options, columns=columns)) if is_own else found

    def _fields(self, wanted: tuple[str, ...] | None, *, with_ids: bool) -> list[StructField]:
        columns = self._reader.columns
        if self._where is not None:  # refuses comparisons with values of other types
            self._where.columns_of([column.name for column in columns])
            self._where.mask_of({column.name: pa.array([], column.field.type) for column in columns})
        fields = [_spark_field(column) for column in columns if wanted is None or column.name in wanted]
        if with_ids:  # last unless `wanted` says where
            place = wanted.index(SAMPLE_ID) if wanted is not None and SAMPLE_ID in wanted else len(fields)
            fields.insert(place, StructField(SAMPLE_ID, LongType(), nullable=False))
        if not fields:
            raise ArgumentError("`columns` names no column; to count the samples, read `_sample_id` alone")
        return fields

    def partitions(self) -> list[Part]:
        """Return the samples, with their numbers in the version, in groups of about `partition_size`."""
        spans, manifest, split = spans_of(self._found), self._found.manifest, self._found.options.split
        if split is not None and any(manifest.partitions):
            ends = np.cumsum(sizes_of(manifest.shards)).tolist()
            firsts = [
                end - shard.samples
                for shard, end in zip(manifest.shards, ends, strict=True)
                if shard.partition == split and shard.samples > 0
            ]
            spans = [replace(span, first_row=first) for span, first in zip(spans, firsts, strict=True)]
        return [Part(tuple(group)) for group in group_spans(spans, self._partition_bytes)] or [Part()]

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        """Yield the samples of a partition; each shard is verified first.

        Raises:
            ChecksumMismatch, FormatError: A shard is damaged.
            StoreError: A shard cannot be read.
        """
        for span in partition.spans:
            if self._reader.columns:
                chosen = self._reader.chosen(span, self._where)
            else:  # nothing is read
                numbers = np.arange(span.first_row, span.first_row + span.end - span.begin)
                chosen = iter([(numbers, pa.RecordBatch.from_arrays([], names=[]))])
            for numbers, batch in chosen:
                arrays = {SAMPLE_ID: pa.array(numbers)} | dict(zip(batch.schema.names, batch.columns, strict=True))
                yield pa.RecordBatch.from_arrays(
                    [arrays[column.name].cast(column.type) for column in self._arrow_schema], schema=self._arrow_schema
                )


class MDSDataSource(DataSource):  # type: ignore[misc]
    """Shard sets as tables of Spark: `spark.read.format("mds").load(url)`.

    Spark makes an instance for each frame, asks it for the schema, and keeps the pickled instance for all actions of
    the frame: the version that the schema is of is the one that they read.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "mds"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Take the options; nothing is opened."""
        super().__init__(options)
        self._pin: Pin | None = None

    def schema(self) -> StructType:
        """Return the columns of the set, and remember its version."""
        opened = ShardSetReader(self.options)
        self._pin = opened.pin
        return opened.schema

    def reader(self, schema: StructType) -> ShardSetReader:
        """Return a reader of these columns."""
        return ShardSetReader(self.options, self._pin, schema)

    def writer(self, schema: StructType, overwrite: bool) -> ShardSetWriter:  # noqa: FBT001 -- of PySpark
        """Return the writer of a query's rows."""
        return ShardSetWriter(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ShardSetStreamWriter:  # noqa: FBT001, N802
        """Return the writer of a streaming query's micro-batches."""
        return ShardSetStreamWriter(schema, self.options, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802, ARG002 -- of PySpark
        """Refuse `spark.readStream`.

        Raises:
            ArgumentError: Always.
        """
        raise ArgumentError(
            'format("mds") is written as a stream and not read as one: `spark.read.format("mds")` reads the newest '
            "version"
        )
