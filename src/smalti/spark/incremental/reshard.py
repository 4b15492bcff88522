"""A shard set kept up to date with its source files: only new and changed files are converted.

    1. the newest version tells what it was made of: each file's fingerprint, and the shards that hold its samples;
    2. shards with samples of nothing but unchanged files are kept as they are, by name;
    3. what stays of the other shards is copied out of them without being decoded;
    4. new and changed files are converted, and one new version with exactly the rows of a full conversion is published,
       if nobody published meanwhile.

Nothing to do gives the version that there is. A compaction carries over what is known of files. Rows that somebody
appended are of no file: they are not in the new version, and their shards are not read. Another recipe, or a version
that does not tell its files, means that everything is converted.

Publishing what was made from one version, as long as the newest one shows the same.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.catalog import Draft, Manifest, load_manifest, new_write_id, publish
from smalti.catalog.additions.columns import columns_of, sources_of
from smalti.catalog.additions.source_files import (
    SampleRun,
    SourceRecord,
    SourceTable,
    read_source_record,
    split_runs,
    store_sources,
)
from smalti.catalog.manifest import check_json, row_hash_text
from smalti.catalog.publishing.publish import check_target, replace_content
from smalti.catalog.retention import markers
from smalti.errors import SchemaError
from smalti.format import Schema, ShardInfo
from smalti.format.sizes import parse_size_limit
from smalti.spark.incremental.copying import Surviving, copy_surviving
from smalti.spark.incremental.source_table import RunRecorder, SourceFile, unpack_runs
from smalti.spark.tasks import Answers, Attempt, run_tasks
from smalti.spark.writing.job import arrange, draft_plan
from smalti.spark.writing.options import WriteOptions
from smalti.spark.writing.packing import delete_all, find_runs, in_order, joined_keys, pack
from smalti.spark.writing.routing import by_split, without_bad_images
from smalti.spark.writing.task import Part, WritePlan, collect_parts, write_shards
from smalti.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def publish_from(store: Store, base: Manifest, draft: Draft, *, operation: str) -> Manifest:
    """The new version that holds the draft's shards, made from `base`.

    Versions that show the same as `base` may have come in between: a vacuum makes such ones.

    Raises:
        CommitConflict: the newest version shows something else; nothing of ours is visible.
        Otherwise: as for `catalog.publish`.
    """
    newest = check_target(store, "overwrite", write_id=draft.write_id).header
    shown = (base.digest, list(base.sidecars), dict(base.logical))
    same = newest is not None and (newest.digest, list(newest.sidecars), dict(newest.logical)) == shown
    based_on = newest.version if newest is not None and same else base.version
    return replace_content(store, draft, based_on=based_on, operation=operation)


Prepare = Callable[["SparkSession", Sequence[str]], "DataFrame"]
_MOST_SMALL = 8
"""Small shards of a split that are put up with before they are copied into full ones."""
_SMALL_SHARE = 4
"""A shard is small below this part of the size limit."""
_RECIPE = 1  # raise it when the same options would give other rows


@dataclass(frozen=True)
class Recipe:
    """How files become rows and shards; another one converts everything."""

    prepare: Any
    """What the caller says about its function: options, a version of its code; JSON."""
    path_column: str
    options: WriteOptions

    @property
    def digest(self) -> str:
        """Equal for equal recipes; hex."""
        chosen = asdict(self.options)
        names = ("columns", "nulls", "compression", "hashes", "size_limit", "partition_by")
        facts = [_RECIPE, self.prepare, self.path_column, {name: repr(chosen[name]) for name in names}]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Base:
    """The version that is built on."""

    manifest: Manifest | None
    """None where there is no set yet."""
    told: SourceRecord | None
    """None where it is not known what it was made of, or it was made by another recipe."""

    @property
    def sources(self) -> SourceTable | None:
        """Which files its rows came from, those aside that somebody appended."""
        return None if self.told is None else self.told.table

    @property
    def own_shards(self) -> list[ShardInfo]:
        """Its shards with rows of source files; none where nothing is known."""
        if self.manifest is None or self.told is None:
            return []
        return [shard for shard in self.manifest.shards if self.told.table.covers(shard)]

    @property
    def row_hash(self) -> str:
        """Of the samples of these shards; empty if it is not known."""
        if self.manifest is None or self.told is None:
            return ""
        if self.told.row_hash is not None:
            return self.told.row_hash
        return self.manifest.row_hash if len(self.own_shards) == len(self.manifest.shards) else ""

    def holds(self, wanted: Mapping[str, str]) -> bool:
        """Whether it has the rows of exactly these files."""
        if self.manifest is None or self.told is None or self.told.table.fingerprints != wanted:
            return False
        return all(map(self.told.table.covers, self.manifest.shards))


def reshard_files(  # noqa: PLR0913  the public door: these names are the documented interface
    spark: "SparkSession",
    files: Sequence[SourceFile],
    out: str | Path,
    *,
    prepare: Prepare,
    recipe: Any,
    path_column: str = "path",
    columns: Mapping[str, str | None] | None = None,
    nulls: str | Mapping[str, Any] = "reject",
    compression: str | None = "zstd",
    hashes: tuple[str, ...] = ("xxh3_64",),
    size_limit: int | str | None = 1 << 26,
    partition_by: str | None = None,
    lineage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """The version that holds the rows of exactly these files; only new and changed ones are converted. Blocks.

    Args:
        spark: the session.
        files: all files that the set is to hold, each with a fingerprint.
        out: a path or URL that all executors and this process can write to.
        prepare: called with the session and the paths to convert; a DataFrame with their rows, which depend on nothing
            but the file and `recipe`. Rows may come in any order; a file may give none.
        recipe: whatever else decides the rows (options, a version of the code), as JSON: when it changes, all files
            are converted.
        path_column: the column of that frame, and of the set, that holds the path of each row's file.
        columns: as for `dataframe_to_mds`, as are those that follow; `path_column` must be among them.
        nulls: what becomes of nulls.
        compression: of shard files.
        hashes: checksums of shard files.
        size_limit: largest shard before compression.
        partition_by: a column whose values become splits.
        lineage: kept in the manifest, beside the number and digest of the files.
        metadata: kept in the manifest.
        storage_options: credentials and endpoint of the store.

    Returns:
        The new version, or the newest one if nothing changed.

    Raises:
        SchemaError: a column cannot be stored, there are no rows at all, or columns were added beside the shards.
        CommitConflict: somebody else published meanwhile; nothing of ours is visible.
        Otherwise: as for `dataframe_to_mds`.
    """
    options = WriteOptions(
        columns=columns,
        nulls=nulls,
        compression=compression,
        hashes=tuple(hashes),
        size_limit=size_limit,
        partition_by=partition_by,
        mode="overwrite",
        lineage=lineage,
        metadata=metadata,
        storage_options=storage_options,
    )
    check_json("recipe", {"recipe": recipe})
    store, how = open_store(out, storage_options), Recipe(recipe, path_column, options)
    return bring_up_to_date(store, how, files, Work(spark, prepare, convert_by_tasks))


def convert_by_tasks(frame: "DataFrame", plan: WritePlan, how: Recipe) -> Answers:
    """The rows of a frame as shards in the store, on Spark's executors."""
    return run_tasks(arrange(frame, plan), functools.partial(convert_files, plan, how.path_column))


@dataclass(frozen=True)
class Work:
    """How files become shards."""

    spark: "SparkSession"
    prepare: Prepare
    convert: Callable[["DataFrame", WritePlan, Recipe], Answers]


def bring_up_to_date(store: Store, how: Recipe, files: Sequence[SourceFile], work: Work) -> Manifest:
    """What `reshard_files` does, and documents."""
    wanted = _by_path(files)
    base = find_base(store, how)
    if base.manifest is not None and base.holds(wanted):
        return base.manifest
    return _Resharding(store, how, base, wanted).run(work)


def _by_path(files: Sequence[SourceFile]) -> dict[str, str]:
    wanted = {file.path: file.fingerprint for file in files}
    if len(wanted) != len(files):
        raise ValueError(f"`files` names {len(files) - len(wanted)} paths more than once")
    return wanted


def find_base(store: Store, how: Recipe) -> Base:
    """The newest version, and what it says of the files that it was made of.

    Raises:
        SchemaError: it has columns beside its shards, which a re-sharded one would lack.
    """
    header = check_target(store, "overwrite").header
    if header is None:
        return Base(None, None)
    added = [name for entry in columns_of(header.sidecars) for name in entry.columns]
    if added:
        raise SchemaError(
            f"cannot re-shard version {header.version} of {store.url}: its columns {', '.join(map(repr, added))} were "
            "added beside the shards. Take them out with `drop_columns`, re-shard, and add them again",
            columns=added,
        )
    manifest, entry = load_manifest(store, version=header.version), sources_of(header.sidecars)
    if entry is None or entry.get("recipe") != how.digest:
        return Base(manifest, None)
    return Base(manifest, read_source_record(store, entry, manifest.shards))


@dataclass(frozen=True)
class _Resharding:
    """One run."""

    store: Store
    how: Recipe
    base: Base
    wanted: Mapping[str, str]

    def run(self, work: Work) -> Manifest:
        """Convert, copy, publish."""
        before = self.base.sources.fingerprints if self.base.sources is not None else {}
        gone = {path for path, mark in before.items() if self.wanted.get(path) != mark}
        fresh = [path for path, mark in self.wanted.items() if before.get(path) != mark]
        kept, surviving = self._divide(gone)
        frame = work.prepare(work.spark, fresh) if fresh else None
        write_id = new_write_id()
        drafted = self._plan(frame) if frame is not None else None
        plan = replace(drafted or WritePlan(self.store, "", None, self.how.options.shard_options), write_id=write_id)
        markers.begin(self.store, write_id)
        copied = copy_surviving(work.spark, plan, surviving)
        converted = work.convert(frame, plan, self.how) if frame is not None else []
        _check_paths(converted, fresh)
        parts = _parts(copied, converted)
        schema = self._schema(plan, parts, kept)
        joins = find_runs(parts, schema, plan)
        shards = list(in_order(parts, joins, pack(work.spark, plan, joins)))
        runs = self._runs(gone, kept, surviving, converted, shards)
        row_hash = self._row_hash(copied, converted)
        told = SourceRecord(SourceTable(self.wanted, runs), self.how.digest, row_hash)
        draft = Draft(
            write_id,
            schema,
            sorted([*kept, *shards], key=lambda shard: shard.partition or ""),
            lineage={**self._lineage(), **dict(self.how.options.lineage or {})},
            metadata=dict(self.how.options.metadata or {}),
            logical=self._logical(plan),
            row_hash=row_hash,
            sidecars=(store_sources(self.store, told, write_id),),
        )
        manifest = self._publish(draft)
        delete_all(self.store, joined_keys(joins))
        markers.end(self.store, write_id)
        return manifest

    def _divide(self, gone: set[str]) -> tuple[list[ShardInfo], list[Surviving]]:
        """The shards that stay, and those of which only a part does; none of those of which nothing is known."""
        if self.base.sources is None:
            return [], []
        shards, runs = self.base.own_shards, self.base.sources.runs
        torn = self.base.sources.shards_with(gone)
        torn |= _small(shards, torn, parse_size_limit(self.how.options.size_limit))
        kept = [shard for shard in shards if shard.raw.basename not in torn]
        going = [shard for shard in shards if shard.raw.basename in torn]
        return kept, [Surviving(shard, _ranges(runs[shard.raw.basename], gone)) for shard in going]

    def _plan(self, frame: "DataFrame") -> WritePlan:
        plan = draft_plan(frame, self.store, self.how.options)
        if plan.schema is None or plan.schema.columns().get(self.how.path_column) != "str":
            raise SchemaError(
                f"the set must hold the path of each row's file in column {self.how.path_column!r}, as `str`",
                column=self.how.path_column,
            )
        base = self.base.manifest if self.base.sources is not None else None
        logical = dict(plan.columns.logical) if plan.columns is not None else {}
        if base is not None and (base.schema, dict(base.logical)) != (plan.schema, logical):
            raise SchemaError(
                f"`prepare` gives other columns than those of version {base.version}, {base.schema.columns()}, by the "
                f"same `recipe`: now {plan.schema.columns()}. Give another recipe to convert all files",
                expected=base.schema.columns(),
                found=plan.schema.columns(),
            )
        return plan

    def _schema(self, plan: WritePlan, parts: Sequence[Part], kept: Sequence[ShardInfo]) -> Schema:
        """The columns; those of the shards that stay are the same, or the recipe would be another."""
        if not parts and not kept:
            raise SchemaError("no file gives a row; nothing was published")
        if plan.schema is not None:
            return plan.schema
        return kept[0].schema if kept else parts[0].tail.schema

    def _logical(self, plan: WritePlan) -> dict[str, Any]:
        if plan.columns is not None:
            return dict(plan.columns.logical)
        return dict(self.base.manifest.logical) if self.base.manifest is not None else {}

    def _runs(
        self,
        gone: set[str],
        kept: Sequence[ShardInfo],
        surviving: Sequence[Surviving],
        converted: Answers,
        shards: Sequence[ShardInfo],
    ) -> dict[str, list[SampleRun]]:
        """Whose samples each shard holds, the new ones too."""
        before = self.base.sources.runs if self.base.sources is not None else {}
        found = {shard.raw.basename: list(before[shard.raw.basename]) for shard in kept}
        for split in sorted({shard.partition for shard in shards}, key=str):
            torn = (before[each.info.raw.basename] for each in surviving if each.info.partition == split)
            copied = ((run for run in runs if run.path not in gone) for runs in torn)
            fresh = (unpack_runs(text) for _, answer in converted for of, text in answer["runs"] if of == split)
            own = [shard for shard in shards if shard.partition == split]
            found |= split_runs(chain(*copied, *fresh), own)
        return found

    def _row_hash(self, copied: Sequence[Any], converted: Sequence[Any]) -> str:
        added = sum(int(answer["row_hash"], 16) for _, answer in converted)
        if self.base.sources is None or self.base.manifest is None:
            return row_hash_text(added)
        if not self.base.row_hash:
            return ""
        dropped = sum(int(answer["dropped"], 16) for _, answer in copied)
        return row_hash_text(int(self.base.row_hash, 16) - dropped + added)

    def _lineage(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for path, mark in sorted(self.wanted.items()):
            digest.update(f"{path}\0{mark}\n".encode("utf-8", "surrogateescape"))
        return {"sources": [{"format": "files", "files": len(self.wanted), "digest": digest.hexdigest()}]}

    def _publish(self, draft: Draft) -> Manifest:
        if self.base.manifest is None:
            return publish(self.store, draft, mode="create")
        return publish_from(self.store, self.base.manifest, draft, operation="overwrite")


def convert_files(
    plan: WritePlan, path_column: str, batches: Iterator[pa.RecordBatch], attempt: Attempt
) -> dict[str, Any]:
    """What each task does: as `write_shards`, and whose rows they were, by split."""
    recorders: dict[str | None, RunRecorder] = {}

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            named = pa.RecordBatch.from_arrays(batch.columns, list(plan.needed()))
            for split, part in by_split(without_bad_images(named, plan.bad_images), plan.partition_by):
                recorders.setdefault(split, RunRecorder()).add(part.column(path_column))
            yield batch

    answer = write_shards(plan, watched(), attempt)
    return {**answer, "runs": [[split, recorder.pack()] for split, recorder in recorders.items()]}


def _parts(copied: Answers, converted: Answers) -> list[Part]:
    """What all tasks wrote, by split: first what was copied, then what was converted."""
    behind = (replace(part, task=part.task + len(copied)) for part in collect_parts(converted))
    return sorted([*collect_parts(copied), *behind], key=lambda part: (part.split or "", part.task))


def _check_paths(converted: Answers, asked: Sequence[str]) -> None:
    known = set(asked)
    for _, answer in converted:
        for run in chain.from_iterable(unpack_runs(text) for _, text in answer["runs"]):
            if run.path not in known:
                raise SchemaError(
                    f"`prepare` gave rows of {run.path!r}, which it was not asked for; nothing was published",
                    path=run.path,
                )


def _small(shards: Sequence[ShardInfo], torn: set[str], limit: int | None) -> set[str]:
    """Shards that are copied into full ones although nothing of them goes: many runs leave many small ones."""
    if limit is None:
        return set()
    found: dict[str | None, list[str]] = {}
    for shard in shards:
        if shard.raw.num_bytes < limit // _SMALL_SHARE and shard.raw.basename not in torn:
            found.setdefault(shard.partition, []).append(shard.raw.basename)
    return {name for names in found.values() if len(names) > _MOST_SMALL for name in names}


def _ranges(runs: Sequence[SampleRun], gone: set[str]) -> list[tuple[int, int]]:
    """The samples of a shard that are of none of these files, as rising ranges."""
    ranges: list[tuple[int, int]] = []
    end = 0
    for run in runs:
        begin, end = end, end + run.rows
        if run.path in gone:
            continue
        if ranges and ranges[-1][1] == begin:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((begin, end))
    return ranges
