"""`dataframe_to_mds`: a Spark DataFrame as a new version of a shard set.

    plan      decide columns and encodings from schema and options; no row is read
    identify  derive the write id; a write that is published already ends here
    run       each task encodes Arrow batches into shards, uploads them below a prefix of its own, named by attempt,
              and answers with their entries once the store has acknowledged all of them
    pack      take one answer per task, and join small shards of neighbouring tasks
    publish   make all shards durable, and commit the version

A task, executor or driver that dies leaves objects that no version names, and nothing else.
"""

import dataclasses
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from smalti.catalog import Draft, Manifest, history, load_manifest, new_write_id, publish
from smalti.catalog.header import Header
from smalti.catalog.publishing import Mode, check_target
from smalti.catalog.retention import markers
from smalti.spark.lineage import require_unchanged, source_of, write_id_of
from smalti.spark.tasks import require_frame
from smalti.spark.writing.mosaic import MosaicCall, copy_set, parse_call, put_folder_indexes
from smalti.spark.writing.packing import delete_all, make_durable, pack
from smalti.spark.writing.plan import (
    ProgressChoice,
    WriteOptions,
    check_append,
    learn_columns,
    plan_write,
    select_inputs,
    stored_columns,
)
from smalti.spark.writing.plan import shuffle_rows as shuffled
from smalti.spark.writing.progress import reporting
from smalti.spark.writing.task import run
from smalti.spark.writing.transform import Transform, TransformFunction
from smalti.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NOT_IN_ID = (
    "transform", "progress", "write_id", "storage_options", "unlisted_hashes", "joins_shards", "allow_unsafe_types",
)  # fmt: skip
"""Options that a derived write id leaves out: a write with a transform, or with one of the last three, has none; the
others change no row."""
_REPLACING = ("create", "overwrite", "rollback")
"""Operations after which rows of earlier versions are not shown any more."""


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
        compression: `zstd`, `zstd:<level>`, another one of MDS, or None.
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
    write = _Write(new_write_id()) if is_loose else _identify(df, store, options)
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
        markers.begin(store, write.write_id)  # creates the root, if that is a folder
        with store.watched() as watch:
            plan = dataclasses.replace(plan, disk=watch.disk)
            with require_unchanged(df):
                answers = run(frame, plan)
            schema, logical = stored_columns(plan, answers, write.parent)
            packed = pack(df.sparkSession, plan, answers, options)
            make_durable(store, watch, packed)
            draft = Draft(
                write.write_id,
                schema,
                packed.shards,
                lineage=dict(write.lineage),
                metadata=dict(options.metadata or {}),
                logical=logical,
                row_hash=packed.row_hash,
            )
            manifest = publish(store, draft, mode=options.mode)
        if report is not None:
            report.finish(manifest, packed.shards)
    delete_all(store, packed.unused_keys())
    markers.end(store, write.write_id)
    return manifest


@dataclasses.dataclass(frozen=True)
class _Write:
    """The identity of one write, before a row is read."""

    write_id: str
    lineage: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Lineage for the manifest: Spark's knowledge of the source, and the caller's additions."""
    parent: Header | None = None
    """The version that is appended to; None in other modes."""
    published: Manifest | None = None
    """The version that this write has published before."""


def _identify(df: "DataFrame", store: Store, options: WriteOptions) -> _Write:
    """Return which write this call is.

    A write id of the caller identifies it for good. Otherwise, equal calls over a source that Spark knows to be equal
    are the same write, as long as the newest version shows its rows.

    Raises:
        DatasetExists: The mode is `create`, and the place holds a set that another write made.
    """
    source = source_of(df)
    is_derivable = options.write_id is None and options.transform is None
    derived = write_id_of(source, _options_in_id(options)) if is_derivable else None
    write_id = options.write_id or derived or new_write_id()
    header = check_target(store, options.mode, write_id=write_id).header
    version = header.writes.get(write_id) if header is not None else None
    is_fenced = derived is not None and header is not None and write_id in header.fenced  # a vacuum refuses it
    if header is not None and (version is not None or is_fenced):
        if version is not None and (derived is None or _is_shown(store, header, version, options)):
            return _Write(write_id, published=load_manifest(store, version=version))
        write_id = f"{write_id}-{secrets.token_hex(4)}"
        header = check_target(store, options.mode, write_id=write_id).header
    lineage = {**source, **dict(options.lineage or {})}
    return _Write(write_id, lineage, parent=header if options.mode == "append" else None)


def _options_in_id(options: WriteOptions) -> dict[str, str]:
    names = [field.name for field in dataclasses.fields(options) if field.name not in _NOT_IN_ID]
    return {name: repr(getattr(options, name)) for name in names}


def _is_shown(store: Store, newest: Header, version: int, options: WriteOptions) -> bool:
    """Return whether the newest version shows the rows of this version; of an append, still has them."""
    later = [info for info in history(store) if info.version >= version]
    if options.mode != "append":
        return any(info.version == version and info.digest == newest.digest for info in later)
    return not any(info.version > version and info.operation in _REPLACING for info in later)
