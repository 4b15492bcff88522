"""A Spark DataFrame to a version of a shard set: executors write shards, the driver publishes them last.

    1. columns and target are checked before a row is read; a write that is published already ends it here;
    2. each task encodes whole Arrow batches into shards and uploads them below its own prefix, named by attempt;
    3. each task answers with its shards' entries after the store has acknowledged all of them, or raises;
    4. the driver takes one answer per task, has small shards that follow each other joined, and publishes all at once.

A task, executor or driver that dies leaves objects that no version names, and nothing else.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from smalti.catalog import Manifest
from smalti.spark.frames import require_frame
from smalti.spark.writing.job import draft_plan, write_frame
from smalti.spark.writing.mosaic import write_as_peer
from smalti.spark.writing.options import Mode, ProgressChoice, WriteOptions
from smalti.spark.writing.transform import Transform, TransformFunction
from smalti.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@overload
def dataframe_to_mds(
    dataframe: "DataFrame",
    out: str | Path,
    *,
    columns: Mapping[str, str | None] | None = None,
    nulls: str | Mapping[str, Any] = "reject",
    compression: str | None = "zstd",
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
def dataframe_to_mds(  # noqa: PLR0913  the public door: these names are the documented interface
    dataframe: "DataFrame | None" = None,
    out: str | Path | bool | None = None,  # noqa: FBT001  the place of `merge_index` in MosaicML's call
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Callable[..., Iterable[Mapping[str, Any]]] | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
    *,
    merge_index: bool | None = None,
    columns: Mapping[str, str | None] | None = None,
    nulls: str | Mapping[str, Any] = "reject",
    compression: str | None = "zstd",
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
) -> "Manifest | tuple[str, str]":
    """Write a DataFrame as Mosaic Data Shards and publish them as one new version; blocks until that is done.

    The call of MosaicML's function, `dataframe_to_mds(df, merge_index=True, mds_kwargs={"out": ..., ...})`, is taken
    as well, and gives what that gives: the local and the remote path (`smalti.spark.writing.mosaic`).

    Args:
        dataframe: the rows, a DataFrame of Spark. They keep their order, and shards are on average more than half full,
            however they are partitioned: small last shards of neighbouring partitions are joined.
        out: a path or URL that all executors and this process can write to.
        mds_kwargs: MosaicML's call only: the arguments of its writer, `out` among them.
        udf_iterable: MosaicML's call only: from a pandas DataFrame and `udf_kwargs` to dicts, one for each sample.
        udf_kwargs: MosaicML's call only: keyword arguments of `udf_iterable`.
        merge_index: MosaicML's call only: False publishes nothing, and leaves a folder with an index per partition.
        columns: name to encoding, or to None for that of its Spark type, of the columns to store; by default all, by
            their types (docs/types.md). With `transform`, of the columns that it gives.
        nulls: what becomes of nulls, for all columns or by name: `reject`, `mask` or `{"default": value}`.
        compression: `zstd`, `zstd:<level>`, another of MDS, or None.
        hashes: checksums to record for every file.
        size_limit: largest shard before compression, in bytes or as `"64mb"`; None makes one shard of each Spark
            partition and split.
        transform: a function over batches that runs between Spark and the shards: pyarrow.RecordBatch to the same, or
            pandas.DataFrame to the same, or iterators of them, as its first parameter is annotated
            (`smalti.spark.Transform` says it in words). Unless `columns` names every encoding, it is run on the first
            rows beforehand to learn its columns.
        partition_by: a column of few texts whose values become splits, such as `train` and `validation`; with
            `transform`, of what that gives.
        shuffle_rows: True or a seed puts all rows in an order that is a permutation by their content and the seed; it
            costs a shuffle of all rows through Spark. Equal rows come to stand together.
        target_shards: about how many shards to make, of each split, all about equally large, by spreading the rows
            over so many Spark partitions as with `shuffle_rows`; more where `size_limit` is reached.
        mode: `create` a set where there is none, `overwrite` or `append` to one by a new version.
        progress: a line about tasks, rows and bytes on the error stream, after some seconds and if that is a terminal;
            `"always"` also where it is none; False never.
        write_id: names this write: one that is already published returns its version and reads no row. By default
            derived from source and options, where Spark tells enough about the source to know that it is the same.
        lineage: where the rows came from, kept in the manifest (JSON) beside what Spark tells of it.
        metadata: whatever else should be kept in the manifest (JSON).
        storage_options: credentials and endpoint of the store.
        df: another name of `dataframe`.

    Returns:
        The manifest of the version; (local, remote) for MosaicML's call.

    Raises:
        SchemaError: a column cannot be stored as asked, or a value (a null, a number that does not fit) cannot; or
            there are no rows.
        BadImageError: the frame is that of `prepare_images` with policy `fail`, and has a bad image.
        SmaltiError: `transform` failed; the message names partition, rows and line.
        DatasetExists: `create`, and the place holds a data set already.
        CommitConflict: somebody else published first; nothing of ours is visible.
        StoreError: the store failed for longer than its retries.
        ValueError: an option that cannot be.
        TypeError: `dataframe` is no DataFrame of Spark; the message has the line that makes one of it.
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
    is_peers = isinstance(out, bool) or any(each is not None for each in (mds_kwargs, udf_iterable, udf_kwargs))
    if is_peers or merge_index is not None:
        if isinstance(out, bool) and merge_index is not None:
            raise ValueError("`merge_index` was given twice")
        _check_peers(out, options)
        merges = out if isinstance(out, bool) else merge_index
        return write_as_peer(df, merges is not False, mds_kwargs, udf_iterable, udf_kwargs)
    if out is None or isinstance(out, bool):
        raise ValueError("`out`: expected a path or URL to write to; none was given")
    return write_frame(df, draft_plan(df, open_store(out, storage_options), options), options)


def _frame_of(dataframe: "DataFrame | None", df: "DataFrame | None") -> "DataFrame":
    """Return the DataFrame that was given under one of its two names.

    Raises:
        TypeError: none, both, or something else.
    """
    if dataframe is not None and df is not None:
        raise TypeError("`df` is another name of `dataframe`; give one of them")
    frame: Any = df if dataframe is None else dataframe
    require_frame(frame, "`dataframe`", is_set=True)
    return frame


def _check_peers(out: object, options: WriteOptions) -> None:
    """Refuse a mixture of the two calls: one half of it would be ignored."""
    taken = "`mds_kwargs`, `merge_index`, `udf_iterable` and `udf_kwargs` are MosaicML's call"
    if out is not None and not isinstance(out, bool):
        raise ValueError(f"{taken}; give the place as `out` in `mds_kwargs`, or leave these arguments out")
    default = WriteOptions()
    mixed = [name for name in vars(default) if getattr(options, name) != getattr(default, name)]
    if mixed:
        names = ", ".join(f"`{name}`" for name in mixed)
        raise ValueError(f"{taken}; {names} cannot be given with it: use dataframe_to_mds(df, out, ...) instead")
