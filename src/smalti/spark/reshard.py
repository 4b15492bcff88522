"""A shard set kept up to date with its source files: only new and changed files are converted.

    1. the newest version lists its source files: the fingerprint of each, and the shards that hold its samples;
    2. shards that have samples of unchanged files only are reused;
    3. samples of unchanged files in other shards are copied, without decoding, and on executors if they are many;
    4. new and changed files are converted, and a version with exactly the rows of a full conversion is published,
       unless another writer published in between.

`reshard_images` does so for a folder of images, which `prepare_images` prepares.

If nothing changed, the newest version is returned. Compaction keeps the list of files. Rows that were appended belong
to no file: the new version does not have them, and their shards are not read. With another recipe, or if the newest
version has no list of files, all files are converted.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog import Draft, Manifest, load_manifest, new_write_id, publish, sidecars
from smalti.catalog.manifest import check_json, read_header, row_hash_text
from smalti.catalog.publishing import check_target, replace_content
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import erased_paths
from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.catalog.verify import open_checked
from smalti.errors import ArgumentError, CatalogError, CommitConflict, DatasetExists, SchemaError
from smalti.format import ShardInfo
from smalti.format.sizes import parse_size_limit
from smalti.redaction import redact
from smalti.sources.image_folder import ImageFolder
from smalti.spark.lineage import digest_of
from smalti.spark.prepare import PrepareOptions, prepare_images, require_size, splits_of
from smalti.spark.tasks import LocalFrame, run_here, run_jobs, run_tasks
from smalti.spark.writing.dataframe import join_on_executors, plan_frame, select_inputs
from smalti.storage import Store, open_store
from smalti.writer import ShardUploader
from smalti.writer.tables.plan import Answers, Attempt, InputRows, OutputColumns, WriteOptions, WritePlan
from smalti.writer.tables.task import write_shards
from smalti.writer.tables.versions import Packed, collect_parts, delete_all, find_runs, join_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_DRIVER_BYTES = 256 << 20  # copied on the driver, which is faster than starting Spark
_TASK_BYTES = 1 << 28  # of shards to read per task
_MAX_SMALL_SHARDS = 8  # of a split; more small shards than this are copied into full ones
_SMALL_SHARE = 4  # a shard below this fraction of the size limit is small
MAX_PATHS_IN_ERROR = 10
_RECIPE_VERSION = 1  # increase it when the same options would give other rows
_IMAGE_COLUMNS = {"image": "jpeg", "label": "int", "path": "str"}
_IMAGES_RECIPE = "prepare_images 2"  # increase the number when the same file and options would give another row
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
    resharding = _Resharding(store, options, path_column, recipe, fingerprints)
    return resharding.unchanged or resharding.run(spark, prepare, erased)


def reshard_images(  # noqa: PLR0913  these names are the documented interface
    spark: "SparkSession",
    folder: ImageFolder,
    out: str | Path,
    *,
    options: PrepareOptions | None = None,
    columns: Mapping[str, str | None] | None = None,
    compression: str | None = None,
    hashes: tuple[str, ...] = ("xxh3_64",),
    size_limit: int | str | None = 1 << 26,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    erased: Erased = "refuse",
) -> Manifest:
    """Publish a version that holds exactly the images of this folder; prepare only new and changed ones. Blocks.

    A file whose label or split changes, because a class or files of its class were added or removed, counts as changed.

    Args:
        spark: The session.
        folder: Current result of `list_images`.
        out: Root of the set: a path or URL that all executors can write to.
        options: As for `prepare_images`, with a `size`; other options than before convert all files.
        columns: Columns of `prepare_images` to store, name to encoding, `path` among them; by default image, label and
            path.
        compression: Compression of shard files; none by default, because JPEG does not get smaller.
        hashes: Checksums of shard files.
        size_limit: Largest shard before compression.
        metadata: Kept in the manifest, together with the names of the classes.
        storage_options: Credentials and endpoint of the store.
        erased: What to do with new and changed files whose images were deleted from the set: refuse, skip or convert.

    Returns:
        The new version, or the newest one if nothing changed.

    Raises:
        BadImageError: The policy is `fail`, and a new or changed file is no image.
        Otherwise: As for `reshard_files`.

    Examples:
        >>> version = reshard_images(spark, list_images("photos"), "s3://bucket/set")
        >>> version.rows
        12
    """
    chosen = options or PrepareOptions()
    require_size(chosen)

    def prepare(session: "SparkSession", paths: Sequence[str]) -> "DataFrame":
        return prepare_images(session, folder, chosen, only=paths)

    recipe = asdict(chosen)
    for name in ("num_partitions", "test_fraction", "fixed_splits"):  # the order of rows, and what fingerprints hold
        del recipe[name]
    return reshard_files(
        spark,
        source_files(folder, chosen),
        out,
        prepare=prepare,
        recipe=[_IMAGES_RECIPE, recipe],
        columns=_IMAGE_COLUMNS if columns is None else columns,
        compression=compression,
        hashes=hashes,
        size_limit=size_limit,
        partition_by="split",
        lineage={"folder": redact(folder.source), "folder_digest": folder.digest},
        metadata={"classes": list(folder.classes), **dict(metadata or {})},
        storage_options=storage_options,
        erased=erased,
    )


def source_files(folder: ImageFolder, options: PrepareOptions) -> list[SourceFile]:
    """Return the files, with fingerprints of everything that their rows depend on: content, label and split."""
    splits = splits_of(folder, options)
    return [
        SourceFile(
            file.path,
            f"{file.num_bytes} {file.modified} {folder.classes[file.label]} {file.label} {splits[file.path]}",
        )
        for file in folder.files
    ]


def _convert_by_tasks(frame: "DataFrame | LocalFrame", plan: WritePlan, path_column: str) -> Answers:
    """Write the rows of a frame as shards: on Spark's executors, or here."""
    work = functools.partial(convert_files, plan, path_column)
    if isinstance(frame, LocalFrame):
        return run_here(work, (batch.select(list(plan.input.names)) for batch in frame.batches))
    return run_tasks(select_inputs(frame, plan.input), work, store=plan.store)


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
    jobs = [(place, (pack_shards([info]), kept)) for place, (info, kept) in enumerate(shards)]
    num_tasks = min(len(jobs), -(-total // _TASK_BYTES))
    where = None if total <= _MAX_DRIVER_BYTES else spark
    return run_jobs(where, jobs, functools.partial(_copy_samples, plan), num_tasks=num_tasks, store=plan.store)


def _copy_samples(plan: WritePlan, jobs: Iterator[tuple[int, Any]], attempt: Attempt) -> dict[str, Any]:
    """Copy the kept samples of a task's shards into new ones, by split."""
    uploaders: dict[str | None, ShardUploader] = {}
    dropped = 0
    with ExitStack() as opened:
        for _, (packed, kept) in jobs:
            (info,) = unpack_shards(packed, where="a shard to be copied")
            split = info.partition
            with open_checked(plan.store, info) as shard:
                samples = shard.stored_samples()
                dropped += samples.row_hash()
                for begin, end in kept:
                    part = samples[begin:end]
                    dropped -= part.row_hash()
                    if split not in uploaders:
                        uploaders[split] = opened.enter_context(plan.uploader(info.schema, split, attempt.name))
                    uploaders[split].write_encoded(part.lengths, part.content)
        shards = [info for split in sorted(uploaders, key=str) for info in uploaders[split].finish()]
    return {"shards": pack_shards(shards), "dropped": row_hash_text(dropped)}


class _Resharding:
    """One run of `reshard_files`, based on the newest version and its source files, as far as they may be reused."""

    def __init__(
        self, store: Store, options: WriteOptions, path_column: str, recipe: Any, fingerprints: Mapping[str, str]
    ) -> None:
        """Look at the newest version."""
        self.store, self.options, self.path_column, self.fingerprints = store, options, path_column, fingerprints
        names = ("columns", "nulls", "compression", "hashes", "size_limit", "partition_by")
        facts = [_RECIPE_VERSION, recipe, path_column, {name: repr(getattr(options, name)) for name in names}]
        self.recipe = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        """Digest of everything that decides how files become rows and shards; another one converts all files."""
        self.manifest: Manifest | None = None
        """The newest version; None if there is no set yet."""
        self.header = check_target(store, "overwrite").header
        """Its header, with the record of samples that were deleted."""
        self.is_listed = False
        """True if it has a list of its files, made by the same recipe."""
        self.sources = sidecars.SourceTable({}, {})
        """Source files of its rows, apart from appended rows; empty if they are not listed."""
        self.row_hash = row_hash_text(0)
        """Row hash of the samples of these files; empty if unknown."""
        if self.header is None:
            return
        added = [name for entry in sidecars.columns_of(self.header.sidecars) for name in entry.columns]
        if added:
            raise SchemaError(
                f"cannot re-shard version {self.header.version} of {store.url}: its columns "
                f"{', '.join(map(repr, added))} were added beside the shards. Take them out with `drop_columns`, "
                "re-shard, and add them again",
                columns=added,
            )
        self.manifest = load_manifest(store, version=self.header.version)
        entry = sidecars.sources_of(self.header.sidecars)
        if entry is not None and entry.get("recipe") == self.recipe:
            listed = sidecars.read_source_record(store, entry, self.manifest.shards)
            self.is_listed, self.sources = True, listed.table
            self.row_hash = listed.row_hash or ""
            if listed.row_hash is None and self._covers_all(self.manifest):
                self.row_hash = self.manifest.row_hash

    def _covers_all(self, manifest: Manifest) -> bool:
        """Return whether all samples of the version are of its listed files."""
        return all(map(self.sources.covers, manifest.shards))

    @property
    def unchanged(self) -> Manifest | None:
        """The newest version if it has the rows of exactly these files."""
        if self.manifest is None or not self.is_listed or self.sources.fingerprints != self.fingerprints:
            return None
        return self.manifest if self._covers_all(self.manifest) else None

    def run(self, spark: "SparkSession | Start", prepare: Prepare, erased: Erased) -> Manifest:
        """Convert, copy, publish."""
        before = self.sources.fingerprints
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
        known = set(fresh)
        for path in (path for _, answer in converted for _, paths, _ in answer["runs"] for path in paths):
            if path not in known:
                raise SchemaError(
                    f"`prepare` gave rows of {path!r}, which is not one of the requested files; nothing was published",
                    path=path,
                )
        # By split, first copied, then converted ones.
        appended = (replace(part, task=part.task + len(copied)) for part in collect_parts(converted))
        parts = sorted([*collect_parts(copied), *appended], key=lambda part: (part.split or "", part.task))
        if output.schema is None or not (parts or kept):
            raise SchemaError("no file has a row; nothing was published")
        joins = find_runs(parts)
        packed = Packed(parts, joins, join_runs(plan, joins, join_on_executors(spark)))
        row_hash = ""
        if self.row_hash:
            dropped = sum(int(answer["dropped"], 16) for _, answer in copied)
            added = sum(int(answer["row_hash"], 16) for _, answer in converted)
            row_hash = row_hash_text(int(self.row_hash, 16) - dropped + added)
        runs = self._runs(gone, kept, surviving, converted, packed.shards)
        sources = sidecars.SourceRecord(sidecars.SourceTable(self.fingerprints, runs), self.recipe, row_hash)
        digest = digest_of(sorted(self.fingerprints.items()))
        source = {"format": "files", "files": len(self.fingerprints), "digest": digest}
        draft = Draft(
            write_id,
            output.schema,
            sorted([*kept, *packed.shards], key=lambda shard: shard.partition or ""),
            lineage={"sources": [source], **dict(self.options.lineage or {})},
            metadata=dict(self.options.metadata or {}),
            logical=dict(self.manifest.logical if frame is None and self.manifest is not None else output.logical),
            row_hash=row_hash,
            sidecars=(sidecars.store_sources(self.store, sources, write_id),),
        )
        manifest = publish_from(self.store, self.manifest, draft, operation="overwrite")
        delete_all(self.store, packed.unused_keys())
        markers.end(self.store, write_id)
        return manifest

    def _without_erased(self, changed: list[str], erased: Erased) -> list[str]:
        """Return the files to convert: samples of some may have been deleted, and must not come back unnoticed."""
        if erased == "convert" or self.header is None:
            return changed
        found = erased_paths(self.store, self.header, changed)
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
        """Return the shards to keep, and those of which some samples are copied; nothing if the files are unknown.

        If a split has many small shards, they are copied into full ones: every call may leave small ones.
        """
        limit = parse_size_limit(self.options.size_limit)
        shards = [] if self.manifest is None else list(filter(self.sources.covers, self.manifest.shards))
        touched = self.sources.shards_with(gone)
        small: dict[str | None, list[str]] = {}
        for shard in shards:
            is_small = limit is not None and shard.raw.num_bytes < limit // _SMALL_SHARE
            if is_small and shard.raw.basename not in touched:
                small.setdefault(shard.partition, []).append(shard.raw.basename)
        touched = touched.union(*(names for names in small.values() if len(names) > _MAX_SMALL_SHARDS))
        kept = [shard for shard in shards if shard.raw.basename not in touched]
        replaced = [shard for shard in shards if shard.raw.basename in touched]
        return kept, [(shard, _ranges(self.sources.runs[shard.raw.basename], gone)) for shard in replaced]

    def _columns(self, frame: "DataFrame | LocalFrame | None") -> tuple[InputRows, OutputColumns]:
        """Return the columns of the frame, and those that are stored of them, which are those of the last version."""
        base = self.manifest if self.is_listed else None
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
    ) -> dict[str, list[sidecars.SampleRun]]:
        """Return the runs of rows of each file in each shard of the new version."""
        before = self.sources.runs
        found = {shard.raw.basename: list(before[shard.raw.basename]) for shard in kept}
        for split in sorted({shard.partition for shard in shards}, key=str):
            touched = (before[info.raw.basename] for info, _ in surviving if info.partition == split)
            copied = ((run for run in runs if run.path not in gone) for runs in touched)
            fresh = (
                map(sidecars.SampleRun, *own) for _, answer in converted for of, *own in answer["runs"] if of == split
            )
            own = [shard for shard in shards if shard.partition == split]
            found |= sidecars.split_runs(chain(*copied, *fresh), own)
        return found


def convert_files(
    plan: WritePlan, path_column: str, batches: Iterator[pa.RecordBatch], attempt: Attempt
) -> dict[str, Any]:
    """Write the rows of a partition as `write_shards` does, and answer with the runs of rows of one file too.

    They are lists of paths and of numbers of rows, by split.
    """
    runs: dict[str | None, tuple[list[str], list[int]]] = {}

    def record(split: str | None, part: pa.RecordBatch) -> None:
        values = part.column(path_column)
        if values.null_count or not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            raise SchemaError(
                f"the path column must hold the file of every row, as text; found {values.type} or a null"
            )
        encoded = pc.run_end_encode(values.cast(pa.string()), pa.int64())
        paths, rows = runs.setdefault(split, ([], []))
        paths += encoded.values.to_pylist()
        rows += np.diff(encoded.run_ends.to_numpy(), prepend=0).tolist()

    answer = write_shards(plan, batches, attempt, record)
    return {**answer, "runs": [[split, *own] for split, own in runs.items()]}


def _ranges(runs: Sequence[sidecars.SampleRun], gone: set[str]) -> list[tuple[int, int]]:
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


def publish_from(store: Store, base: Manifest | None, draft: Draft, *, operation: str) -> Manifest:
    """Publish the draft, which is based on `base`, if the newest version has the files of `base`; None is no version.

    Versions with the same files, such as those of a vacuum, may have been published in between.

    Raises:
        CommitConflict: The newest version has other files; nothing was published.
        Otherwise: As for `catalog.publish`.
    """
    if base is None:
        try:
            return publish(store, draft, mode="create")
        except DatasetExists as error:
            raise CommitConflict(
                f"{store.url}: another writer published first; nothing of this one is visible. Run it again",
                write_id=draft.write_id,
            ) from error
    newest = check_target(store, "overwrite", write_id=draft.write_id).header
    based_on = base.version
    if newest is not None and newest.version != based_on and newest.has_files_of(read_header(store, based_on)):
        based_on = newest.version
    return replace_content(store, draft, based_on=based_on, operation=operation)
