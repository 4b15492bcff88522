"""Reading of `format("mds")`: the schema of a version, its partitions, and their samples as Arrow batches.

A version is planned once, on the driver: the manifest is read, and a partition gets the entries of its own shards.
Tasks fetch these, verify them and send the columns on; nothing is kept in a cache. The types are Arrow's as
`smalti.format.reading.arrow` restores them, and Spark's as PySpark translates those.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from smalti.catalog.table.shard_table import sizes_of
from smalti.errors import CatalogError, SchemaError
from smalti.format import ShardInfo
from smalti.format.reading.arrow import ArrowColumn
from smalti.format.sizes import parse_byte_count
from smalti.spark.mds.options import flag, names, parse_options, place_of
from smalti.stream import StreamOptions
from smalti.stream.arrow import ArrowReader, RowSpan, spans_of
from smalti.stream.shard_set import find_shard_set
from smalti.writer.tables.plan import WriteOptions

SAMPLE_ID = "_sample_id"
"""Column with the number of the sample in the version, which `delete_samples` and `add_columns` take."""
_OPTIONS = {"version": str, "split": str, "columns": names, "sample_ids": flag, "partition_size": str}
_ELSEWHERE = {
    **dict.fromkeys([option.name for option in fields(WriteOptions)], "it is an option of writing"),
    "tag": "give the tag as `version`",
}
_PARTITION_SIZE = "128mb"
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


class OpenSet:
    """The columns of a version that the options choose, opened to plan a read.

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
        options = parse_options(given, _OPTIONS, _ELSEWHERE)
        self.partition_bytes = parse_byte_count(options.get("partition_size", _PARTITION_SIZE), what="`partition_size`")
        wanted = options.get("columns") if asked is None else tuple(asked.names)
        with_ids = SAMPLE_ID in (wanted or ()) or (asked is None and options.get("sample_ids", False))
        stored = None if wanted is None else tuple(name for name in wanted if name != SAMPLE_ID)
        self._found = find_shard_set(_stream(place_of(given), options, stored, pin))
        manifest = self._found.manifest
        self.pin = Pin(manifest.version, manifest.digest)
        if pin not in (None, self.pin):
            raise CatalogError(
                f"{self._found.store.url} was replaced since the DataFrame was made: it had no versions, so that what "
                "the DataFrame was made of cannot be read again; load it again",
                url=self._found.store.url,
            )
        self.reader = ArrowReader.of(self._found, stored)
        fields = [_spark_field(column) for column in self.reader.columns]
        if with_ids:
            fields = _with_ids(fields, wanted, self._found.store.url)
        self.schema = StructType(fields)

    @property
    def spans(self) -> list[RowSpan]:
        """The samples to read, with their numbers in the version."""
        spans, manifest, split = spans_of(self._found), self._found.manifest, self._found.options.split
        if split is None or not any(manifest.partitions):
            return spans
        ends = np.cumsum(sizes_of(manifest.shards)).tolist()
        firsts = [end - shard.samples for shard, end in zip(manifest.shards, ends, strict=True) if _is_of(shard, split)]
        return [replace(span, first_row=first) for span, first in zip(spans, firsts, strict=True)]


def _is_of(shard: ShardInfo, split: str) -> bool:
    return shard.partition == split and shard.samples > 0


def _stream(place: str, options: Mapping[str, Any], stored: tuple[str, ...] | None, pin: Pin | None) -> StreamOptions:
    """Return what to open."""
    version = options.get("version")
    number, tag = (int(version), None) if version is not None and version.isdecimal() else (None, version)
    if pin is not None and pin.version:
        number, tag = pin.version, None
    return StreamOptions(
        place, options.get("split"), number, tag, storage_options=options.get("storage_options", {}), columns=stored
    )


def _with_ids(fields: list[StructField], wanted: tuple[str, ...] | None, url: str) -> list[StructField]:
    """Return the fields with that of the samples' numbers, last unless `wanted` says where."""
    if any(field.name == SAMPLE_ID for field in fields):
        raise SchemaError(
            f"{url} has a column {SAMPLE_ID!r} of its own: leave `sample_ids` out, or leave the column out with "
            "`columns`",
            column=SAMPLE_ID,
        )
    place = len(fields) if SAMPLE_ID not in (wanted or ()) else wanted.index(SAMPLE_ID)
    return [*fields[:place], StructField(SAMPLE_ID, LongType(), nullable=False), *fields[place:]]


def _spark_field(column: ArrowColumn) -> StructField:
    """Return name and type of a column for Spark."""
    try:
        kind = from_arrow_type(_nearest(column.field.type))
    except PySparkException as error:
        raise SchemaError(
            f"column {column.name!r} ({column.encoding}) has type {column.field.type}, for which Spark has none: leave "
            "it out with the option `columns`",
            column=column.name,
        ) from error
    return StructField(column.name, kind, column.field.nullable)


def _nearest(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type of Spark's that holds the values of a type."""
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        item = kind.value_field
        return pa.list_(pa.field("element", _nearest(item.type), nullable=item.nullable))
    return _NEAREST.get(kind, kind)


@dataclass
class Part(InputPartition):  # type: ignore[misc]
    """The samples of one Spark partition."""

    spans: tuple[RowSpan, ...]


class MDSReader(DataSourceReader):  # type: ignore[misc]
    """The reader of one version, as Spark plans it and as its tasks get it: without the manifest."""

    def __init__(self, opened: OpenSet, schema: StructType) -> None:
        self._spans = opened.spans
        self._reader = opened.reader
        self._schema = arrow_schema(schema)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_spans": []}  # a task gets its own in its partition

    def partitions(self) -> list[Part]:
        """Return the samples in groups of about `partition_size`."""
        return [Part((span,)) for span in self._spans] or [Part(())]

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        """Yield the samples of a partition; each shard is verified first."""
        for span in partition.spans:
            first = span.first_row
            for batch in self._reader.batches(span):
                ids = pa.array(np.arange(first, first + batch.num_rows))
                arrays = [ids if name == SAMPLE_ID else batch[name] for name in self._schema.names]
                first += batch.num_rows
                yield pa.RecordBatch.from_arrays(
                    [array.cast(kind) for array, kind in zip(arrays, self._schema.types, strict=True)],
                    schema=self._schema,
                )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches."""
    # PySpark 4.0 has no such argument, and means UTC.
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)
