"""The driver's side of `dataframe_to_mds`: what is checked before, run by tasks, and published after.

Which write a call is: its id, and whether its version is there already.
"""

import dataclasses
import functools
import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from smalti.catalog import Draft, Manifest, history, load_manifest, new_write_id, publish
from smalti.catalog.additions.columns import check_no_added_columns
from smalti.catalog.header import Header
from smalti.catalog.manifest import row_hash_text
from smalti.catalog.publishing.publish import check_target
from smalti.catalog.retention import markers
from smalti.catalog.table.arrow import table_of
from smalti.errors import SchemaError, StoreError
from smalti.format import Schema, ShardBuilder, ShardInfo, ShardOptions
from smalti.spark.lineage.source import Listed, check_unchanged, files_now, source_of, write_id_of
from smalti.spark.prepare import policy_of
from smalti.spark.tasks import Answers, run_tasks
from smalti.spark.types.columns import plan_table
from smalti.spark.writing.options import WriteOptions
from smalti.spark.writing.packing import delete_all, find_runs, in_order, joined_keys, pack, unsynced_keys
from smalti.spark.writing.progress import Reporter, reporting
from smalti.spark.writing.routing import ERROR, spread
from smalti.spark.writing.task import (
    WritePlan,
    collect_columns,
    collect_parts,
    learn,
    plan_arrow,
    reads_of,
    write_shards,
)
from smalti.spark.writing.transform import transform_of
from smalti.storage import Store
from smalti.storage.store import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WITHOUT = (
    "transform",
    "progress",
    "write_id",
    "storage_options",
)  # the first is checked apart, the others change no row
_REPLACING = ("create", "overwrite", "rollback")


@dataclasses.dataclass(frozen=True)
class Write:
    """One write, before it begins."""

    write_id: str
    parent: Header | None
    """The newest version."""
    lineage: dict[str, Any]
    """What Spark tells of the source, and what the caller does."""
    done: Manifest | None = None
    """The version that this write has already."""


def identify(df: "DataFrame", store: Store, options: WriteOptions) -> Write:
    """The write that this call is.

    A write id that the caller gives names it for good. Else equal calls over an equal source, as far as Spark tells
    that it is equal, are the same write as long as its rows are what the set shows.

    Raises:
        DatasetExists: the mode is `create`, the place holds a set, and this write is not what made it.
    """
    source = source_of(df)
    lineage = {**source, **dict(options.lineage or {})}
    derived = None if options.write_id is not None or options.transform is not None else _derived(source, options)
    write_id = options.write_id or derived or new_write_id()
    header = check_target(store, options.mode, write_id=write_id).header
    version = header.writes.get(write_id) if header is not None else None
    is_fenced = derived is not None and header is not None and write_id in header.fenced  # by a vacuum: used up
    if header is None or (version is None and not is_fenced):
        return Write(write_id, header, lineage)
    if version is not None and (derived is None or _is_shown(store, header, version, options)):
        return Write(write_id, header, lineage, load_manifest(store, version=version))
    fresh = f"{write_id}-{secrets.token_hex(4)}"
    return Write(fresh, check_target(store, options.mode, write_id=fresh).header, lineage)


def _derived(source: dict[str, Any], options: WriteOptions) -> str | None:
    facts = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name not in _WITHOUT
    }
    return write_id_of(source, {name: repr(value) for name, value in facts.items()})


def _is_shown(store: Store, newest: Header, version: int, options: WriteOptions) -> bool:
    """Whether the rows of this version are those of the newest, or, of an append, still among them."""
    later = [info for info in history(store) if info.version >= version]
    if options.mode != "append":
        return any(info.version == version and info.digest == newest.digest for info in later)
    return not any(info.version > version and info.operation in _REPLACING for info in later)


Run = Callable[["DataFrame", WritePlan], Answers]


_MANY_SHARDS = 4096  # are kept as a table: a tenth of the memory


def run_arrow(df: "DataFrame", plan: WritePlan) -> Answers:
    """The tasks over Arrow batches."""
    return run_tasks(df, functools.partial(write_shards, plan))


def write_frame(df: "DataFrame", plan: WritePlan, options: WriteOptions, *, run: Run = run_arrow) -> Manifest:
    """The version with the rows of the frame, by a plan from `draft_plan`; `dataframe_to_mds` documents it."""
    store = plan.store
    write = identify(df, store, options)
    if write.done is not None:
        return write.done
    before = files_now(df)
    if options.mode != "append":
        write = dataclasses.replace(write, parent=None)
    frame = arrange(df, plan)
    with reporting(df.sparkSession, store.url, options.progress) as report:
        plan = _complete(frame, dataclasses.replace(plan, write_id=write.write_id), write)
        if options.seed is not None:
            frame = spread(frame, options.seed, options.target_shards)
        markers.begin(store, write.write_id)  # which makes the root, if it is a folder
        with store.watched() as watch:
            plan = dataclasses.replace(plan, disk=watch.disk)
            manifest, joined = _published(frame, plan, write, options, _checked(df, run, before), report, watch)
    delete_all(store, joined)
    markers.end(store, write.write_id)
    return manifest


def _checked(df: "DataFrame", run: Run, before: Listed | None) -> Run:
    """The tasks, and then a look whether the files that they read are those that were listed."""

    def checked(frame: "DataFrame", plan: WritePlan) -> Answers:
        answers = run(frame, plan)
        check_unchanged(df, before)
        return answers

    return checked


def draft_plan(df: "DataFrame", store: Store, options: WriteOptions) -> WritePlan:
    """The plan as far as it is known without reading a row; it has no write id yet.

    Raises:
        SchemaError: columns or options that cannot be.
    """
    policy = policy_of(df.schema)
    plan = WritePlan(
        store=store,
        write_id="",
        schema=None,
        options=options.shard_options,
        partition_by=options.partition_by,
        bad_images=policy,
        asked=options.columns,
        nulls=options.nulls,
    )
    if options.transform is not None:
        _check_options(Schema.from_columns({"x": "int"}), plan.options)
        twice = sorted({name for name in df.columns if df.columns.count(name) > 1})
        if twice:
            raise SchemaError(f"the DataFrame has column {twice[0]!r} more than once; rename or drop one")
        return dataclasses.replace(plan, transform=transform_of(options.transform), reads=tuple(df.columns))
    asked = options.columns if options.columns is not None else _default_columns(df.columns, policy)
    columns = plan_table(df.schema, asked, options.nulls)
    schema = Schema.from_columns(columns.encodings)
    _check_options(schema, plan.options)
    _check_partition_column(df, options.partition_by)
    reads = reads_of(columns.names, options.partition_by, policy)
    return dataclasses.replace(plan, schema=schema, columns=columns, reads=reads)


def _check_options(schema: Schema, options: ShardOptions) -> None:
    """Refuse unusable options now, not in the first task."""
    ShardBuilder(schema, options)


def _default_columns(names: list[str], policy: str | None) -> dict[str, str | None] | None:
    """For the frame of `prepare_images`: everything but `error`, and the image as the JPEG that it is."""
    if policy is None:
        return None
    return {name: "jpeg" if name == "image" else None for name in names if name != ERROR}


def _check_partition_column(df: "DataFrame", name: str | None) -> None:
    if name is None:
        return
    if name not in df.columns:
        raise SchemaError(f"`partition_by` names {name!r}, the DataFrame has {', '.join(df.columns)}", column=name)
    kind = df.schema[name].dataType.typeName()
    if kind != "string":
        raise SchemaError(f"`partition_by` column {name!r} must hold text, found {kind}: cast it first", column=name)


def arrange(df: "DataFrame", plan: WritePlan) -> "DataFrame":
    """The columns that tasks read as c0, c1, ...

    `mapInArrow` takes no names with dots or backticks; tasks name them back.
    """
    from pyspark.sql import functions

    selected = plan.columns.select(df) if plan.columns is not None else df
    names = list(plan.needed())
    quoted = ("`" + name.replace("`", "``") + "`" for name in names)
    return selected.select(*(functions.col(name).alias(f"c{place}") for place, name in enumerate(quoted)))


def _complete(frame: "DataFrame", plan: WritePlan, write: Write) -> WritePlan:
    """The plan with what a transform gives, learnt by a small run unless the caller named every encoding."""
    is_told = plan.asked is not None and all(encoding is not None for encoding in plan.asked.values())
    if plan.transform is not None and not is_told:
        given = learn(frame, plan)
        columns = plan_arrow(given, plan.asked, plan.nulls)
        schema = Schema.from_columns(columns.encodings)
        plan = dataclasses.replace(plan, transformed=given, columns=columns, schema=schema)
    if plan.schema is not None:
        _check_append(plan.schema, plan.columns.logical if plan.columns is not None else {}, write)
    return plan


def _check_append(schema: Schema, logical: Mapping[str, Any], write: Write) -> None:
    """Refuse before the work what publishing would refuse after it; and what would mix two meanings of one encoding."""
    parent = write.parent
    if parent is None or not parent.rows:
        return
    check_no_added_columns(parent)
    for name in sorted({*schema.columns(), *parent.columns}):
        found = (schema.columns().get(name), logical.get(name))
        before = (parent.columns.get(name), parent.logical.get(name))
        if found != before:
            raise SchemaError(
                f"cannot append to version {parent.version}: column {name!r} is {_told(before)} there, and "
                f"{_told(found)} here",
                column=name,
            )


def _told(kind: tuple[str | None, Any]) -> str:
    encoding, logical = kind
    if encoding is None:
        return "not there" if logical is None else f"{logical}"
    return repr(encoding) if logical is None else f"{encoding!r} ({logical})"


def _published(
    frame: "DataFrame",
    plan: WritePlan,
    write: Write,
    options: WriteOptions,
    run: Run,
    report: Reporter,
    watch: Watch,
) -> tuple[Manifest, list[str]]:
    """The new version, and the objects that were joined into others."""
    answers = run(frame, plan)
    row_hash = row_hash_text(sum(int(answer["row_hash"], 16) for _, answer in answers))
    parts = collect_parts(answers)
    schema, logical = _columns_of(plan, answers)
    answers.clear()  # of a million shards they are large
    if schema is None or (not parts and options.mode != "append"):
        raise SchemaError("the DataFrame has no rows; nothing was published")
    if plan.schema is None:
        _check_append(schema, logical, write)
    runs = find_runs(parts, schema, plan) if options.target_shards is None else []
    ordered = in_order(parts, runs, pack(frame.sparkSession, plan, runs))
    num_shards = sum(part.count for part in parts) - sum(len(run) - 1 for run in runs)
    joined = joined_keys(runs)
    shards = tuple(ordered) if num_shards < _MANY_SHARDS else table_of(ordered)
    _sync(plan.store, watch, unsynced_keys(parts, runs), shards, joined)
    draft = Draft(
        write.write_id,
        schema,
        shards,
        lineage=write.lineage,
        metadata=dict(options.metadata or {}),
        logical=logical,
        row_hash=row_hash,
    )
    manifest = publish(plan.store, draft, mode=options.mode)
    report.finish(manifest, shards)
    return manifest, joined


def _sync(store: Store, watch: Watch, unsynced: Iterator[str], shards: Sequence[ShardInfo], joined: list[str]) -> None:
    """Make durable what tasks left to be synced here; where that fails, nothing of the write stays.

    Tasks do not wait for the disk, which leaves their cores idle; what they wrote first is on it by now.
    """
    try:
        while keys := list(itertools.islice(unsynced, _MANY_SHARDS)):
            watch.sync(keys)
    except StoreError:
        delete_all(store, [*(file.basename for info in shards for file in info.stored_files), *joined])
        raise


def _columns_of(plan: WritePlan, answers: Answers) -> tuple[Schema | None, dict[str, Any]]:
    if plan.schema is not None:
        return plan.schema, dict(plan.columns.logical) if plan.columns is not None else {}
    found = collect_columns(answers)
    return (None, {}) if found is None else (Schema.from_columns(found[0]), found[1])
