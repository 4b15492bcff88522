"""The driver's side of `dataframe_to_mds`: what is checked before, run by tasks, and published after."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from smalti.catalog import Draft, Manifest, in_progress, publish
from smalti.catalog.row_hash import row_hash_text
from smalti.catalog.sidecars import check_no_added_columns
from smalti.catalog.table import table_of
from smalti.errors import SchemaError, StoreError
from smalti.format import Schema, ShardBuilder, ShardInfo, ShardOptions
from smalti.spark.columns import plan_table
from smalti.spark.connect_files import Listed, files_now
from smalti.spark.identity import Write, identify
from smalti.spark.learning import learn
from smalti.spark.lineage import check_unchanged
from smalti.spark.options import WriteOptions
from smalti.spark.packing import delete_all, find_runs, in_order, joined_keys, pack, unsynced_keys
from smalti.spark.prepare import policy_of
from smalti.spark.progress import Reporter, reporting
from smalti.spark.routing import ERROR
from smalti.spark.shuffle import spread
from smalti.spark.tasks import Answers, run_tasks
from smalti.spark.transform import transform_of
from smalti.spark.writing import (
    WritePlan,
    collect_columns,
    collect_parts,
    plan_arrow,
    reads_of,
    write_shards,
)
from smalti.storage import Store
from smalti.storage.disk import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        in_progress.begin(store, write.write_id)  # which makes the root, if it is a folder
        with store.watched() as watch:
            plan = dataclasses.replace(plan, disk=watch.disk)
            manifest, joined = _published(frame, plan, write, options, _checked(df, run, before), report, watch)
    delete_all(store, joined)
    in_progress.end(store, write.write_id)
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
        write.lineage,
        dict(options.metadata or {}),
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
