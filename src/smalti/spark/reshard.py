"""A shard set kept up to date with its source files: only new and changed files are converted.

    1. the newest version lists its source files: the fingerprint of each, and the shards that hold its samples;
    2. shards that have samples of unchanged files only are reused;
    3. samples of unchanged files in other shards are copied, without decoding, and on executors if they are many;
    4. new and changed files are converted, and a version with exactly the rows of a full conversion is published,
       unless another writer published in between.

If nothing changed, the newest version is returned. Compaction keeps the list of files. Rows that were appended belong
to no file: the new version does not have them, and their shards are not read. With another recipe, or if the newest
version has no list of files, all files are converted.
"""

import base64
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog import Draft, Manifest, load_manifest, new_write_id, publish
from smalti.catalog.erasures import erased_paths
from smalti.catalog.header import Header, read_header
from smalti.catalog.manifest import check_json, row_hash_text
from smalti.catalog.publishing import check_target, replace_content
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import (
    SampleRun,
    SourceRecord,
    SourceTable,
    columns_of,
    ipc_file,
    read_source_record,
    sources_of,
    split_runs,
    store_sources,
)
from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.catalog.verify import open_checked
from smalti.errors import ArgumentError, CatalogError, SchemaError
from smalti.format import ShardInfo
from smalti.format.sizes import parse_size_limit
from smalti.spark.tasks import LocalFrame, require_reach, run_here, run_on_rows, run_tasks
from smalti.spark.writing.dataframe import join_on_executors, plan_frame, select_inputs
from smalti.storage import Store, open_store
from smalti.writer import ShardUploader
from smalti.writer.tables.attempts import Answers, Attempt
from smalti.writer.tables.packing import (
    Packed,
    collect_parts,
    delete_all,
    find_runs,
    join_runs,
)
from smalti.writer.tables.plan import InputRows, OutputColumns, WriteOptions, WritePlan
from smalti.writer.tables.task import by_split, write_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_DRIVER_BYTES = 256 << 20  # copied on the driver, which is faster than starting Spark
_TASK_BYTES = 1 << 28  # of shards to read per task
_MAX_SMALL_SHARDS = 8  # of a split; more small shards than this are copied into full ones
_SMALL_SHARE = 4  # a shard below this fraction of the size limit is small
MAX_PATHS_IN_ERROR = 10
_RECIPE_VERSION = 1  # increase it when the same options would give other rows
Start = Callable[[], "SparkSession"]
Erased = Literal["refuse", "skip", "convert"]
Prepare = Callable[[Any, Sequence[str]], "DataFrame | LocalFrame"]
"""Return the rows of the files with these paths."""


@dataclass(frozen=True)
class SourceFile:
    """A file that rows are made of."""

    path: str
    """Name of the file, as in the path column of its rows."""
    fingerprint: str
    """Text that changes with its rows: size and time or ETag, and everything else they depend on, such as its label."""


@dataclass(frozen=True)
class _Base:
    """The version on which the new one is based, and its source files, as far as they may be reused."""

    manifest: Manifest | None = None
    """Manifest of the version; None if there is no set yet."""
    header: Header | None = None
    """Header of the version, with the record of samples that were deleted."""
    is_listed: bool = False
    """True if it has a list of its files, made by the same recipe."""
    sources: SourceTable = field(default_factory=lambda: SourceTable({}, {}))
    """Source files of its rows, apart from appended rows; empty if they are not listed."""
    row_hash: str = row_hash_text(0)
    """Row hash of the samples of these files; empty if unknown."""

    def holds(self, fingerprints: Mapping[str, str]) -> bool:
        """Return whether the version has the rows of exactly these files."""
        if self.manifest is None or not self.is_listed or self.sources.fingerprints != fingerprints:
            return False
        return all(map(self.sources.covers, self.manifest.shards))


def reshard_files(  # noqa: PLR0913  these names are the documented interface
    spark: "SparkSession | Start",
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
    erased: Erased = "refuse",
) -> Manifest:
    """Publish a version that holds the rows of exactly these files; convert only new and changed ones. Blocks.

    Args:
        spark: The session, or a function that starts one; `prepare` is called with it.
        files: All files that the set is to hold, each with a fingerprint.
        out: Path or URL that all executors and this process can write to.
        prepare: Called with the session and the paths to convert; returns a DataFrame with their rows, which must
            depend on nothing but the file and `recipe`. Rows may come in any order; a file may have none.
        recipe: Everything else that decides the rows (options, a version of the code), as JSON; when it changes, all
            files are converted.
        path_column: Column of that frame, and of the set, with the path of each row's file.
        columns: As for `dataframe_to_mds`, as are the following; `path_column` must be among them.
        nulls: What is done with nulls.
        compression: Compression of shard files.
        hashes: Checksums of shard files.
        size_limit: Largest shard before compression.
        partition_by: Column whose values become splits.
        lineage: Kept in the manifest, together with number and digest of the files.
        metadata: Kept in the manifest.
        storage_options: Credentials and endpoint of the store.
        erased: What to do with new and changed files of which samples were deleted (`smalti.delete`): refuse the call,
            skip these files, so that no row of theirs is in the set, or convert them, once the source is clean.

    Returns:
        The new version, or the newest one if nothing changed.

    Raises:
        CatalogError: `erased` is "refuse", and samples of a new or changed file were deleted.
        SchemaError: A column cannot be stored, there are no rows at all, or the set has columns of `add_columns`.
        CommitConflict: Another writer published in between; this call published nothing.
        Otherwise: As for `dataframe_to_mds`.

    Examples:
        >>> def prepare(spark, paths):  # rows of these files alone, each with its file in column `path`
        ...     rows = [(path, Path(path).stat().st_size) for path in paths]
        ...     return spark.createDataFrame(rows, "path string, num_bytes long")
        >>> files = [SourceFile(f"photos/cat/{number}.jpg", fingerprint="1") for number in range(3)]
        >>> reshard_files(spark, files, "s3://bucket/set", prepare=prepare, recipe="v1").rows
        3
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
    store = open_store(out, storage_options)
    if erased not in ("refuse", "skip", "convert"):
        raise ArgumentError(f"`erased` is {erased!r}, expected refuse, skip or convert")
    fingerprints = {file.path: file.fingerprint for file in files}
    if len(fingerprints) != len(files):
        raise ArgumentError(f"`files` names {len(files) - len(fingerprints)} paths more than once")
    digest = _digest_of(recipe, path_column, options)
    base = _find_base(store, digest)
    if base.manifest is not None and base.holds(fingerprints):
        return base.manifest
    return _Resharding(store, options, path_column, digest, base, fingerprints).run(spark, prepare, erased)


def _digest_of(recipe: Any, path_column: str, options: WriteOptions) -> str:
    """Return a digest of everything that decides how files become rows and shards; another one converts all files."""
    names = ("columns", "nulls", "compression", "hashes", "size_limit", "partition_by")
    facts = [_RECIPE_VERSION, recipe, path_column, {name: repr(getattr(options, name)) for name in names}]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _convert_by_tasks(frame: "DataFrame | LocalFrame", plan: WritePlan, path_column: str) -> Answers:
    """Write the rows of a frame as shards: on Spark's executors, or here."""
    work = functools.partial(convert_files, plan, path_column)
    if isinstance(frame, LocalFrame):
        return run_here(work, (batch.select(list(plan.input.names)) for batch in frame.batches))
    require_reach(frame.sparkSession, plan.store)
    return run_tasks(select_inputs(frame, plan.input), work)


def _find_base(store: Store, recipe: str) -> _Base:
    """Return the newest version, and its source files if `recipe` is the digest by which it was made."""
    header = check_target(store, "overwrite").header
    if header is None:
        return _Base()
    added = [name for entry in columns_of(header.sidecars) for name in entry.columns]
    if added:
        raise SchemaError(
            f"cannot re-shard version {header.version} of {store.url}: its columns {', '.join(map(repr, added))} were "
            "added beside the shards. Take them out with `drop_columns`, re-shard, and add them again",
            columns=added,
        )
    manifest, entry = load_manifest(store, version=header.version), sources_of(header.sidecars)
    if entry is None or entry.get("recipe") != recipe:
        return _Base(manifest, header)
    listed = read_source_record(store, entry, manifest.shards)
    row_hash = listed.row_hash
    if row_hash is None:
        row_hash = manifest.row_hash if all(map(listed.table.covers, manifest.shards)) else ""
    return _Base(manifest, header, is_listed=True, sources=listed.table, row_hash=row_hash)


_Surviving = tuple[ShardInfo, list[tuple[int, int]]]
"""A shard that is replaced, and its samples that are kept: half-open ranges, ascending; may be empty."""


def _copy_surviving(spark: "SparkSession | Start", plan: WritePlan, shards: Sequence[_Surviving]) -> Answers:
    """Write new shards with the kept samples, in the order of `shards` within each split; blocks.

    Returns by task the entries of shards as `write_shards` answers them, and as `dropped` the row hash of the other
    samples.

    Raises:
        FormatError: A shard is damaged.
        StoreError: A shard cannot be read, or a new one cannot be stored.
    """
    if not shards:
        return []
    total = sum(info.raw.num_bytes for info, _ in shards)
    rows = [
        {"place": place, "shard": pack_shards([info]), "kept": json.dumps(kept)}
        for place, (info, kept) in enumerate(shards)
    ]
    work = functools.partial(_copy_samples, plan)
    if total <= _MAX_DRIVER_BYTES:
        return run_here(work, iter([pa.RecordBatch.from_pylist(rows)]))
    num_tasks = min(len(rows), -(-total // _TASK_BYTES))
    columns = "place int, shard string, kept string"
    return run_on_rows(spark, rows, columns, work, num_tasks=num_tasks, store=plan.store)


def _copy_samples(plan: WritePlan, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
    """Copy the kept samples of a task's shards into new ones, by split."""
    uploaders: dict[str | None, ShardUploader] = {}
    dropped = 0
    try:
        for row in (row for batch in batches for row in batch.to_pylist()):
            (info,) = unpack_shards(row["shard"], where="a shard to be copied")
            split = info.partition
            with open_checked(plan.store, info) as shard:
                samples = shard.stored_samples()
                dropped += samples.row_hash()
                for begin, end in json.loads(row["kept"]):
                    part = samples[begin:end]
                    dropped -= part.row_hash()
                    if split not in uploaders:
                        uploaders[split] = plan.uploader(info.schema, split, attempt.name)
                    uploaders[split].write_encoded(part.lengths, part.content)
        shards = [info for split in sorted(uploaders, key=str) for info in uploaders[split].finish()]
    except BaseException:
        for uploader in uploaders.values():
            uploader.abort()
        raise
    return {"shards": pack_shards(shards), "dropped": row_hash_text(dropped)}


@dataclass(frozen=True)
class _Resharding:
    """One run of `reshard_files`."""

    store: Store
    options: WriteOptions
    path_column: str
    recipe: str
    """Digest of everything that decides how files become rows and shards."""
    base: _Base
    fingerprints: Mapping[str, str]

    def run(self, spark: "SparkSession | Start", prepare: Prepare, erased: Erased) -> Manifest:
        """Convert, copy, publish."""
        before = self.base.sources.fingerprints
        gone = {path for path, mark in before.items() if self.fingerprints.get(path) != mark}
        changed = [path for path, mark in self.fingerprints.items() if before.get(path) != mark]
        fresh = self._without_erased(changed, erased)
        kept, surviving = self._divide(gone)
        frame = prepare(spark, fresh) if fresh else None
        write_id = new_write_id()
        rows, output = self._columns(frame)
        plan = WritePlan(self.store, write_id, self.options.shard_options, rows, output)
        markers.begin(self.store, write_id)
        copied = _copy_surviving(spark, plan, surviving)
        converted = [] if frame is None else _convert_by_tasks(frame, plan, self.path_column)
        _check_paths(converted, fresh)
        # By split, first copied, then converted ones.
        appended = (replace(part, task=part.task + len(copied)) for part in collect_parts(converted))
        parts = sorted([*collect_parts(copied), *appended], key=lambda part: (part.split or "", part.task))
        if output.schema is None or not (parts or kept):
            raise SchemaError("no file has a row; nothing was published")
        logical = self.base.manifest.logical if frame is None and self.base.manifest is not None else output.logical
        joins = find_runs(parts)
        packed = Packed(parts, joins, join_runs(plan, joins, join_on_executors(spark)))
        runs = self._runs(gone, kept, surviving, converted, packed.shards)
        sources = SourceRecord(SourceTable(self.fingerprints, runs), self.recipe, self._row_hash(copied, converted))
        draft = Draft(
            write_id,
            output.schema,
            sorted([*kept, *packed.shards], key=lambda shard: shard.partition or ""),
            lineage={**_lineage(self.fingerprints), **dict(self.options.lineage or {})},
            metadata=dict(self.options.metadata or {}),
            logical=dict(logical),
            row_hash=sources.row_hash or "",
            sidecars=(store_sources(self.store, sources, write_id),),
        )
        if self.base.manifest is None:
            manifest = publish(self.store, draft, mode="create")
        else:
            manifest = publish_from(self.store, self.base.manifest, draft, operation="overwrite")
        delete_all(self.store, packed.unused_keys())
        markers.end(self.store, write_id)
        return manifest

    def _without_erased(self, changed: list[str], erased: Erased) -> list[str]:
        """Return the files to convert: samples of some may have been deleted, and must not come back unnoticed."""
        if erased == "convert" or self.base.header is None:
            return changed
        found = erased_paths(self.store, self.base.header, changed)
        if found and erased == "refuse":
            shown = ", ".join(found[:MAX_PATHS_IN_ERROR]) + (", ..." if len(found) > MAX_PATHS_IN_ERROR else "")
            raise CatalogError(
                f"{self.store.url}: samples of {len(found)} new or changed files were deleted from the set (`smalti "
                f"delete`), and converting the files could bring them back: {shown}. Remove the files, or what they "
                'hold of these samples, from the source; then say erased="convert", or erased="skip" to leave the '
                "files out",
                paths=found,
            )
        skipped = set(found)
        return [path for path in changed if path not in skipped]

    def _divide(self, gone: set[str]) -> tuple[list[ShardInfo], list[_Surviving]]:
        """Return the shards to keep, and those of which some samples are copied; nothing if the files are unknown."""
        sources, runs = self.base.sources, self.base.sources.runs
        shards = [] if self.base.manifest is None else list(filter(sources.covers, self.base.manifest.shards))
        touched = sources.shards_with(gone)
        touched |= _small(shards, touched, parse_size_limit(self.options.size_limit))
        kept = [shard for shard in shards if shard.raw.basename not in touched]
        replaced = [shard for shard in shards if shard.raw.basename in touched]
        return kept, [(shard, _ranges(runs[shard.raw.basename], gone)) for shard in replaced]

    def _columns(self, frame: "DataFrame | LocalFrame | None") -> tuple[InputRows, OutputColumns]:
        """Return the columns of the frame, and those that are stored of them, which are those of the last version."""
        base = self.base.manifest if self.base.is_listed else None
        if frame is None:
            return InputRows(()), OutputColumns(None if base is None else base.schema)
        rows, output = plan_frame(frame.schema, self.options)
        if output.schema is None or output.schema.columns().get(self.path_column) != "str":
            raise SchemaError(
                f"the set must hold the path of each row's file in column {self.path_column!r}, as `str`",
                column=self.path_column,
            )
        if base is not None and (base.schema, dict(base.logical)) != (output.schema, dict(output.logical)):
            raise SchemaError(
                f"`prepare` returned other columns than those of version {base.version}, {base.schema.columns()}, by "
                f"the same `recipe`: now {output.schema.columns()}. Give another recipe to convert all files",
                expected=base.schema.columns(),
                found=output.schema.columns(),
            )
        return rows, output

    def _runs(
        self,
        gone: set[str],
        kept: Sequence[ShardInfo],
        surviving: Sequence[_Surviving],
        converted: Answers,
        shards: Sequence[ShardInfo],
    ) -> dict[str, list[SampleRun]]:
        """Return the runs of rows of each file in each shard of the new version."""
        before = self.base.sources.runs
        found = {shard.raw.basename: list(before[shard.raw.basename]) for shard in kept}
        for split in sorted({shard.partition for shard in shards}, key=str):
            touched = (before[info.raw.basename] for info, _ in surviving if info.partition == split)
            copied = ((run for run in runs if run.path not in gone) for runs in touched)
            fresh = (_unpack_runs(text) for _, answer in converted for of, text in answer["runs"] if of == split)
            own = [shard for shard in shards if shard.partition == split]
            found |= split_runs(chain(*copied, *fresh), own)
        return found

    def _row_hash(self, copied: Sequence[Any], converted: Sequence[Any]) -> str:
        added = sum(int(answer["row_hash"], 16) for _, answer in converted)
        if not self.base.row_hash:
            return ""
        dropped = sum(int(answer["dropped"], 16) for _, answer in copied)
        return row_hash_text(int(self.base.row_hash, 16) - dropped + added)


def _lineage(fingerprints: Mapping[str, str]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for path, mark in sorted(fingerprints.items()):
        digest.update(f"{path}\0{mark}\n".encode("utf-8", "surrogateescape"))
    return {"sources": [{"format": "files", "files": len(fingerprints), "digest": digest.hexdigest()}]}


def convert_files(
    plan: WritePlan, path_column: str, batches: Iterator[pa.RecordBatch], attempt: Attempt
) -> dict[str, Any]:
    """Write the rows of a partition as `write_shards` does, and answer with the files of the rows too, by split."""
    runs: dict[str | None, list[pa.RecordBatch]] = {}

    def recorded() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for usable in plan.input.usable(iter([batch])):
                for split, part in by_split(usable, plan.input.partition_by):
                    runs.setdefault(split, []).append(_path_runs(part.column(path_column)))
            yield batch

    answer = write_shards(plan, recorded(), attempt)
    packed = [[split, base64.b64encode(ipc_file(pa.Table.from_batches(own))).decode()] for split, own in runs.items()]
    return {**answer, "runs": packed}


def _path_runs(paths: "pa.Array[Any]") -> pa.RecordBatch:
    """Return the files of rows, by the values of their path column, as runs of rows of one file."""
    if paths.null_count or not (pa.types.is_string(paths.type) or pa.types.is_large_string(paths.type)):
        raise SchemaError(f"the path column must hold the file of every row, as text; found {paths.type} or a null")
    runs = pc.run_end_encode(paths.cast(pa.string()), pa.int64())
    rows = np.diff(runs.run_ends.to_numpy(), prepend=0)
    return pa.RecordBatch.from_arrays([runs.values, pa.array(rows)], ["path", "rows"])


def _check_paths(converted: Answers, requested: Sequence[str]) -> None:
    known = set(requested)
    for _, answer in converted:
        for run in chain.from_iterable(_unpack_runs(text) for _, text in answer["runs"]):
            if run.path not in known:
                raise SchemaError(
                    f"`prepare` gave rows of {run.path!r}, which is not one of the requested files; nothing was "
                    "published",
                    path=run.path,
                )


def _small(shards: Sequence[ShardInfo], touched: set[str], limit: int | None) -> set[str]:
    """Return small shards that are copied into full ones, if there are many: every call may leave small ones."""
    if limit is None:
        return set()
    found: dict[str | None, list[str]] = {}
    for shard in shards:
        if shard.raw.num_bytes < limit // _SMALL_SHARE and shard.raw.basename not in touched:
            found.setdefault(shard.partition, []).append(shard.raw.basename)
    return {name for names in found.values() if len(names) > _MAX_SMALL_SHARDS for name in names}


def _ranges(runs: Sequence[SampleRun], gone: set[str]) -> list[tuple[int, int]]:
    """Return the samples of a shard that are of none of these files, as ascending half-open ranges."""
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


def _unpack_runs(text: str) -> Iterator[SampleRun]:
    """Yield the runs of a text in the answer of `convert_files`."""
    table = pa.ipc.open_file(pa.py_buffer(base64.b64decode(text))).read_all()
    return map(SampleRun, table.column("path").to_pylist(), table.column("rows").to_pylist())


def publish_from(store: Store, base: Manifest, draft: Draft, *, operation: str) -> Manifest:
    """Publish the draft, which is based on `base`, if the newest version has the files of `base`.

    Versions with the same files, such as those of a vacuum, may have been published in between.

    Raises:
        CommitConflict: The newest version has other files; nothing was published.
        Otherwise: As for `catalog.publish`.
    """
    newest = check_target(store, "overwrite", write_id=draft.write_id).header
    based_on = base.version
    if newest is not None and newest.version != based_on and newest.has_files_of(read_header(store, based_on)):
        based_on = newest.version
    return replace_content(store, draft, based_on=based_on, operation=operation)
