"""`dataframe_to_mds`: a Spark DataFrame as a new version of a shard set.

The steps are those of every table, in `smalti.writer.tables.versions`; Spark runs the tasks.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from smalti.catalog import Manifest, new_write_id
from smalti.catalog.publishing import Mode
from smalti.errors import StoreError
from smalti.spark.lineage import require_unchanged, source_of, write_id_of
from smalti.spark.tasks import require_frame
from smalti.spark.writing.mosaic import MosaicCall, copy_set, parse_call, put_folder_indexes
from smalti.spark.writing.packing import join_on_executors
from smalti.spark.writing.plan import learn_columns, plan_write, select_inputs
from smalti.spark.writing.plan import shuffle_rows as shuffled
from smalti.spark.writing.progress import reporting
from smalti.spark.writing.task import run
from smalti.storage import Store, open_store
from smalti.storage.overlap import check_apart
from smalti.writer.tables.attempts import Answers
from smalti.writer.tables.plan import ProgressChoice, WriteOptions, WritePlan, check_append
from smalti.writer.tables.transform import Transform, TransformFunction
from smalti.writer.tables.versions import Write, identify, options_in_id, write_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@overload
def dataframe_to_mds(
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
) -> Manifest: ...
@overload
def dataframe_to_mds(
    dataframe: "DataFrame",
    out: bool | None = None,  # noqa: FBT001  the place of `merge_index` in MosaicML's call
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Callable[..., Iterable[Mapping[str, Any]]] | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
    *,
    merge_index: bool = True,
) -> tuple[str, str]: ...
def dataframe_to_mds(  # noqa: PLR0913  these names are the documented interface
    dataframe: "DataFrame | None" = None,
    out: str | Path | bool | None = None,  # noqa: FBT001  the place of `merge_index` in MosaicML's call
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Callable[..., Iterable[Mapping[str, Any]]] | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
    *,
    merge_index: bool | None = None,
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
    df: "DataFrame | None" = None,
) -> "Manifest | tuple[str, str] | None":
    """Write a DataFrame as Mosaic Data Shards and publish them as one new version; blocks until that is done.

    MosaicML's call, `dataframe_to_mds(df, merge_index=True, mds_kwargs={"out": ..., ...})`, is accepted too, and
    returns what MosaicML's function returns: the local and the remote path (`smalti.spark.writing.mosaic`).

    Args:
        dataframe: The rows, a DataFrame of Spark. They keep their order, and shards are on average more than half full
            however the rows are partitioned: small last shards of neighbouring partitions are joined.
        out: Path or URL that all executors and this process can write to.
        mds_kwargs: MosaicML's call only: the arguments of its writer, `out` among them.
        udf_iterable: MosaicML's call only: maps a pandas DataFrame and `udf_kwargs` to dicts, one for each sample.
        udf_kwargs: MosaicML's call only: keyword arguments of `udf_iterable`.
        merge_index: MosaicML's call only: False publishes no version, and writes a folder with an index per partition.
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
        df: Another name of `dataframe`.

    Returns:
        The manifest of the version; (local, remote) for MosaicML's call, "" for a path that is not used.

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
    """
    df = _frame_of(dataframe, df)
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
    if isinstance(out, bool) or any(each is not None for each in (mds_kwargs, udf_iterable, udf_kwargs, merge_index)):
        _check_mosaic(out, merge_index, options)
        merges = (out if isinstance(out, bool) else merge_index) is not False
        return write_call(df, parse_call(mds_kwargs, udf_iterable, udf_kwargs, merges=merges))
    if out is None:
        raise ValueError("`out`: expected a path or URL to write to; none was given")
    return _write(df, open_store(out, storage_options), options)


def write_call(df: "DataFrame", call: MosaicCall) -> tuple[str, str]:
    """Do what a call by MosaicML's arguments asks for; return its local and its remote path, "" for none."""
    store = open_store(call.remote or call.local)
    manifest = _write(df, store, call.options, call)
    if manifest is not None and call.copy_to is not None:
        copy_set(store, manifest, open_store(call.copy_to))
    return call.local, call.remote


def _frame_of(dataframe: "DataFrame | None", df: "DataFrame | None") -> "DataFrame":
    """Return the DataFrame that was given under one of its two names."""
    if dataframe is not None and df is not None:
        raise TypeError("`df` is another name of `dataframe`; give one of them")
    frame: Any = df if dataframe is None else dataframe
    require_frame(frame, "`dataframe`", is_set=True)
    return frame


def _check_mosaic(out: object, merge_index: object, options: WriteOptions) -> None:
    """Refuse arguments of both calls at once: one half would be ignored."""
    if isinstance(out, bool) and merge_index is not None:
        raise ValueError("`merge_index` was given twice")
    taken = "`mds_kwargs`, `merge_index`, `udf_iterable` and `udf_kwargs` are MosaicML's call"
    if out is not None and not isinstance(out, bool):
        raise ValueError(f"{taken}; give the place as `out` in `mds_kwargs`, or leave these arguments out")
    default = WriteOptions()
    mixed = [name for name in vars(default) if getattr(options, name) != getattr(default, name)]
    if mixed:
        names = ", ".join(f"`{name}`" for name in mixed)
        raise ValueError(f"{taken}; {names} cannot be given with it: use dataframe_to_mds(df, out, ...) instead")


def _write(df: "DataFrame", store: Store, options: WriteOptions, call: MosaicCall | None = None) -> Manifest | None:
    """Write the rows of the frame, and return the version that has them; a write that is published reads no row.

    None if MosaicML's call asks for no version, but for a folder with an index of its own per Spark partition.
    """
    plan = plan_write(df, store, options, call.samples if call else None, call.uploads if call else None)
    is_loose = call is not None and not call.merges
    write = Write(new_write_id()) if is_loose else _identify(df, store, options)
    if write.published is not None:
        return write.published
    with reporting(df.sparkSession, store.url, options.progress) as report:
        frame = select_inputs(df, plan)
        plan = learn_columns(frame, dataclasses.replace(plan, write_id=write.write_id, is_loose=is_loose))
        check_append(write.parent, plan)
        if options.seed is not None:
            frame = shuffled(frame, options.seed, options.target_shards)
        if is_loose:
            put_folder_indexes(store, run(frame, plan))
            return None

        def run_tasks(plan: WritePlan) -> Answers:
            with require_unchanged(df):
                return run(frame, plan)

        published = write_version(plan, write, options, run_tasks, join_on_executors(df.sparkSession))
        if report is not None:
            report.finish(published.manifest, published.shards)
    return published.manifest


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
