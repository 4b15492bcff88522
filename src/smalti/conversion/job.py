"""The plan of a conversion: the columns of a source as stored, and its parts in groups, one for each task."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from smalti.catalog.header import Header
from smalti.conversion.source import CLASS_NAMES, ENCODING, Source, SourcePart, as_json, changed
from smalti.conversion.workers import Report
from smalti.errors import SchemaError, SmaltiError
from smalti.sources.listing import LeftOut
from smalti.writer.tables.attempts import Attempt
from smalti.writer.tables.packing import join_rows
from smalti.writer.tables.plain import plain_batch
from smalti.writer.tables.plan import (
    NUM_TRIAL_ROWS,
    ORIGIN,
    InputRows,
    OutputColumns,
    Words,
    WriteOptions,
    WritePlan,
    no_output,
    no_rows,
    plan_rows,
    require,
)
from smalti.writer.tables.task import write_shards
from smalti.writer.tables.types import kinds_of
from smalti.writer.uploader import UploadOptions

_NUM_GROUPS = 32
"""Groups of a source of middle size; it does not depend on the machine, so that equal rows give equal shards."""
_MIN_GROUP_BYTES, _MAX_GROUP_BYTES = 8 << 20, 64 << 20
UPLOADS = UploadOptions(max_workers=2, hash_rows=True)
"""Two shards are sealed and uploaded beside the one that is filled: the memory of a process is bounded by three."""

_SHOWN_CLASSES = 10


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


def join_shards(row: tuple[int, str], plan: WritePlan, attempt: Attempt, report: Report) -> dict[str, Any]:  # noqa: ARG001
    """Join small shards of neighbouring groups, which is a task, and return its answer."""
    return join_rows(plan, (row,), attempt)


@dataclass(frozen=True)
class Job:
    """A planned conversion."""

    source: Source
    rows: InputRows
    output: OutputColumns
    groups: tuple[Group, ...]
    options: WriteOptions
    facts: Mapping[str, Any]
    """Facts about the source (JSON)."""
    is_exact: bool
    """True if `facts` identify the rows."""
    lineage: Mapping[str, Any]
    """The facts, with the files of the source that are not read, for the manifest."""


def plan_job(source: Source, options: WriteOptions, settings: Mapping[str, Any], part_bytes: int | None) -> Job:
    """Return the plan of a conversion; reads no row, except that a transform runs on the first ones.

    Raises:
        SchemaError: A column cannot be stored as requested.
    """
    schema = source.schema()
    options = dataclasses.replace(options, metadata={**_classes(schema, options), **(options.metadata or {})})
    rows, output = plan_rows(
        kinds_of(schema),
        options,
        columns=_requested(schema, options),
        words=Words("the source", "part"),
    )
    groups = tuple(group_parts(source.parts(), part_bytes))
    if output.needs_first_rows:
        output = _learned(rows, output, groups)
    identity = source.identity()
    known = identity if isinstance(identity, Mapping) else {} if identity is None else {"identity": identity}
    facts = {"url": source.url, **known, **({"settings": as_json(settings)} if settings else {})}
    left_out = left_out_of(source)
    recorded = {**facts, "left_out": left_out.to_dict()} if left_out.counts else facts
    exact = identity is not None
    return Job(source, rows, output, groups, options, {"sources": [facts]}, exact, {"sources": [recorded]})


def _classes(schema: pa.Schema, options: WriteOptions) -> Mapping[str, Any]:
    """Return the names of classes for the manifest, if one of the stored columns holds the source's class numbers.

    A transform may have given the classes other numbers: what it returns has no names, unless the caller gives them.
    """
    if options.transform is not None:
        return {}
    stored = [field for field in schema if options.columns is None or field.name in options.columns]
    named = [field.metadata[CLASS_NAMES] for field in stored if CLASS_NAMES in (field.metadata or {})]
    return {"classes": json.loads(named[0])} if len(named) == 1 else {}


def check_classes(parent: Header | None, job: Job) -> None:
    """Return only if the class numbers of a source mean the same classes as those of the version that is appended to.

    Raises:
        SchemaError: They mean others.
    """
    before = [] if parent is None else list(parent.metadata.get("classes") or ())
    names = _classes(job.source.schema(), job.options).get("classes")
    are_callers = (job.options.metadata or {}).get("classes") != names
    if before and names and not are_callers and names[: len(before)] != before:
        raise SchemaError(
            f"cannot append to the set: its classes are {_shown(before)}, and those of {job.source.url} are "
            f"{_shown(names)}, so that the same number would mean two classes. Convert all of it again with "
            'mode="overwrite"; or change the numbers with a `transform`, and give the `columns` of the set, and '
            'metadata={"classes": [...]}'
        )


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:_SHOWN_CLASSES])) + (" and others" if len(names) > _SHOWN_CLASSES else "")


def _requested(schema: pa.Schema, options: WriteOptions) -> Mapping[str, str | None] | None:
    """Return the caller's `columns`, with the encodings that the source names for those without one."""
    if options.transform is not None:
        return options.columns
    named = {field.name: field.metadata[ENCODING].decode() for field in schema if ENCODING in (field.metadata or {})}
    if not named:
        return options.columns
    chosen = options.columns if options.columns is not None else dict.fromkeys(schema.names)
    return {name: encoding or named.get(name) for name, encoding in chosen.items()}


def _learned(rows: InputRows, output: OutputColumns, groups: Sequence[Group]) -> OutputColumns:
    """Return the columns that are stored of what the transform makes of the first rows."""
    batches = (batch for group in groups for batch in group.rows(rows.names, lambda _: None) if batch.num_rows)
    trial = next(batches, None)
    if trial is None:
        raise no_rows(rows.words)
    trial = trial.slice(0, NUM_TRIAL_ROWS)
    schema = rows.first_transformed(iter([trial]))
    if schema is None:
        raise no_output(trial.num_rows)
    return output.of_transformed(schema)


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


def left_out_of(source: Source) -> LeftOut:
    """Return the files that a source leaves out; none for a source without this attribute."""
    left_out = getattr(source, "left_out", None)
    return left_out if isinstance(left_out, LeftOut) else LeftOut()


def check_unchanged(job: Job) -> None:
    """Return only if the source still has the rows that were planned.

    Raises:
        SmaltiError: It changed.
    """
    if not job.is_exact:
        return
    before = job.facts["sources"][0]
    now = job.source.identity()
    known = now if isinstance(now, Mapping) else {"identity": now}
    if any(before.get(name) != value for name, value in known.items()):
        raise changed(job.source.url)
