"""`convert`: rows of any source as a version of a shard set, on all cores, without Spark.

The steps are those of every table, in `smalti.writer.tables.versions`. Tasks run in processes of this machine.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

from smalti.catalog import Manifest
from smalti.catalog.publishing import Mode
from smalti.catalog.table.shard_table import written_keys
from smalti.conversion.files import check_target
from smalti.conversion.job import (
    UPLOADS,
    Job,
    check_classes,
    check_unchanged,
    join_shards,
    left_out_of,
    memory_errors,
    plan_job,
)
from smalti.conversion.registry import Format, open_source
from smalti.conversion.source import Source, SourceOptions
from smalti.conversion.workers import WorkerTask, run_tasks
from smalti.errors import StoreError
from smalti.format.sizes import parse_byte_count
from smalti.storage import Place, Store, open_store
from smalti.storage.redact import redact_address
from smalti.writer.tables.attempts import Answers, Attempt
from smalti.writer.tables.packing import collect_parts, delete_all
from smalti.writer.tables.plan import WriteOptions, WritePlan, check_append, require
from smalti.writer.tables.transform import Transform, TransformFunction
from smalti.writer.tables.versions import begun, derive_write_id, identify, options_in_id, publish_shards


@dataclass(frozen=True)
class ConversionProgress:
    """The state of a conversion.

    Examples:
        >>> seen = []
        >>> version = convert("more.csv", "s3://bucket/table", on_progress=seen.append)
        >>> seen[-1].rows, seen[-1].parts_done == seen[-1].parts
        (3, True)
    """

    parts_done: int
    parts: int
    rows: int
    """Rows read so far."""
    num_bytes: int
    """Stored bytes of the source that are done; 0 if sizes are unknown."""
    total_bytes: int
    """Stored bytes of the whole source; 0 if unknown."""

    def to_dict(self) -> dict[str, int]:
        """Return the fields."""
        return dataclasses.asdict(self)


OnProgress = Callable[[ConversionProgress], None]


def convert(  # noqa: PLR0913  these names are the documented interface
    source: Place | Source | Any,
    to: Place,
    *,
    format: Format | None = None,
    columns: Mapping[str, str | None] | None = None,
    nulls: str | Mapping[str, Any] = "reject",
    compression: str | None = "auto",
    hashes: Sequence[str] = ("xxh3_64",),
    size_limit: int | str | None = 1 << 26,
    transform: Transform | TransformFunction | None = None,
    partition_by: str | None = None,
    mode: Mode = "create",
    write_id: str | None = None,
    lineage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source_storage_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    part_bytes: int | str | None = None,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Write the rows of a source as Mosaic Data Shards and publish them as one new version; blocks until that is done.

    The options that `dataframe_to_mds` has mean the same here. Equal rows in equal parts give equal shards.

    Args:
        source: Path, URL or pattern (`*`, `**`) of the rows, a `Source`, or an object of the format's library.
        to: Path, URL or store of the shard set.
        format: Format of the source; by default the one that its files show.
        columns: Columns to store: name to encoding, or to None for the default of its type; by default all columns
            (docs/types.md). Only these are read. With `transform`, columns of its output.
        nulls: What is done with nulls, for all columns or by name: `reject`, `mask` or `{"default": value}`.
        compression: `auto` compresses each shard by zstd if that makes it at least a tenth smaller, by a sample of
            it, which JPEG files are not; or `zstd`, `zstd:<level>`, another one of MDS, or None.
        hashes: Checksums to record for every file.
        size_limit: Largest shard before compression, in bytes or as `"64mb"`; None makes one shard of each part.
        transform: Function over batches that runs between source and shards, as `dataframe_to_mds` takes it.
        partition_by: Column of a few texts whose values become splits, such as `train` and `validation`.
        mode: `create` a set where there is none, `overwrite` the set or `append` to it by a new version.
        write_id: Identifies this write: if it is published already, its version is returned and no row is read. By
            default derived from the source's files and the options.
        lineage: Where the rows came from, kept in the manifest (JSON) together with what is known of the source.
        metadata: Anything else to keep in the manifest (JSON).
        storage_options: Credentials and endpoint of the set's store.
        source_storage_options: Credentials and endpoint of the source's store.
        settings: Options of the format; see docs/convert.md and docs/sources.md.
        part_bytes: Stored bytes of the source that one task reads, in bytes or as `"64mb"`; by default 8 to 64 MiB, by
            the size of the source.
        processes: Processes that convert, at most; by default one for each core of this process. 1 converts in this
            process.
        on_progress: Called on this thread as parts are read.

    Returns:
        The manifest of the version.

    Raises:
        SchemaError: A column cannot be stored as requested, or a value (a null, a number out of range) cannot be
            stored; or there are no rows.
        BadImageError: A file of a folder of images is no image.
        SmaltiError: The source cannot be read, or changed meanwhile; it is the set's own place, or one lies inside
            the other; `transform` failed; or the processes of a part died several times. The message names the part.
        DatasetExists: The mode is `create`, and the place holds a data set already.
        CommitConflict: Another writer published first; this write published nothing.
        StoreError: The store failed for longer than its retries.
        ValueError: An option has an unusable value.

    Warns:
        SourceWarning: Files of the source are left out that may have been meant. The manifest has their number and
            first names, and those of hidden files, as `left_out` of its source in `lineage`.

    Examples:
        >>> version = convert("photos", "s3://bucket/set", columns={"image": "jpeg", "label": "int"})
        >>> version.version, version.rows
        (1, 12)
        >>> convert("more.csv", "s3://bucket/table", mode="append").rows
        3
    """
    options = WriteOptions(
        columns=columns,
        nulls=nulls,
        compression=compression,
        hashes=tuple(hashes),
        size_limit=size_limit,
        transform=transform,
        partition_by=partition_by,
        mode=mode,
        progress=False,
        write_id=write_id,
        lineage=lineage,
        metadata=metadata,
    )
    require("processes", "1 or more", processes, met=processes is None or (type(processes) is int and processes >= 1))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    require("settings", "a mapping", settings, met=settings is None or isinstance(settings, Mapping))
    read: tuple[str, ...] | None = None  # all columns, of which a transform may need others than are stored
    if columns is not None and transform is None:
        read = tuple(dict.fromkeys([*columns, *([partition_by] if partition_by else [])]))
    size = None if part_bytes is None else parse_byte_count(part_bytes, what="`part_bytes`")
    reading = SourceOptions(read, source_storage_options, size, dict(settings or {}))
    store = open_store(to, storage_options)
    with memory_errors(redact_address(str(getattr(source, "url", source)))[:200]):
        opened = open_source(source, format, reading)
    if isinstance(source, str | PathLike | Store):
        check_target(source if isinstance(source, Store) else str(source), source_storage_options, store)
    left_out_of(opened).warn(opened.url)
    with memory_errors(opened.url):
        job = plan_job(opened, options, reading.settings, reading.part_bytes)
    return _publish_job(job, store, processes or cores, on_progress)


def _publish_job(job: Job, store: Store, processes: int, on_progress: OnProgress | None) -> Manifest:
    chosen = options_in_id(job.options)
    derived = derive_write_id(job.facts, chosen) if chosen is not None and job.is_exact else None
    write = identify(store, job.options, job.lineage, derived)
    if write.published is not None:
        return write.published
    check_append(write.parent, job.output.schema, job.output.logical)
    check_classes(write.parent, job)
    lost: list[Attempt] = []
    with begun(store, write) as watch:
        plan = WritePlan(store, write.write_id, job.options.shard_options, job.rows, job.output, UPLOADS, watch.disk)

        def join_many(plan: WritePlan, rows: list[tuple[int, str]]) -> Answers:
            tasks = [
                WorkerTask(place, f"joined shard {place}", partial(join_shards, (place, shards)))
                for place, shards in rows
            ]
            joined: Answers = []
            run_tasks(plan, tasks, processes, joined, lost, lambda: None)
            return joined

        try:
            answers = _write_groups(plan, job, processes, on_progress, lost)
            return publish_shards(plan, write, job.options, answers, join_many, watch).manifest
        finally:
            _remove_attempts(plan, lost)


def _write_groups(
    plan: WritePlan, job: Job, processes: int, on_progress: OnProgress | None, lost: list[Attempt]
) -> Answers:
    """Write the groups of a job as shards, and return one answer for each, in order, when all are in the store.

    If one fails, the shards of the others are removed; `lost` receives the attempts that may have left some.

    Raises:
        SmaltiError: What a task raised, or its processes died; or the source changed meanwhile.
    """
    tasks = [
        WorkerTask(number, f"{plan.input.words.part} {number} ({group.name})", group, group.num_bytes)
        for number, group in enumerate(job.groups)
    ]
    total = sum(task.num_bytes for task in tasks)
    answers: Answers = []

    def show() -> None:
        if on_progress is not None:
            rows = sum(task.rows for task in tasks)
            num_bytes = sum(tasks[attempt.task].num_bytes for attempt, _ in answers)
            on_progress(ConversionProgress(len(answers), len(tasks), rows, num_bytes, total))

    try:
        run_tasks(plan, tasks, processes, answers, lost, show)
        check_unchanged(job)
    except BaseException:
        written = [name for part in collect_parts(answers) for name in written_keys(part.shards())]
        delete_all(plan.store, written)  # best effort
        raise
    return sorted(answers, key=lambda item: item[0].task)


def _remove_attempts(plan: WritePlan, attempts: Sequence[Attempt]) -> None:
    """Delete what these attempts have stored. Best effort: a vacuum removes what cannot be deleted now."""
    if not attempts:
        return
    place = "" if plan.input.partition_by else plan.write_id  # splits, above it, are known to the attempts alone
    folders = [f"{plan.write_id}/{attempt.name}/" for attempt in attempts]
    with contextlib.suppress(StoreError):
        keys = [item.key for item in plan.store.list(place)]
        delete_all(plan.store, [key for key in keys if any(folder in key for folder in folders)])
