"""Reading the rows of prepared images: on Spark's executors, or a few of every class in this process.

Also here: shard sets of prepared images, for which only new and changed rows are written.
"""

import functools
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog import Manifest, load_manifest, new_write_id
from smalti.errors import StoreNotFound
from smalti.redaction import hide_options
from smalti.spark.prepare import spark_schema
from smalti.spark.prepared.table import FILES, PreparedTable, load_prepared, read_part
from smalti.spark.reshard import Erased, reshard_files
from smalti.spark.rows import find_same
from smalti.spark.tasks import LocalFrame, decode_errors, make_frame, map_in_arrow, require_reach, session_of
from smalti.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_MAX_PARTITIONS = 4096
_MAX_EXAMPLE_PARTS = 64
_THREADS = 8
_PARTITION_BYTES = 16 << 20  # of Parquet files: a task for each file of half a megabyte would cost more than its rows
_MAX_LOCAL_ROWS, _MAX_LOCAL_BYTES = 1024, 128 << 20  # rows, and bytes of their Parquet files
_FROM_FILES = ("label", "class_name", "split")
_COLUMNS = ("image", "label", "class_name", "width", "height", "split", "path")


@decode_errors()
def read_prepared(
    spark: "SparkSession",
    path: str | Path,
    *,
    version: int | None = None,
    tag: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> "DataFrame":
    """Return the prepared images at a path of `update_prepared` as a DataFrame, of the newest version by default; lazy.

    Columns are those of `prepare_images` except `error`. Parquet files are read in partitions of about 16 MB, and
    rows have the same order everywhere. Files are read through Smalti's stores, so that Spark needs no connector.

    Args:
        spark: The session.
        path: Path or URL of `update_prepared`.
        version: A version; by default the newest.
        tag: A tag in place of a version.
        storage_options: Options of the store's client, such as credentials.

    Raises:
        StoreNotFound: Nothing was prepared there. When evaluated: a vacuum has removed a file of the version.
        Otherwise: As for `load_prepared`.

    Examples:
        >>> update = update_prepared(spark, list_images("photos"), "s3://bucket/prepared")
        >>> read_prepared(spark, "s3://bucket/prepared").count()
        12
    """
    return read_rows(spark, load_prepared(path, version=version, tag=tag, storage_options=storage_options))


def read_rows(spark: "SparkSession", table: PreparedTable, *, only: Collection[str] | None = None) -> "DataFrame":
    """Return the rows of a version, or only of the files with these paths; lazy. Columns as of `read_prepared`."""
    files = table.good if only is None else _chosen(table, only)
    order = pa.array([part.raw.basename for part in table.parts], pa.string())
    places = pc.index_in(files.column("part"), order).cast(pa.int64()).fill_null(0).to_numpy()
    tasks = _grouped([part.raw.num_bytes for part in table.parts], places)
    inventory = files.select(["part", "path", *_FROM_FILES]).add_column(0, "place", pa.array(places))
    inventory = inventory.add_column(0, "task", pa.array(tasks))
    columns = "task long, place long, part string, path string, label int, class_name string, split string"
    require_reach(spark, table.store, writes=False)
    frame = make_frame(spark, inventory, columns)
    frame = frame.repartitionByRange(int(tasks.max(initial=0)) + 1, "task").sortWithinPartitions("place")
    return map_in_arrow(frame, functools.partial(_read_listed, table.store), spark_schema(_COLUMNS))


def few_rows(table: PreparedTable, paths: Collection[str]) -> LocalFrame | None:
    """Return the rows of these files as this process reads them; None if that takes longer than starting Spark."""
    files = _chosen(table, paths)
    names = set(files.column("part").to_pylist())
    parts = [part for part in table.parts if part.raw.basename in names]
    if files.num_rows > _MAX_LOCAL_ROWS or sum(part.raw.num_bytes for part in parts) > _MAX_LOCAL_BYTES:
        return None
    batches = (batch for part in parts for batch in read_labelled(table.store, part.raw.basename, files))
    return LocalFrame(spark_schema(_COLUMNS), batches)


def _chosen(table: PreparedTable, paths: Collection[str]) -> pa.Table:
    return table.good.filter(pc.is_in(table.good.column("path"), pa.array(sorted(paths), pa.string())))


def _grouped(sizes: Sequence[int], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return which task reads each row, by the place of its part among all parts."""
    used, row_of = np.unique(places, return_inverse=True)
    own = np.array(sizes, np.int64)[used]
    limit = max(_PARTITION_BYTES, -(-int(own.sum()) // _MAX_PARTITIONS))
    _, tasks = np.unique((np.cumsum(own) - own) // limit, return_inverse=True)
    return np.asarray(tasks[row_of], np.int64)


def images_of_classes(table: PreparedTable, count: int) -> dict[str, list[bytes]]:
    """Return at most `count` images of every class, by name, read in this process, without Spark.

    Chooses parts that have images of many classes, and reads a bounded number of them: of more than some thousand
    classes the rest have no image.

    Raises:
        StoreNotFound: A part is gone.
    """
    columns = (table.good.column(name).to_pylist() for name in ("part", "class_name", "path"))
    paths_in: dict[str, dict[str, list[str]]] = {}
    for part, name, path in zip(*columns, strict=True):
        paths_in.setdefault(part, {}).setdefault(name, []).append(path)
    name_of = {path: name for taken in choose_parts(paths_in, count).values() for path, name in taken.items()}
    images = read_images(table, name_of)
    examples: dict[str, list[bytes]] = {}
    for path in sorted(images, key=lambda path: (name_of[path], path)):
        examples.setdefault(name_of[path], []).append(images[path])
    return examples


def choose_parts(paths_in: Mapping[str, Mapping[str, Sequence[str]]], count: int) -> dict[str, dict[str, str]]:
    """Return the paths to read by part, with their classes: greedily, the part with most to give first.

    What a part can give never grows while others are chosen, so that only the first of the queue is looked at again.
    """
    missing = {name: count for classes in paths_in.values() for name in classes}

    def gain(part: str) -> int:
        return sum(min(missing[name], len(paths)) for name, paths in paths_in[part].items())

    queue = [(-gain(part), part) for part in paths_in]
    heapq.heapify(queue)
    chosen: dict[str, dict[str, str]] = {}
    while queue and len(chosen) < _MAX_EXAMPLE_PARTS:
        known, part = queue[0]
        now = gain(part)
        if 0 < now < -known:
            heapq.heapreplace(queue, (-now, part))
            continue
        heapq.heappop(queue)
        if now:
            chosen[part] = {path: name for name, paths in paths_in[part].items() for path in paths[: missing[name]]}
            for name in chosen[part].values():
                missing[name] -= 1
    return chosen


def read_images(table: PreparedTable, paths: Collection[str]) -> dict[str, bytes]:
    """Return the images of a few files by path; each part that has some is read as a whole, in this process.

    Raises:
        StoreNotFound: A part is gone.
    """

    def read(part: str) -> dict[str, bytes]:
        rows = (row for batch in read_part(table.store, part, paths) for row in batch.to_pylist())
        return {row["path"]: row["image"] for row in rows}

    parts = pc.unique(_chosen(table, paths).column("part")).to_pylist()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="smalti-images") as pool:
        return {path: image for images in pool.map(read, parts) for path, image in images.items()}


def read_labelled(store: Store, part: str, files: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part that are of these files, with their labels; `files` may have files of other parts."""
    labels = files.filter(pc.equal(files.column("part"), part)).select(["path", *_FROM_FILES]).combine_chunks()
    for batch in read_part(store, part, labels.column("path").to_pylist()):
        found = labels.take(pc.index_in(batch.column("path"), labels.column("path").combine_chunks()))
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns |= {name: found.column(name).combine_chunks() for name in _FROM_FILES}
        yield pa.RecordBatch.from_arrays([columns[name] for name in _COLUMNS], names=list(_COLUMNS))


def _read_listed(store: Store, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a task's input names."""
    schema = pa.schema([FILES.field(name) for name in ("part", "path", *_FROM_FILES)])
    rows = (row for batch in batches for row in batch.to_pylist())
    for part, files in groupby(rows, key=lambda row: row["part"]):
        yield from read_labelled(store, part, pa.Table.from_pylist(list(files), schema))


_RECIPE = "prepared 1"  # increase the number when the same table would give other rows


@dataclass(frozen=True)
class Sharding:
    """Options by which rows become shards."""

    columns: Mapping[str, str | None]
    """Columns of the table to store, name to encoding; `path` is required."""
    compression: str | None = None
    """Compression of shard files; none by default, because JPEG does not get smaller."""
    hashes: tuple[str, ...] = ("xxh3_64",)
    """Checksums of shard files."""
    size_limit: int | str | None = 1 << 26
    """Largest shard before compression."""

    def lineage(self, table: PreparedTable) -> dict[str, Any]:
        """Return the lineage of a version that holds the rows of this table in such shards."""
        options = {**vars(self), "columns": dict(self.columns), "hashes": list(self.hashes)}
        return {"rows": table.digest, "sharding": options}


@dataclass(frozen=True)
class Resharded:
    """The result of `reshard_prepared`."""

    manifest: Manifest
    converted: int
    """Images that were written from the prepared table."""
    kept_shards: int
    """Number of shards of the version before that this version reuses."""


@dataclass(frozen=True)
class Target:
    """A shard set that is to hold the rows of a prepared table, and its newest version when `look_at` read it."""

    url: str | Path
    """The root of the set: a path or URL that all executors can write to."""
    newest: Manifest | None
    """Its newest version; None if there is none."""
    storage_options: Mapping[str, Any] | None = None
    """Credentials and endpoint of its store."""

    def __post_init__(self) -> None:
        hide_options(self)

    @property
    def version(self) -> int:
        """The number of the newest version; 0 if there is none."""
        return self.newest.version if self.newest is not None else 0


def look_at(url: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> Target:
    """Return the set at this place with its newest version, for `find_version` and `reshard_prepared`.

    Raises:
        IndexFileError: The newest version is damaged.
    """
    try:
        newest = load_manifest(open_store(url, storage_options))
    except StoreNotFound:
        newest = None
    return Target(url, newest, storage_options)


def find_version(table: PreparedTable, target: Target, sharding: Sharding) -> Manifest | None:
    """Return the newest version that holds the rows of this table in such shards; None if there is none.

    If it is not the newest version of all, it is rolled back to: the same shards and digest under a new number. Needs
    no Spark.

    Args:
        table: Table from `update_prepared`.
        target: Set from `look_at`.
        sharding: Options by which its rows are stored.

    Raises:
        CatalogError: As for `rollback`.
    """
    store = open_store(target.url, target.storage_options)
    return find_same(store, target.newest, sharding.lineage(table))


def reshard_prepared(
    spark: "SparkSession | Callable[[], SparkSession]",
    table: PreparedTable,
    target: Target,
    sharding: Sharding,
    *,
    rewrite: bool = False,
    lineage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    erased: Erased = "refuse",
) -> Resharded:
    """Publish a version that holds exactly the rows of a prepared table; write only new and changed rows. Blocks.

    A few rows are written in this process, any others on Spark.

    Args:
        spark: The session, or a function that starts one: it is called only if there is much to do.
        table: Table from `update_prepared`.
        target: Set from `look_at`.
        sharding: Options by which rows become shards; other options than before write all rows again.
        rewrite: True writes all rows again.
        lineage: Kept in the manifest.
        metadata: Kept in the manifest.
        erased: What to do with new and changed images that were deleted from the set: refuse, skip or convert.

    Raises:
        Otherwise: As for `reshard_files`.
    """
    newest, converted = target.newest, 0
    # Versions of another generation, written before the last rewrite, are not reused.
    generation = new_write_id() if rewrite else str(newest.lineage.get("generation", "")) if newest else ""

    def prepare(_: object, paths: Sequence[str]) -> "DataFrame | LocalFrame":
        nonlocal converted
        converted = len(paths)
        few = few_rows(table, paths) if newest is not None else None
        return read_rows(session_of(spark), table, only=paths) if few is None else few

    manifest = reshard_files(
        spark,
        table.source_files(),
        target.url,
        prepare=prepare,
        recipe=[_RECIPE, generation],
        **vars(sharding),
        partition_by="split",
        lineage={**sharding.lineage(table), "generation": generation, **dict(lineage or {})},
        metadata=metadata,
        storage_options=target.storage_options,
        erased=erased,
    )
    before = {shard.raw.basename for shard in newest.shards} if newest is not None else set()
    kept = before & {shard.raw.basename for shard in manifest.shards}
    return Resharded(manifest, converted, len(kept))
