"""`dataframe_to_mds`: a Spark DataFrame as a new version of a shard set.

The steps are those of every table, in `smalti.writer.tables.versions`; Spark runs the tasks.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.catalog import Manifest, new_write_id
from smalti.catalog.publishing import Mode
from smalti.errors import StoreError
from smalti.spark.lineage import require_unchanged, source_of, write_id_of
from smalti.spark.tasks import decode_errors, require_frame, require_reach
from smalti.spark.writing.plan import join_on_executors, learn_columns, plan_frame, run, select_inputs
from smalti.spark.writing.plan import shuffle_rows as shuffled
from smalti.spark.writing.progress import reporting
from smalti.storage import Store, open_store
from smalti.storage.opening import check_apart
from smalti.writer import UploadOptions
from smalti.writer.tables.attempts import Answers
from smalti.writer.tables.plan import (
    UPLOADS,
    InputRows,
    OutputColumns,
    ProgressChoice,
    SampleFunction,
    WriteOptions,
    WritePlan,
    check_append,
)
from smalti.writer.tables.transform import Transform, TransformFunction
from smalti.writer.tables.versions import Write, begun, identify, options_in_id, publish_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@decode_errors()
def dataframe_to_mds(  # noqa: PLR0913  these names are the documented interface
    dataframe: "DataFrame",
    out: str | Path,
    *,
    columns: Mapping[str, str | None] | None = None,
    nulls: str | Mapping[str, Any] = "reject",
    compression: str | None = "auto",
    hashes: tuple[str, ...] = ("xxh3_64",),
    size_limit: int | str | None = 1 << 26,
    transform: Transform | TransformFunction | None = None,
    partition_by: str | None = None,
    shuffle_rows: bool | int = False,
    target_shards: int | None = None,
    mode: Mode = "create",
    progress: ProgressChoice = True,
    write_id: str | None = None,
    lineage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Write a DataFrame as Mosaic Data Shards and publish them as one new version; blocks until that is done.

    MosaicML's call, `dataframe_to_mds(df, merge_index=True, mds_kwargs={...})`, is that of
    `smalti.compat.streaming.base.converters`.

    Args:
        dataframe: The rows, a DataFrame of Spark. They keep their order, and shards are on average more than half full
            however the rows are partitioned: small last shards of neighbouring partitions are joined.
        out: Path or URL that all executors and this process can write to.
        columns: Columns to store: name to encoding, or to None for the default of its Spark type; by default all
            columns (docs/types.md). With `transform`, columns of its output.
        nulls: What is done with nulls, for all columns or by name: `reject`, `mask` or `{"default": value}`.
        compression: `auto` compresses each shard by zstd if that makes it at least a tenth smaller, by a sample of
            it, which JPEG files are not; or `zstd`, `zstd:<level>`, another one of MDS, or None.
        hashes: Checksums to record for every file.
        size_limit: Largest shard before compression, in bytes or as `"64mb"`; None makes one shard of each Spark
            partition and split.
        transform: Function over batches that runs between Spark and the shards: from pyarrow.RecordBatch to the same,
            from pandas.DataFrame to the same, or between iterators of these, by the annotation of its first parameter
            or as `smalti.spark.Transform` declares it. Unless `columns` names every encoding, it runs on the first rows
            beforehand to learn its columns.
        partition_by: Column of a few texts whose values become splits, such as `train` and `validation`; with
            `transform`, a column of its output.
        shuffle_rows: True or a seed stores all rows in an order that their content and the seed decide. Costs a shuffle
            of all rows through Spark. Equal rows become neighbours.
        target_shards: About how many shards of about equal size to make of each split, by shuffling the rows into as
            many Spark partitions, as `shuffle_rows` does; more where `size_limit` is reached.
        mode: `create` a set where there is none, `overwrite` the set or `append` to it by a new version.
        progress: True shows a line about tasks, rows and bytes on the error stream, after some seconds and if it is a
            terminal; `"always"` shows it on other streams too; False never.
        write_id: Identifies this write: if it is published already, its version is returned and no row is read. By
            default derived from source and options, if Spark knows enough to recognise the same source.
        lineage: Where the rows came from, kept in the manifest (JSON) together with what Spark knows of it.
        metadata: Anything else to keep in the manifest (JSON).
        storage_options: Credentials and endpoint of the store.

    Returns:
        The manifest of the version.

    Raises:
        SchemaError: A column cannot be stored as requested, or a value (a null, a number out of range) cannot be
            stored; or there are no rows.
        BadImageError: The frame is that of `prepare_images` with policy `fail`, and has a bad image.
        SmaltiError: `transform` failed; the message names partition, rows and line.
        DatasetExists: The mode is `create`, and the place holds a data set already.
        CommitConflict: Another writer published first; this write published nothing.
        CatalogError: A source file was replaced or removed while it was read; nothing was published.
        StoreError: The store failed for longer than its retries.
        ValueError: An option has an unusable value.
        TypeError: `dataframe` is no DataFrame of Spark; the message has the call that makes one of it.

    Examples:
        >>> frame = spark.createDataFrame([(1, "one"), (2, "two")], "id int, text string")
        >>> version = dataframe_to_mds(frame, "s3://bucket/set", compression="zstd")
        >>> version.rows, version.schema.columns()
        (2, {'id': 'int32', 'text': 'str'})
    """
    require_frame(dataframe, "`dataframe`", is_set=True)
    options = WriteOptions(
        columns=columns,
        nulls=nulls,
        compression=compression,
        hashes=tuple(hashes),
        size_limit=size_limit,
        transform=transform,
        partition_by=partition_by,
        shuffle_rows=shuffle_rows,
        target_shards=target_shards,
        mode=mode,
        progress=progress,
        write_id=write_id,
        lineage=lineage,
        metadata=metadata,
        storage_options=storage_options,
    )
    return write_frame(dataframe, open_store(out, storage_options), options)


@decode_errors()
def write_frame(
    df: "DataFrame",
    store: Store,
    options: WriteOptions,
    samples: SampleFunction | None = None,
    uploads: UploadOptions = UPLOADS,
) -> Manifest:
    """Write the rows of the frame, and return the version that has them; a write that is published reads no row.

    With `samples`, a function of the user makes the samples of the rows; errors are those of `dataframe_to_mds`.
    """
    rows, planned = plan_frame(df.schema, options, samples)
    write = _identify(df, store, options)
    if write.published is not None:
        return write.published
    with reporting(df.sparkSession, store.url, options.progress) as report:
        frame, output = _prepared(df, store, rows, planned, options)
        check_append(write.parent, output.schema, output.logical)
        with begun(store, write) as watch:
            plan = WritePlan(store, write.write_id, options.shard_options, rows, output, uploads, watch.disk)
            with require_unchanged(df):
                answers = run(frame, plan)
            published = publish_shards(plan, write, options, answers, join_on_executors(df.sparkSession), watch)
        if report is not None:
            report.finish(published.manifest, published.shards)
    return published.manifest


@decode_errors()
def write_folders(
    df: "DataFrame",
    store: Store,
    options: WriteOptions,
    samples: SampleFunction | None = None,
    uploads: UploadOptions = UPLOADS,
) -> Answers:
    """Write the shards of each Spark partition to a folder of its own, and return them; nothing is published."""
    rows, planned = plan_frame(df.schema, options, samples)
    with reporting(df.sparkSession, store.url, options.progress):
        frame, output = _prepared(df, store, rows, planned, options)
        plan = WritePlan(store, new_write_id(), options.shard_options, rows, output, uploads, is_loose=True)
        return run(frame, plan)


def _prepared(
    df: "DataFrame", store: Store, rows: InputRows, planned: OutputColumns, options: WriteOptions
) -> "tuple[DataFrame, OutputColumns]":
    """Return the frame that the tasks read, and the columns to store; executors that cannot use the store are an error.

    Of the planned columns, those of a transform's output may still be open; they are known then, if they have to be.
    """
    require_reach(df.sparkSession, store)
    frame = select_inputs(df, rows)
    output = learn_columns(frame, rows, planned)
    if options.seed is not None:
        frame = shuffled(frame, options.seed, options.target_shards)
    return frame, output


def _identify(df: "DataFrame", store: Store, options: WriteOptions) -> Write:
    """Return which write this call is; see `identify`.

    Raises:
        CatalogError: The files that Spark reads and the set are one place, or one lies inside the other.
        DatasetExists: The mode is `create`, and the place holds a set that another write made.
    """
    source, chosen = source_of(df), options_in_id(options)
    _check_apart(source, store)
    return identify(store, options, source, None if chosen is None else write_id_of(source, chosen))


def _check_apart(source: Mapping[str, Any], store: Store) -> None:
    """Refuse a set in the place of its source, as far as Spark names folders or files that this machine can address."""
    for path in {path for entry in source.get("sources", ()) for path in entry.get("paths", ())}:
        try:
            place = open_store(path)
        except StoreError:
            continue  # a scheme of Hadoop's own
        check_apart(place, store, advice="write to another place")
