"""`convert`: rows of any source as a version of a shard set, on all cores, without Spark.

The columns of a source are planned as they will be stored, and its parts are put into groups, one for each task. Then
the steps are those of every table, in `smalti.writer.tables.versions`. Tasks run in processes of this machine
(`workers`).
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import pyarrow as pa

from smalti.catalog import Manifest
from smalti.catalog.manifest import Header
from smalti.catalog.publishing import Mode
from smalti.catalog.table.shard_table import written_keys
from smalti.conversion.files import check_target
from smalti.conversion.registry import Format, open_source
from smalti.conversion.source import CLASS_NAMES, ENCODING, Source, SourceOptions, SourcePart, as_json, changed
from smalti.conversion.workers import Report, WorkerTask, run_tasks
from smalti.errors import SchemaError, SmaltiError, StoreError
from smalti.format.sizes import parse_byte_count
from smalti.redaction import redact_address
from smalti.sources.listing import LeftOut
from smalti.storage import Place, Store, open_store
from smalti.writer.tables.plan import (
    NUM_TRIAL_ROWS,
    ORIGIN,
    Answers,
    Attempt,
    InputRows,
    OutputColumns,
    Words,
    WriteOptions,
    WritePlan,
    check_append,
    no_output,
    no_rows,
    plan_rows,
    require,
)
from smalti.writer.tables.task import write_shards
from smalti.writer.tables.transform import Transform, TransformFunction
from smalti.writer.tables.types import kinds_of
from smalti.writer.tables.values import plain_batch
from smalti.writer.tables.versions import (
    begun,
    collect_parts,
    delete_all,
    derive_write_id,
    identify,
    join_rows,
    options_in_id,
    publish_shards,
)
from smalti.writer.uploader import UploadOptions

_NUM_GROUPS = 32
"""Groups of a source of middle size; it does not depend on the machine, so that equal rows give equal shards."""
_MIN_GROUP_BYTES, _MAX_GROUP_BYTES = 8 << 20, 64 << 20
_UPLOADS = UploadOptions(max_workers=2, hash_rows=True)
"""Two shards are sealed and uploaded beside the one that is filled: the memory of a process is bounded by three."""

_SHOWN_CLASSES = 10


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
    left_out = getattr(opened, "left_out", None)  # a source of the caller's need not have it
    left_out = left_out if isinstance(left_out, LeftOut) else LeftOut()
    left_out.warn(opened.url)
    with memory_errors(opened.url):
        job = _plan_job(opened, options, reading, left_out)
    return _publish_job(job, store, processes or cores, on_progress)


@contextlib.contextmanager
def memory_errors(where: str) -> Iterator[None]:
    """Raise an error that says what to do where this process gets less memory than it asks for.

    Arrow's error of missing memory is one of its others, too, so that sources may take it for damage.

    Raises:
        SmaltiError: Memory was missing; `where` names what was read.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, MemoryError):
            cause = cause.__cause__
        if cause is None:
            raise
        reason = f" ({cause})" if str(cause) else ""
        raise SmaltiError(
            f"{where}: it takes more memory than this process may use{reason}. Use fewer `processes`, or write smaller "
            "files or row groups; if the files are small, they are damaged: fetch them again"
        ) from error


@dataclass(frozen=True)
class Group:
    """Neighbouring parts of a source; called, the task that writes their rows as shards."""

    parts: tuple[SourcePart, ...]

    @property
    def name(self) -> str:
        """Name for messages."""
        first, last = self.parts[0].name, self.parts[-1].name
        return first if len(self.parts) == 1 else f"{first} to {last}"

    @property
    def num_bytes(self) -> int:
        """Stored bytes of all parts."""
        return sum(part.num_bytes for part in self.parts)

    def __call__(self, plan: WritePlan, attempt: Attempt, report: Report) -> dict[str, Any]:
        """Write the shards, and return the answer of the task.

        Raises:
            SmaltiError: The group cannot be read, or a value cannot be stored; the message names the group.
        """
        rows = self.rows(plan.input.names, report, with_origins=plan.input.transform is None)
        where = plan.input.where(attempt)
        try:
            with memory_errors(f"{where} ({self.name})"):
                return write_shards(plan, rows, attempt)
        except SchemaError as error:
            rest = error.message.removeprefix(where)
            raise SchemaError(f"{where} ({self.name}){rest}", **error.facts) from error

    def rows(self, names: Sequence[str], report: Report, *, with_origins: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all parts with these columns, in Arrow's plain types.

        With `with_origins`, rows from parts that know the file of each have a last column `ORIGIN` with its name.
        """
        count = 0
        for part in self.parts:
            origin = getattr(part, "origin", None) if with_origins else None
            place = 0
            for batch in part.batches():
                try:
                    plain = plain_batch(batch.select(list(names)))
                except SchemaError as error:
                    raise SchemaError(f"{part.name}: {error.message}", **error.facts) from error
                if origin is not None:
                    paths = [origin(row) for row in range(place, place + batch.num_rows)]
                    plain = plain.append_column(ORIGIN, pa.array(paths, pa.string()))
                yield plain
                place += batch.num_rows
                count += batch.num_rows
                report(count)


@dataclass(frozen=True)
class _Job:
    """A planned conversion."""

    source: Source
    rows: InputRows
    output: OutputColumns
    groups: tuple[Group, ...]
    options: WriteOptions
    identity: Any
    """The source's, before its rows were read; None if they cannot be recognised again."""
    facts: Mapping[str, Any]
    """Facts about the source (JSON)."""
    lineage: Mapping[str, Any]
    """The facts, with the files of the source that are not read, for the manifest."""


def _plan_job(source: Source, options: WriteOptions, reading: SourceOptions, left_out: LeftOut) -> _Job:
    """Return the plan of a conversion; reads no row, except that a transform runs on the first ones.

    Raises:
        SchemaError: A column cannot be stored as requested.
    """
    schema = source.schema()
    options = dataclasses.replace(options, metadata={**_classes(schema, options), **(options.metadata or {})})
    columns = options.columns
    named = {field.name: field.metadata[ENCODING].decode() for field in schema if ENCODING in (field.metadata or {})}
    if named and options.transform is None:  # the encodings that the source names, for columns without one
        chosen = dict.fromkeys(schema.names) if columns is None else columns
        columns = {name: encoding or named.get(name) for name, encoding in chosen.items()}
    rows, output = plan_rows(kinds_of(schema), options, columns=columns, words=Words("the source", "part"))
    groups = tuple(group_parts(source.parts(), reading.part_bytes))
    if output.needs_first_rows:  # the columns are those of what the transform makes of them
        batches = (batch for group in groups for batch in group.rows(rows.names, lambda _: None) if batch.num_rows)
        if (trial := next(batches, None)) is None:
            raise no_rows(rows.words)
        trial = trial.slice(0, NUM_TRIAL_ROWS)
        if (transformed := rows.first_transformed(iter([trial]))) is None:
            raise no_output(trial.num_rows)
        output = output.of_transformed(transformed)
    identity = source.identity()
    known = identity if isinstance(identity, Mapping) else {} if identity is None else {"identity": identity}
    facts = {"url": source.url, **known, **({"settings": as_json(reading.settings)} if reading.settings else {})}
    recorded = {**facts, "left_out": left_out.to_dict()} if left_out.counts else facts
    return _Job(source, rows, output, groups, options, identity, {"sources": [facts]}, {"sources": [recorded]})


def _classes(schema: pa.Schema, options: WriteOptions) -> Mapping[str, Any]:
    """Return the names of classes for the manifest, if one of the stored columns holds the source's class numbers.

    A transform may have given the classes other numbers: what it returns has no names, unless the caller gives them.
    """
    if options.transform is not None:
        return {}
    stored = [field for field in schema if options.columns is None or field.name in options.columns]
    named = [field.metadata[CLASS_NAMES] for field in stored if CLASS_NAMES in (field.metadata or {})]
    return {"classes": json.loads(named[0])} if len(named) == 1 else {}


def _check_classes(parent: Header | None, job: _Job) -> None:
    """Return only if the class numbers of a source mean the same classes as those of the version that is appended to.

    Raises:
        SchemaError: They mean others.
    """
    before = [] if parent is None else list(parent.metadata.get("classes") or ())
    names = _classes(job.source.schema(), job.options).get("classes")
    are_callers = (job.options.metadata or {}).get("classes") != names
    if before and names and not are_callers and names[: len(before)] != before:
        shown = [
            ", ".join(map(str, classes[:_SHOWN_CLASSES])) + (" and others" if len(classes) > _SHOWN_CLASSES else "")
            for classes in (before, names)
        ]
        raise SchemaError(
            f"cannot append to the set: its classes are {shown[0]}, and those of {job.source.url} are "
            f"{shown[1]}, so that the same number would mean two classes. Convert all of it again with "
            'mode="overwrite"; or change the numbers with a `transform`, and give the `columns` of the set, and '
            'metadata={"classes": [...]}'
        )


def group_parts(parts: Sequence[SourcePart], part_bytes: int | None) -> Iterator[Group]:
    """Yield neighbouring parts in groups of about `part_bytes`; parts of unknown size stay alone. Pure.

    The groups depend on the parts alone, so that the same source gives the same shards on every machine.
    """
    require("part_bytes", "1 or more bytes", part_bytes, met=part_bytes is None or part_bytes >= 1)
    total = sum(part.num_bytes for part in parts)
    limit = part_bytes or min(max(total // _NUM_GROUPS, _MIN_GROUP_BYTES), _MAX_GROUP_BYTES)
    chosen: list[SourcePart] = []
    num_bytes = 0
    for part in parts:
        if chosen and (not part.num_bytes or not num_bytes or num_bytes + part.num_bytes > limit):
            yield Group(tuple(chosen))
            chosen, num_bytes = [], 0
        chosen.append(part)
        num_bytes += part.num_bytes
    if chosen:
        yield Group(tuple(chosen))


def _publish_job(job: _Job, store: Store, processes: int, on_progress: OnProgress | None) -> Manifest:
    chosen = options_in_id(job.options)
    derived = derive_write_id(job.facts, chosen) if chosen is not None and job.identity is not None else None
    write = identify(store, job.options, job.lineage, derived)
    if write.published is not None:
        return write.published
    check_append(write.parent, job.output.schema, job.output.logical)
    _check_classes(write.parent, job)
    lost: list[Attempt] = []
    with begun(store, write) as watch:
        plan = WritePlan(store, write.write_id, job.options.shard_options, job.rows, job.output, _UPLOADS, watch.disk)

        def join_many(plan: WritePlan, rows: list[tuple[int, str]]) -> Answers:
            tasks = [
                WorkerTask(place, f"joined shard {place}", partial(_join_shards, (place, shards)))
                for place, shards in rows
            ]
            joined: Answers = []
            run_tasks(plan, tasks, processes, joined, lost, lambda: None)
            return joined

        try:
            answers = _write_groups(plan, job, processes, on_progress, lost)
            return publish_shards(plan, write, job.options, answers, join_many, watch)[0]
        finally:
            if lost:  # best effort: a vacuum removes what these attempts have stored and cannot be deleted now
                place = "" if job.rows.partition_by else plan.write_id  # only attempts know the splits, above it
                folders = [f"{plan.write_id}/{attempt.name}/" for attempt in lost]
                with contextlib.suppress(StoreError):
                    keys = [item.key for item in store.list(place)]
                    delete_all(store, [key for key in keys if any(folder in key for folder in folders)])


def _write_groups(
    plan: WritePlan, job: _Job, processes: int, on_progress: OnProgress | None, lost: list[Attempt]
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
        if job.identity is not None and job.source.identity() != job.identity:
            raise changed(job.source.url)
    except BaseException:
        written = [name for part in collect_parts(answers) for name in written_keys(part.shards())]
        delete_all(plan.store, written)  # best effort
        raise
    return sorted(answers, key=lambda item: item[0].task)


def _join_shards(row: tuple[int, str], plan: WritePlan, attempt: Attempt, report: Report) -> dict[str, Any]:  # noqa: ARG001
    """Join small shards of neighbouring groups, which is a task, and return its answer."""
    return join_rows(plan, (row,), attempt)
