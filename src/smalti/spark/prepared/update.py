"""The update of prepared images to the state of their folder: only new and changed files are read and decoded.

    1. the newest version by the same source and options lists what is prepared already;
    2. new and changed files are prepared on Spark into parts of their own;
    3. parts with rows of changed or deleted files are copied without these, and small parts are joined, all without
       decoding; the other parts are kept;
    4. the parts and the table of files are published as one version (`catalog.publish`).

A killed update leaves the version before; its parts are removed by a later vacuum, by the marker of its write.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog import Draft, Manifest, new_write_id, rollback, vacuum
from smalti.catalog.manifest import Header, read_manifest
from smalti.catalog.publishing import check_target, replace_content
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import FILES as FILES_KIND
from smalti.catalog.sidecars import entry_of
from smalti.errors import DatasetExists, SmaltiError, StoreError
from smalti.format import ShardInfo
from smalti.redaction import redact
from smalti.sources.image_folder import ImageFolder
from smalti.spark.prepare import PrepareOptions, bad_images, prepare_here, prepare_with_sizes, require_size, splits_of
from smalti.spark.prepared.table import (
    FILES,
    FULL_ROWS,
    ROW,
    SCHEMA,
    PartRows,
    PreparedTable,
    bad_in,
    copy_parts,
    counts_of,
    files_of,
    parts_of,
    store_files,
    table_in,
    write_prepared_rows,
)
from smalti.spark.reshard import publish_from
from smalti.spark.rows import earlier_with
from smalti.spark.tasks import decode_errors, run_here, run_tasks, session_of
from smalti.storage import Store, open_store
from smalti.writer.tables.plan import Answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RECIPE = 3  # increase it when the same file and options would give another image
_SMALL_ROWS = FULL_ROWS // 4  # a part with fewer rows is small
_MAX_SMALL_PARTS = 8  # more small parts than this are joined
_MAX_LOCAL_FILES, _MAX_LOCAL_BYTES = 256, 32 << 20  # of an update that does without Spark
_VACUUM_EVERY = 16  # versions: a vacuum reads the headers of all


@dataclass(frozen=True)
class PreparedUpdate:
    """The result of `update_prepared`."""

    table: PreparedTable
    prepared: int
    """Number of files that were read and decoded: new and changed ones."""
    kept: int
    """Number of files that were not read."""
    removed: int
    """Number of files of the version before that are gone."""
    num_bytes: int = 0
    """Bytes of the files that were read."""


@decode_errors()
def update_prepared(
    spark: "SparkSession | Callable[[], SparkSession]",
    folder: ImageFolder,
    path: str | Path,
    *,
    options: PrepareOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PreparedUpdate:
    """Publish a version of exactly the images of this folder, prepared; read only new and changed files. Blocks.

    An update by a few files is made in this process, any other on Spark.

    A file whose label or split alone changed is not prepared again. Other shares and kinds of splits, and other values
    of `on_bad_image`, `seed` and `num_partitions`, prepare no file again. If nothing changed, nothing is published; if
    everything is as in an earlier version, that version is rolled back to.

    Read the images by `read_prepared` or `prepared_files`. Versions have the tools of shard sets: `smalti.catalog`,
    `smalti history|verify|tag|vacuum`. Now and then an update vacuums versions that were superseded over seven days
    ago.

    Args:
        spark: The session, or a function that starts one: it is called only if there is something to do.
        folder: Current result of `list_images`.
        path: A local folder or any address that `open_store` accepts.
        options: As for `prepare_images`, with a `size`.
        storage_options: Credentials and endpoint of the store at `path`.

    Raises:
        BadImageError: The policy is `fail` and files are no images; all are named, also those that an earlier update
            left out. Or no file is usable. The version before stays the newest.
        DatasetExists: There is a shard set at `path`.
        CommitConflict: Another update published in between; this one published nothing.
        StoreError: An image cannot be read, or the result cannot be written.
        Otherwise: As for `catalog.publish`.

    Examples:
        >>> update = update_prepared(spark, list_images("photos"), "s3://bucket/prepared")
        >>> update.prepared, update.kept
        (12, 0)
    """
    update = _Update(open_store(path, storage_options), folder, options)
    return update.find() or update.run(spark)


def find_prepared(
    folder: ImageFolder,
    path: str | Path,
    *,
    options: PrepareOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PreparedUpdate | None:
    """Return what `update_prepared` would, if there is nothing to do for it, else None. Needs no Spark.

    Args:
        folder: Result of `list_images`.
        path: Path or URL of `update_prepared`.
        options: Those of `update_prepared`.
        storage_options: Options of the store's client, such as credentials.

    Raises:
        Otherwise: As for `update_prepared`.

    Examples:
        >>> update = update_prepared(spark, list_images("photos"), "s3://bucket/prepared")
        >>> find_prepared(list_images("photos"), "s3://bucket/prepared").kept  # nothing to do
        12
    """
    return _Update(open_store(path, storage_options), folder, options).find()


class _Update:
    """One update: the wanted files, and the versions there are."""

    def __init__(self, store: Store, folder: ImageFolder, given: PrepareOptions | None) -> None:
        self.store, self.folder, self.options = store, folder, given or PrepareOptions()
        options = self.options
        require_size(options)
        facts = [_RECIPE, redact(folder.source), options.size, options.quality]
        self.recipe = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
        """Digest of the folder and of the options that decide which image a file becomes.

        `on_bad_image` is not among them: a version lists bad images under either policy.
        """
        splits = splits_of(folder, options)
        columns = {
            "path": [file.path for file in folder.files],
            "label": [file.label for file in folder.files],
            "class_name": [folder.classes[file.label] for file in folder.files],
            "split": [splits[file.path] for file in folder.files],
            "fingerprint": [f"{file.num_bytes} {file.modified}" for file in folder.files],
        }
        self.wanted = pa.table({name: pa.array(values, FILES.field(name).type) for name, values in columns.items()})
        digest = hashlib.sha256(self.recipe.encode())
        for row in zip(*(column.to_pylist() for column in self.wanted.sort_by("path").columns), strict=True):
            digest.update(f"{json.dumps(row)}\n".encode())
        self.name = digest.hexdigest()
        """Digest of everything that decides the rows."""
        self.newest = check_target(store, "overwrite").header
        if self.newest is not None and entry_of(self.newest.sidecars, FILES_KIND) is None:
            raise DatasetExists(
                f"{store.url} holds a shard set, and no prepared images: choose another place for these", url=store.url
            )

    def find(self) -> PreparedUpdate | None:
        """Return the version with the wanted files, made the newest; None if there is none."""
        found = self._header_with(lambda header: header.lineage.get("images") == self.name)
        if found is None:
            return None
        table = table_in(self.store, read_manifest(self.store, found))
        self._check_policy(table.files)
        if found is not self.newest:
            table = table_in(self.store, rollback(self.store, found.version))
        return PreparedUpdate(table, prepared=0, kept=table.files.num_rows, removed=0)

    def run(self, spark: "SparkSession | Callable[[], SparkSession]") -> PreparedUpdate:
        """Prepare, copy, publish."""
        header = self._header_with(
            lambda header: (entry_of(header.sidecars, FILES_KIND) or {}).get("recipe") == self.recipe
        )
        base = table_in(self.store, read_manifest(self.store, header)) if header is not None else None
        known = base.files if base is not None else FILES.empty_table()
        same = known.join(self.wanted.select(["path", "fingerprint"]), ["path", "fingerprint"], join_type="left semi")
        fresh = sorted(set(self.wanted.column("path").to_pylist()) - set(same.column("path").to_pylist()))
        write_id = new_write_id()
        markers.begin(self.store, write_id)
        try:
            answers = self._prepare(spark, fresh, write_id) if fresh else []
            results = pa.concat_tables([same.select(ROW.names), files_of(answers)])
            files = self.wanted.join(results, "path", join_type="left outer").sort_by("path")
            files = files.select(FILES.names).cast(FILES).combine_chunks()
            self._check_policy(files)
            kept, copies = _divide(base.parts if base is not None else (), same)
            copied = copy_parts(spark, self.store, write_id, copies)
            files = _moved(files, copied)
            good = files.filter(pc.is_valid(files.column("part")))
            draft = Draft(
                write_id,
                SCHEMA,
                [*kept, *parts_of(copied), *parts_of(answers)],
                lineage={
                    "images": self.name,
                    "folder": redact(self.folder.source),
                    "size": self.options.size,
                    "quality": self.options.quality,
                },
                metadata={"classes": list(self.folder.classes), "counts": counts_of(good)},
                sidecars=(store_files(self.store, write_id, files, self.recipe),),
            )
        except BaseException:
            # The marker stays: an orphaned task may still put a part. Nothing names what is not deleted here.
            with contextlib.suppress(StoreError):
                for item in self.store.list(write_id):
                    self.store.delete(item.key)
            raise
        manifest = self._publish(draft, header)
        markers.end(self.store, write_id)
        if manifest.version % _VACUUM_EVERY == 0:
            with contextlib.suppress(SmaltiError):
                vacuum(self.store, dry_run=False)
        gone = len(set(known.column("path").to_pylist()) - set(files.column("path").to_pylist()))
        table = PreparedTable(self.store, manifest, files)
        num_bytes = _num_bytes(self.folder, fresh)
        kept_files = files.num_rows - len(fresh)
        return PreparedUpdate(table, prepared=len(fresh), kept=kept_files, removed=gone, num_bytes=num_bytes)

    def _prepare(
        self, spark: "SparkSession | Callable[[], SparkSession]", paths: Sequence[str], write_id: str
    ) -> Answers:
        """Prepare files into parts below a write id; answers as `write_prepared_rows`."""
        work = functools.partial(write_prepared_rows, self.store, write_id)
        # Preparing a few files here takes less time than starting Spark.
        is_few = len(paths) <= _MAX_LOCAL_FILES and _num_bytes(self.folder, paths) <= _MAX_LOCAL_BYTES
        if self.newest is not None and is_few:
            return run_here(work, prepare_here(self.folder, self.options, paths))
        frame = prepare_with_sizes(session_of(spark), self.folder, self.options, only=paths)
        return run_tasks(frame, work, store=self.store)

    def _header_with(self, fits: Callable[[Header], bool]) -> Header | None:
        """Return the newest version that fits and was not vacuumed."""
        if self.newest is None or fits(self.newest):
            return self.newest
        return earlier_with(self.store, self.newest, fits)

    def _check_policy(self, files: pa.Table) -> None:
        """Raise an error that names every bad file, found now or earlier, if the policy is `fail` or none is good."""
        bad = bad_in(files)
        if len(bad) == files.num_rows or (bad and self.options.on_bad_image == "fail"):
            raise bad_images(bad, of=files.num_rows)

    def _publish(self, draft: Draft, base: Header | None) -> Manifest:
        newest = self.newest
        if newest is None or base is newest:
            manifest = None if newest is None else read_manifest(self.store, newest)
            return publish_from(self.store, manifest, draft, operation="overwrite")
        # Parts of an older version may be removed by a vacuum, which publishes: then this fails.
        return replace_content(self.store, draft, based_on=newest.version, operation="overwrite")


def _num_bytes(folder: ImageFolder, paths: Collection[str]) -> int:
    """Return the bytes of some files of a folder."""
    wanted = set(paths)
    return sum(file.num_bytes for file in folder.files if file.path in wanted)


def _divide(parts: Sequence[ShardInfo], same: pa.Table) -> tuple[list[ShardInfo], list[PartRows]]:
    """Return the parts to keep as they are, and those of which rows are copied."""
    rows: dict[str, list[str]] = {part.raw.basename: [] for part in parts}
    for path, part in zip(same.column("path").to_pylist(), same.column("part").to_pylist(), strict=True):
        if part is not None:
            rows[part].append(path)
    left = {part.raw.basename: len(rows[part.raw.basename]) for part in parts}
    small = {name for name, count in left.items() if 0 < count < _SMALL_ROWS}
    joined = small if len(small) > _MAX_SMALL_PARTS else set()
    kept = [part for part in parts if left[part.raw.basename] == part.samples and part.raw.basename not in joined]
    names = {part.raw.basename for part in kept}
    copies = [(part, rows[name]) for part in parts if (name := part.raw.basename) not in names and rows[name]]
    return kept, sorted(copies, key=lambda copy: -len(copy[1]))


def _moved(files: pa.Table, copied: Answers) -> pa.Table:
    """Return the table of files with the parts to which rows were copied."""
    moved = files_of(copied)
    places = pc.index_in(files.column("path"), moved.column("path").combine_chunks())
    parts = pc.coalesce(moved.column("part").take(places), files.column("part"))
    return files.set_column(FILES.get_field_index("part"), FILES.field("part"), parts)
