"""The update of prepared images to the state of their folder: only new and changed files are read and decoded.

    1. the newest table of the same source and options lists what is prepared already;
    2. new and changed files are prepared on Spark into parts of their own;
    3. parts with few rows in use are joined, without decoding;
    4. the new table is stored, then made the newest; parts that neither it nor the one before needs are removed;
    5. parts that killed updates left long ago are removed too (`vacuum`).

A killed update leaves the old table as it was, and at worst parts that no table names, with a marker that assigns them
to their write (`writes`).
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog import new_write_id
from smalti.errors import CommitConflict
from smalti.sources.image_folder import TRAIN, VALIDATION, ImageFile, ImageFolder
from smalti.spark.prepare import PrepareOptions, bad_images, prepare_images, validation_files
from smalti.spark.prepared.newest import newest_table, point_at, put_table, show_table
from smalti.spark.prepared.parts import ROW, join_small, recording_writer, rows_written
from smalti.spark.prepared.store import delete_folder
from smalti.spark.prepared.table import FILES, PreparedPart, PreparedTable, load_table, table_key
from smalti.spark.prepared.vacuum import sweep_after_update
from smalti.spark.prepared.writes import begin, check_own, end
from smalti.spark.tasks import Answers, run_tasks
from smalti.storage import Store, open_store
from smalti.storage.redact import redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Prepare = Callable[[Sequence[str], Store], Answers]
"""Prepare the files with these paths into parts in a store; answers as `recording_writer`."""
_RECIPE = 1  # increase it when the same file and options would give another image


@dataclass(frozen=True)
class PreparedUpdate:
    """The result of `update_prepared`."""

    table: PreparedTable
    prepared: int
    """Number of files that were read and decoded: new and changed ones."""
    kept: int
    """Number of files that were not read."""
    removed: int
    """Number of files of the table before that are gone."""


def update_prepared(
    spark: "SparkSession",
    folder: ImageFolder,
    path: str | Path,
    *,
    name: str,
    options: PrepareOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PreparedUpdate:
    """Make the table of exactly the images of this folder; prepare only new and changed files. Blocks.

    A file whose label or split alone changed is not prepared again. Other values of `validation_fraction`,
    `on_bad_image`, `seed` and `num_partitions` prepare no file again.

    Args:
        spark: The session.
        folder: Current result of `list_images`.
        path: A local folder or any address that `open_store` accepts; holds tables of many folders and options.
        name: Name of the new table, which is part of a key: a digest of the folder and the options.
        options: As for `prepare_images`.
        storage_options: Credentials and endpoint of the store at `path`.

    Raises:
        BadImageError: The policy is `fail` and files are no images; all are named, also those that an earlier update
            left out. Or no file is usable. The table before stays the newest.
        StoreError: An image cannot be read, or the result cannot be written.
        CommitConflict: The update paused for days, and another one removed its parts; no table was published.
    """
    options = options or PrepareOptions()

    def prepare(paths: Sequence[str], store: Store) -> Answers:
        return run_tasks(prepare_images(spark, folder, options, only=paths), recording_writer(store))

    return bring_table_up_to_date(open_store(path, storage_options), folder, name, options, prepare)


def bring_table_up_to_date(
    store: Store, folder: ImageFolder, name: str, options: PrepareOptions, prepare: Prepare
) -> PreparedUpdate:
    """Do what `update_prepared` documents, with any function that prepares files."""
    recipe, write_id = recipe_of(folder, options), new_write_id()
    base = newest_table(store, recipe)
    fingerprints = {file.path: _fingerprint(file) for file in folder.files}
    rows, parts = (
        _unchanged(base, fingerprints) if base is not None else ROW.empty_table(),
        dict(base.parts if base else {}),
    )
    fresh = sorted(fingerprints.keys() - set(rows.column("path").to_pylist()))
    begin(store, write_id)
    try:
        answers = prepare(fresh, store.child(write_id)) if fresh else []
        _check_policy(answers, rows, options, of=len(fingerprints))
        added, new_parts = rows_written(answers, write_id)
        table = table_of(store, name, folder, options, pa.concat_tables([rows, added]), {**parts, **new_parts})
        if not table.rows:
            raise bad_images(list(table.bad), of=len(fingerprints))
        table = join_small(store, table, write_id)
    except BaseException:
        delete_folder(store, write_id)  # the marker stays: an orphaned task may still put a part
        raise
    show_own(store, table, recipe, write_id)
    sweep_after_update(store, known={*table.parts, *parts})
    gone = 0 if base is None else len(set(base.files.column("path").to_pylist()) - fingerprints.keys())
    return PreparedUpdate(table, prepared=len(fresh), kept=len(fingerprints) - len(fresh), removed=gone)


def show_own(store: Store, table: PreparedTable, recipe: str, write_id: str) -> None:
    """Store the table and make it the newest, unless vacuum has marked this write as dead.

    Raises:
        CommitConflict: It has; no table is published.
    """
    if not any(part.startswith(f"{write_id}/") for part in table.parts):
        end(store, write_id)
        show_table(store, table, recipe)
        return
    check_own(store, write_id)
    put_table(store, table)
    try:
        check_own(store, write_id)  # a vacuum that starts after this check sees the table
    except CommitConflict:
        store.delete(table_key(table.name))
        raise
    point_at(store, table.name, recipe)


def show_again(
    folder: ImageFolder,
    path: str | Path,
    *,
    name: str,
    options: PrepareOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PreparedTable | None:
    """Make the table of this name the newest again, and return it; None if there is none. Needs no Spark.

    Raises:
        BadImageError: The policy is `fail`, and files of the table are no images.
        FormatError: The object of this name is no table of prepared images.
    """
    store, options = open_store(path, storage_options), options or PrepareOptions()
    table = load_table(store, name)
    if table is not None:
        if table.bad and options.on_bad_image == "fail":
            raise bad_images(list(table.bad), of=table.files.num_rows)
        point_at(store, table.name, recipe_of(folder, options))
    return table


def recipe_of(folder: ImageFolder, options: PrepareOptions) -> str:
    """Return a digest of the folder and of the options that decide which image a file becomes.

    `on_bad_image` is not among them: a table lists bad images under either policy.
    """
    facts = [_RECIPE, redact(folder.source), options.size, options.quality]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def table_of(
    store: Store,
    name: str,
    folder: ImageFolder,
    options: PrepareOptions,
    rows: pa.Table,
    parts: Mapping[str, PreparedPart],
) -> PreparedTable:
    """Return the table of a folder from the results for its files (`ROW`), without parts that have none of them."""
    validation = validation_files(folder, options)
    files = {
        "path": [file.path for file in folder.files],
        "fingerprint": [_fingerprint(file) for file in folder.files],
        "label": pa.array([file.label for file in folder.files], pa.int32()),
        "class_name": [folder.classes[file.label] for file in folder.files],
        "split": [VALIDATION if file.path in validation else TRAIN for file in folder.files],
    }
    whole = pa.table(files).join(rows, "path", join_type="left outer").sort_by("path").select(FILES.names).cast(FILES)
    used = sorted(pc.unique(whole.column("part")).drop_null().to_pylist())
    return PreparedTable(store.url, name, whole.combine_chunks(), {key: parts[key] for key in used})


def _fingerprint(file: ImageFile) -> str:
    """Return a text that changes with the file's content."""
    return f"{file.num_bytes} {file.modified}"


def _unchanged(base: PreparedTable, fingerprints: Mapping[str, str]) -> pa.Table:
    """Return the results for the files that have not changed."""
    paths, known = (base.files.column(name).to_pylist() for name in ("path", "fingerprint"))
    same = [fingerprints.get(path) == mark for path, mark in zip(paths, known, strict=True)]
    return base.files.filter(pa.array(same, pa.bool_())).select(ROW.names)


def _check_policy(answers: Answers, unchanged: pa.Table, options: PrepareOptions, *, of: int) -> None:
    """Raise an error that names every bad file, found now or earlier, if the policy is `fail`."""
    if options.on_bad_image != "fail":
        return
    known = unchanged.filter(pc.is_valid(unchanged.column("reason")))
    before = zip(known.column("path").to_pylist(), known.column("reason").to_pylist(), strict=True)
    bad = sorted([*before, *((path, reason) for _, answer in answers for path, reason in answer["bad"])])
    if bad:
        raise bad_images(bad, of=of)
