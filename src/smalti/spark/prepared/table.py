"""A version of prepared images: Parquet files with the images, and one with a row for each source file.

<path>/_versions/…                 the versions, as those of shard sets (docs/versions.md); their shards are the parts
<path>/<write id>/part-….parquet   path, image, width and height of each row; each part has rows of the version only
<path>/<write id>/files.parquet    path, label, class, split and digest of each source file, or why it is no image

Label and split are not in the parts, so that no part is written again when a class is added or other files are held
out. Versions are made in `update`, and rows are read in `rows`.

Also here: what tasks do to write parts from prepared rows, or to copy them from other parts.
"""

import base64
import hashlib
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smalti.catalog import Manifest, sidecars
from smalti.catalog.opening import WantedVersion, open_version
from smalti.catalog.table.arrow import ipc_file, pack_shards, unpack_shards
from smalti.errors import FormatError, StoreError, StoreNotFound
from smalti.format import FileInfo, Schema, ShardInfo
from smalti.format.hashing import new_hash
from smalti.format.index import PARQUET
from smalti.images.pixels import HASH_BYTES, perceptual_hash
from smalti.regular_files import open_regular
from smalti.spark.lineage import digest_of
from smalti.spark.prepare import SOURCE_SIZE
from smalti.spark.reshard import SourceFile
from smalti.spark.tasks import run_jobs
from smalti.storage import Store, open_store
from smalti.writer.tables.plan import Answers, Attempt, check_owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = pa.schema(
    [
        ("path", pa.string()),
        ("label", pa.int32()),
        ("class_name", pa.string()),
        ("split", pa.string()),
        ("fingerprint", pa.string()),  # of the file when it was read: size and mark
        ("digest", pa.string()),  # sha256 of the prepared image; null for a bad image
        ("part", pa.string()),  # key of the Parquet file with its row; null for a bad image
        ("reason", pa.string()),  # why it is a bad image; null for a good one
        *((name, pa.int32()) for name in SOURCE_SIZE),  # of the file itself; null for a bad image, and where unknown
        ("perceptual_hash", pa.binary(HASH_BYTES)),  # of the prepared image; null if plain, bad, or not known
    ]
)
SCHEMA = Schema.from_columns({"path": "str", "image": "jpeg", "width": "int32", "height": "int32"})
ROW = pa.schema(
    [
        *((name, pa.string()) for name in ("path", "digest", "part", "reason")),
        *((name, pa.int32()) for name in SOURCE_SIZE),
        ("perceptual_hash", pa.binary(HASH_BYTES)),
    ]
)
"""The result for one file: digest, hash and part of its image, or why it has none; and its own sides in pixels."""
PartRows = tuple[ShardInfo, Sequence[str]]
"""A part, and the paths of some of its rows."""
FULL_ROWS = 128
"""Rows of a full part."""
_ARROW = pa.schema([("path", pa.string()), ("image", pa.binary()), ("width", pa.int32()), ("height", pa.int32())])
_HASH = "xxh3_64"
_READ_ROWS = 256
_MAX_DRIVER_BYTES = 32 << 20  # copied on the driver, which is faster than a Spark job
_DRIVER_THREADS = 8
_MAX_TASKS = 4096
_ADDED = (*SOURCE_SIZE, "perceptual_hash")  # null in versions before these columns: files are not read again for them


@dataclass(frozen=True)
class PreparedTable:
    """All images of a folder at one moment, as a version of the catalogue."""

    store: Store
    manifest: Manifest
    files: pa.Table
    """One row per file, in order of path, with the columns of `FILES`."""

    @property
    def url(self) -> str:
        """Address of the prepared images."""
        return self.store.url

    @property
    def name(self) -> str:
        """Digest of the files and options, hex: equal if nothing changed."""
        return str(self.manifest.lineage["images"])

    @property
    def parts(self) -> Sequence[ShardInfo]:
        """The Parquet files with the images."""
        return self.manifest.shards

    @cached_property
    def good(self) -> pa.Table:
        """The files that are usable images."""
        return self.files.filter(pc.is_valid(self.files.column("part")))

    @property
    def rows(self) -> int:
        """Number of usable images."""
        return self.manifest.rows

    @property
    def num_bytes(self) -> int:
        """Bytes of the parts."""
        return self.manifest.num_bytes

    @cached_property
    def counts(self) -> dict[str, dict[str, int]]:
        """Split to class to number of images."""
        return counts_of(self.good)

    @property
    def bad(self) -> list[tuple[str, str]]:
        """(path, reason) of every file that was left out."""
        return bad_in(self.files)

    @cached_property
    def digest(self) -> str:
        """sha256 of all rows, independent of their order and parts; hex."""
        return digest_of((file.path, file.fingerprint) for file in self.source_files())

    def source_files(self) -> list[SourceFile]:
        """Return the usable images for `reshard_files`; a new file with the same row counts as unchanged."""
        columns = [self.good.column(name).to_pylist() for name in ("path", "digest", "label", "split")]
        return [SourceFile(path, f"{row} {label} {split}") for path, row, label, split in zip(*columns, strict=True)]


@dataclass(frozen=True)
class PreparedFiles:
    """The files of a version, for any reader of Parquet. Join both by `path`, which is unique in each."""

    images: list[str]
    """Addresses of the Parquet files with the images: path, image (JPEG), width, height; exactly the version's rows."""
    labels: str
    """Address of the Parquet file with path, label, class_name, split and digest (sha256 of the image) of every file;
    also of files that are no images, which have a `reason`, and no row in `images`."""


def prepared_files(
    path: str | Path,
    *,
    version: int | None = None,
    tag: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PreparedFiles:
    """Return the files of a version of prepared images, the newest by default. Needs no Spark.

    Args:
        path: Path or URL of `update_prepared`.
        version: A version; by default the newest.
        tag: A tag in place of a version.
        storage_options: Options of the store's client, such as credentials.

    Raises:
        Otherwise: As for `load_prepared`.

    Examples:
        >>> update = update_prepared(spark, list_images("photos"), "s3://bucket/prepared")
        >>> len(prepared_files("s3://bucket/prepared").images)
        1
    """
    store = open_store(path, storage_options)
    manifest = _manifest(store, version, tag)
    labels = store.locate(str(_entry(store, manifest)["key"]))
    return PreparedFiles([store.locate(part.raw.basename) for part in manifest.shards], labels)


def load_prepared(
    path: str | Path,
    *,
    version: int | None = None,
    tag: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PreparedTable:
    """Return a version of the prepared images at a path of `update_prepared`, the newest by default. Needs no Spark.

    Args:
        path: Path or URL of `update_prepared`.
        version: A version; by default the newest.
        tag: A tag in place of a version.
        storage_options: Options of the store's client, such as credentials.

    Raises:
        StoreNotFound: Nothing was prepared there.
        VersionNotFound: There is no such version or tag, or a vacuum has removed it.
        FormatError: The version holds no prepared images, or its files are damaged.

    Examples:
        >>> update = update_prepared(spark, list_images("photos"), "s3://bucket/prepared")
        >>> load_prepared("s3://bucket/prepared").rows
        12
    """
    store = open_store(path, storage_options)
    return table_in(store, _manifest(store, version, tag))


def table_in(store: Store, manifest: Manifest) -> PreparedTable:
    """Return a version in a store with its files.

    Raises:
        FormatError: As for `load_prepared`.
    """
    entry = _entry(store, manifest)
    data, where = sidecars.load_object(store, entry), store.locate(str(entry["key"]))
    try:
        files = pq.read_table(pa.BufferReader(data))
        files.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{where} cannot be read: {str(error)[:200]}") from error
    for name in _ADDED:
        if name not in files.schema.names:
            files = files.append_column(FILES.field(name), pa.nulls(files.num_rows, FILES.field(name).type))
    if not files.schema.equals(FILES):
        raise FormatError(f"{where}: expected columns {FILES.names}, found {files.schema.names}")
    return PreparedTable(store, manifest, files)


def store_files(store: Store, write_id: str, files: pa.Table, recipe: str) -> dict[str, Any]:
    """Put the table of files, and return its entry for a header's `sidecars`."""
    sink = io.BytesIO()
    pq.write_table(files, sink, compression="zstd")
    key = f"{write_id}/files.parquet"
    return sidecars.store_object(store, sidecars.FILES, key, sink.getvalue(), recipe=recipe, files=files.num_rows)


def counts_of(good: pa.Table) -> dict[str, dict[str, int]]:
    """Return split to class to number of files."""
    groups = good.group_by(["split", "class_name"]).aggregate([([], "count_all")]).to_pylist()
    counts: dict[str, dict[str, int]] = {}
    for row in sorted(groups, key=lambda row: (row["split"], row["class_name"])):
        counts.setdefault(row["split"], {})[row["class_name"]] = row["count_all"]
    return counts


def bad_in(files: pa.Table) -> list[tuple[str, str]]:
    """Return (path, reason) of every file that is no image."""
    refused = files.filter(pc.is_valid(files.column("reason")))
    return list(zip(refused.column("path").to_pylist(), refused.column("reason").to_pylist(), strict=True))


def _manifest(store: Store, version: int | None, tag: str | None) -> Manifest:
    try:
        return open_version(store, WantedVersion(version, tag))
    except StoreNotFound as error:
        is_older = next(iter(store.list("_tables")), None) is not None
        found = "it has the tables of a Smalti before versions, which are not read" if is_older else "check the address"
        raise StoreNotFound(
            f"{store.url} holds no prepared images: {found}; `update_prepared` makes them", url=store.url
        ) from error


def _entry(store: Store, manifest: Manifest) -> Mapping[str, Any]:
    entry = sidecars.entry_of(manifest.sidecars, sidecars.FILES)
    if entry is None:
        raise FormatError(f"version {manifest.version} of {store.url} holds no prepared images: it is a shard set")
    return entry


def write_prepared_rows(store: Store, write_id: str, rows: Iterator[pa.RecordBatch], attempt: Attempt) -> Any:
    """Do the work of a task: write the rows of `prepare_with_sizes` to one part; return the results for its files."""
    found: list[dict[str, Any]] = []
    bad: list[dict[str, str]] = []

    def good() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            is_good = pc.is_null(batch.column("error"))
            refused = batch.filter(pc.invert(is_good))
            names, reasons = (refused.column(name).to_pylist() for name in ("path", "error"))
            bad.extend({"path": path, "reason": reason} for path, reason in zip(names, reasons, strict=True))
            usable = batch.filter(is_good)
            images = [memoryview(image.as_buffer()).cast("B") for image in usable.column("image")]
            rest = usable.select(["path", *SOURCE_SIZE]).to_pylist()
            found.extend(
                {**row, "digest": hashlib.sha256(image).hexdigest(), "perceptual_hash": perceptual_hash(image)}
                for row, image in zip(rest, images, strict=True)
            )
            yield usable.select(_ARROW.names)

    part = write_part(store, f"{write_id}/part-{attempt.name}.parquet", good())
    good_rows = [{**row, "part": part.raw.basename} for row in found] if part is not None else []
    return _answer(part, [*good_rows, *bad])


def copy_parts(
    spark: "SparkSession | Callable[[], SparkSession]", store: Store, write_id: str, copies: Sequence[PartRows]
) -> Answers:
    """Copy rows into new parts, without decoding; on executors if they are many. Small parts are joined.

    Rows are copied because others in their part are not of the new version, or because the part is small.

    Returns:
        Answers as of `write_prepared_rows`, with nothing but path and part of each file.
    """
    if not copies:
        return []
    jobs: list[tuple[int, tuple[str, Sequence[str]]]] = []
    before = 0
    for part, paths in copies:
        jobs.append((before // FULL_ROWS, (part.raw.basename, paths)))
        before += len(paths)
    work = partial(_copy_rows, store, write_id)
    if sum(part.raw.num_bytes for part, _ in copies) > _MAX_DRIVER_BYTES:
        return run_jobs(spark, jobs, work, num_tasks=min(jobs[-1][0] + 1, _MAX_TASKS), store=store)

    def run(task: int) -> tuple[Attempt, dict[str, Any]]:
        attempt = Attempt.new(task)
        return attempt, work((job for job in jobs if job[0] == task), attempt)

    with ThreadPoolExecutor(_DRIVER_THREADS, thread_name_prefix="smalti-copy") as pool:
        return list(pool.map(run, sorted({task for task, _ in jobs})))


def _copy_rows(store: Store, write_id: str, jobs: Iterator[tuple[int, Any]], attempt: Attempt) -> dict[str, Any]:
    copied: list[str] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for _, (source, paths) in jobs:
            for batch in read_part(store, source, paths):
                copied.extend(batch.column("path").to_pylist())
                yield batch

    part = write_part(store, f"{write_id}/part-copy-{attempt.name}.parquet", rows())
    return _answer(part, [{"path": path, "part": part.raw.basename} for path in copied] if part is not None else [])


def _answer(part: ShardInfo | None, files: list[dict[str, Any]]) -> dict[str, Any]:
    parts = pack_shards([part] if part is not None else [])
    return {"parts": parts, "files": base64.b64encode(ipc_file(pa.Table.from_pylist(files, ROW))).decode()}


def parts_of(answers: Answers) -> list[ShardInfo]:
    """Return the parts that tasks wrote.

    Raises:
        SmaltiError: An answer has the part of another attempt.
    """
    parts = []
    for attempt, answer in answers:
        for part in unpack_shards(answer["parts"], where="the answer of a task"):
            check_owner(part.raw.basename, f"-{attempt.name}.parquet", attempt)
            parts.append(part)
    return parts


def files_of(answers: Answers) -> pa.Table:
    """Return the results for all files."""
    texts = (base64.b64decode(answer["files"]) for _, answer in answers)
    tables = [pa.ipc.open_file(pa.py_buffer(text)).read_all() for text in texts]
    return pa.concat_tables(tables) if tables else ROW.empty_table()


def write_part(store: Store, key: str, batches: Iterable[pa.RecordBatch]) -> ShardInfo | None:
    """Store rows as one Parquet file; return None if there are none.

    Raises:
        StoreError: It cannot be stored.
    """
    with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as folder:
        file, rows = Path(folder) / "part.parquet", 0
        with pq.ParquetWriter(file, _ARROW, compression={"path": "ZSTD", "image": "NONE"}) as writer:
            for batch in batches:
                if batch.num_rows:
                    writer.write_batch(batch)
                    rows += batch.num_rows
        if not rows:
            return None
        hasher, num_bytes = new_hash(_HASH), file.stat().st_size
        with open_regular(file) as opened:
            while piece := opened.read(1 << 20):
                hasher.update(piece)
        store.put_file(key, file)
        if (stored := store.size(key)) != num_bytes:
            raise StoreError(f"{store.locate(key)}: {num_bytes} bytes were put, {stored} are there; try again")
    info = FileInfo(key, num_bytes, {_HASH: hasher.hexdigest()})
    return ShardInfo(SCHEMA, rows, info, hash_names=(_HASH,), format=PARQUET)


def read_part(store: Store, part: str, paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these paths in one part.

    Raises:
        StoreNotFound: The part is gone.
    """
    wanted = pa.array(list(paths), pa.string())
    with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as folder:
        file = store.local_path(part)
        if file is None:
            file = Path(folder) / "part.parquet"
            with file.open("wb") as out:
                store.fetch(part, out)
        elif not file.is_file():
            raise StoreNotFound(f"{file} is gone, or on another machine; use storage that all workers share", key=part)
        for batch in pq.ParquetFile(file).iter_batches(batch_size=_READ_ROWS):
            found = batch.filter(pc.is_in(batch.column("path"), wanted))
            if found.num_rows:
                yield found
