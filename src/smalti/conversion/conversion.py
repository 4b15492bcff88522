"""`convert`: rows of any source as a version of a shard set, on all cores, without Spark.

The steps are those of every table, in `smalti.writer.tables.versions`. Tasks run in processes of this machine.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from smalti.catalog import Manifest
from smalti.catalog.publishing import Mode
from smalti.catalog.table.shard_table import written_keys
from smalti.conversion.files import check_target
from smalti.conversion.job import (
    UPLOADS,
    Group,
    Job,
    JoinShards,
    WriteGroup,
    check_classes,
    check_unchanged,
    left_out_of,
    memory_errors,
    plan_job,
)
from smalti.conversion.registry import Format, open_source
from smalti.conversion.source import Source, SourceOptions
from smalti.conversion.workers import Workers, WorkerTask
from smalti.errors import StoreError
from smalti.format.sizes import parse_byte_count
from smalti.redaction import redact_address
from smalti.storage import Place, Store, open_store
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
    count = _count_processes(processes)
    reading = _source_options(options, source_storage_options, settings, part_bytes)
    store = open_store(to, storage_options)
    with memory_errors(redact_address(str(getattr(source, "url", source)))[:200]):
        opened = open_source(source, format, reading)
    if isinstance(source, str | PathLike | Store):
        check_target(source if isinstance(source, Store) else str(source), source_storage_options, store)
    left_out_of(opened).warn(opened.url)
    with memory_errors(opened.url):
        job = plan_job(opened, options, reading.settings, reading.part_bytes)
    return _publish_job(job, store, count, on_progress)


def _source_options(
    options: WriteOptions,
    storage_options: Mapping[str, Any] | None,
    settings: Mapping[str, Any] | None,
    part_bytes: int | str | None,
) -> SourceOptions:
    """Return how the source is read: only the columns that are stored, unless a transform needs others."""
    require("settings", "a mapping", settings, met=settings is None or isinstance(settings, Mapping))
    chosen: tuple[str, ...] | None = None
    if options.columns is not None and options.transform is None:
        extra = [options.partition_by] if options.partition_by else []
        chosen = tuple(dict.fromkeys([*options.columns, *extra]))
    size = None if part_bytes is None else parse_byte_count(part_bytes, what="`part_bytes`")
    return SourceOptions(chosen, storage_options, size, dict(settings or {}))


def _count_processes(asked: int | None) -> int:
    """Return the number of processes: as asked, or one for each core that this process may use.

    Raises:
        ValueError: It is less than 1.
    """
    require("processes", "1 or more", asked, met=asked is None or (type(asked) is int and asked >= 1))
    if asked is not None:
        return asked
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _publish_job(job: Job, store: Store, processes: int, on_progress: OnProgress | None) -> Manifest:
    chosen = options_in_id(job.options)
    derived = derive_write_id(job.facts, chosen) if chosen is not None and job.is_exact else None
    write = identify(store, job.options, job.lineage, derived)
    if write.published is not None:
        return write.published
    check_append(write.parent, job.output.schema, job.output.logical)
    check_classes(write.parent, job)
    runner = _Runner(processes, on_progress)
    with begun(store, write) as watch:
        plan = WritePlan(store, write.write_id, job.options.shard_options, job.rows, job.output, UPLOADS, watch.disk)
        answers = runner.write(plan, job.groups)
        try:
            check_unchanged(job)
        except BaseException:
            _remove_shards(store, answers)
            _remove_attempts(plan, runner.lost)
            raise
        published = publish_shards(plan, write, job.options, answers, runner.join, watch)
    _remove_attempts(plan, runner.lost)
    return published.manifest


class _Runner:
    """Runs the tasks of a conversion: in processes, or in this one if a single process is asked for or needed."""

    def __init__(self, processes: int, on_progress: OnProgress | None = None) -> None:
        """Create the runner; the first tasks start processes."""
        self._processes = processes
        self._on_progress = on_progress
        self.lost: list[Attempt] = []
        """Attempts that died, and may have left shards."""

    def write(self, plan: WritePlan, groups: Sequence[Group]) -> Answers:
        """Write groups as shards, and return one answer for each, in order; blocks until all are in the store.

        If one fails, the shards of the others are removed.

        Raises:
            SmaltiError: What a task raised, or its processes died.
        """
        tasks = [
            WorkerTask(number, f"{plan.input.words.part} {number} ({group.name})", WriteGroup(group), group.num_bytes)
            for number, group in enumerate(groups)
        ]
        answers: Answers = []
        progress = _ProgressCount(tasks, self._on_progress)

        def done(task: WorkerTask, answer: dict[str, Any]) -> None:
            answers.append((task.attempts[-1], answer))
            progress.add(task)

        try:
            self._run(plan, tasks, done, progress.show)
        except BaseException:
            _remove_shards(plan.store, answers)
            raise
        return sorted(answers, key=lambda item: item[0].task)

    def join(self, plan: WritePlan, rows: list[tuple[int, str]]) -> Answers:
        """Join small shards, each row in a task of its own."""
        tasks = [WorkerTask(place, f"joined shard {place}", JoinShards(((place, shards),))) for place, shards in rows]
        answers: Answers = []
        self._run(plan, tasks, lambda task, answer: answers.append((task.attempts[-1], answer)), lambda _: None)
        return answers

    def _run(
        self,
        plan: WritePlan,
        tasks: list[WorkerTask],
        on_done: Callable[[WorkerTask, dict[str, Any]], None],
        on_rows: Callable[[WorkerTask], None],
    ) -> None:
        if self._processes == 1 or len(tasks) <= 1:
            for task in tasks:
                on_done(task, _run_here(plan, task, on_rows))
            return
        workers = Workers(plan, min(self._processes, len(tasks)))
        try:
            with workers:
                workers.run(tasks, on_done, on_rows)
        except BaseException:
            _remove_attempts(plan, [*self.lost, *workers.lost])
            raise
        self.lost += workers.lost


def _run_here(plan: WritePlan, task: WorkerTask, on_rows: Callable[[WorkerTask], None]) -> dict[str, Any]:
    def report(rows: int) -> None:
        task.rows = rows
        on_rows(task)

    attempt = Attempt.new(task.number)
    task.attempts.append(attempt)
    return task.work(plan, attempt, report)


class _ProgressCount:
    """Counts what tasks have read, and calls the caller's function."""

    def __init__(self, tasks: Sequence[WorkerTask], on_progress: OnProgress | None) -> None:
        self._tasks = tasks
        self._on_progress = on_progress
        self._done = self._num_bytes = 0
        self._total = sum(task.num_bytes for task in tasks)

    def add(self, task: WorkerTask) -> None:
        """Count a task that is done."""
        self._done += 1
        self._num_bytes += task.num_bytes
        self.show(task)

    def show(self, task: WorkerTask) -> None:  # noqa: ARG002  one signature for all calls
        """Report the state."""
        if self._on_progress is not None:
            rows = sum(task.rows for task in self._tasks)
            self._on_progress(ConversionProgress(self._done, len(self._tasks), rows, self._num_bytes, self._total))


def _remove_shards(store: Store, answers: Answers) -> None:
    """Delete the shards that these answers name. Best effort."""
    parts = collect_parts(answers)
    delete_all(store, [name for part in parts for name in written_keys(part.shards())])


def _remove_attempts(plan: WritePlan, attempts: Sequence[Attempt]) -> None:
    """Delete what these attempts have stored. Best effort: a vacuum removes what cannot be deleted now."""
    if not attempts:
        return
    place = "" if plan.input.partition_by else plan.write_id  # splits, above it, are known to the attempts alone
    folders = [f"{plan.write_id}/{attempt.name}/" for attempt in attempts]
    with contextlib.suppress(StoreError):
        keys = [item.key for item in plan.store.list(place)]
        delete_all(plan.store, [key for key in keys if any(folder in key for folder in folders)])
