"""A folder of images as a Spark DataFrame of small JPEGs: read, decoded, cropped and resized on the executors.

    list_images (driver)  ->  a row per file, mixed, n partitions  ->  mapInArrow: read ahead, decode, crop, resize

With `PrepareOptions(size=None)` the files are kept as they are. The frame's function runs in the tasks that write its
rows (`smalti.spark.tasks.run_tasks`), so that images do not pass through the JVM.

A bad image is a row whose `error` has the reason, so that one pass both writes and counts. The `error` column carries
the policy for such rows as metadata; `dataframe_to_mds`, which consumes the frame, follows it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from smalti.errors import ArgumentError, BadImageError, SchemaError, SmaltiError
from smalti.format.encodings.images import ImageFileEncoding
from smalti.format.encodings.registry import built_in_encoding
from smalti.images import prepare_jpeg
from smalti.images.header import probe_image
from smalti.sources.contents import read_ahead, read_contents
from smalti.sources.image_folder import ImageFolder, place_key, split_files
from smalti.spark.tasks import BatchTask, make_frame, map_in_arrow, select_columns
from smalti.storage import Store, open_store
from smalti.writer.tables.plan import ERROR, require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

POLICY = "smalti.on_bad_image"
"""Key in the metadata of the `error` column: the policy for rows that have an error, `fail` or `skip`."""
ENCODING = "smalti.encoding"
"""Key in the metadata of the `image` column: its encoding."""

_FILES_PER_PARTITION = 128  # or more small ones: about a second of work, so that little is lost when a task is repeated
_SMALL_FILES_PER_PARTITION = 1024
_SMALL_BYTES_PER_PARTITION = 8 << 20
_KEPT_BYTES_PER_PARTITION = 1 << 26  # of files that are not decoded: about a shard
_MAX_PARTITIONS = 4096
_READ_AHEAD = 9  # files in flight per task, 8 beside a slow one: hides latency with few large photos in memory
_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 256

SOURCE_SIZE = ("source_width", "source_height")
"""Columns with the sides of the file's own image, upright, in pixels; `prepare_images` itself leaves them out."""

_INVENTORY = {
    "place": pa.int64(),
    "path": pa.string(),
    "label": pa.int32(),
    "class_name": pa.string(),
    "split": pa.string(),
    "num_bytes": pa.int64(),
}
_PREPARED = pa.schema(
    {
        "image": pa.binary(),
        **{name: _INVENTORY[name] for name in ("label", "class_name")},
        **dict.fromkeys(("width", "height"), pa.int32()),
        **{name: _INVENTORY[name] for name in ("split", "path")},
        **dict.fromkeys(SOURCE_SIZE, pa.int32()),
        "error": pa.string(),
    }
)
_SIDES = ("width", "height", *SOURCE_SIZE)
_FACTS = pa.schema([_PREPARED.field(name) for name in (*_SIDES, "error")])


@dataclass(frozen=True)
class PrepareOptions:
    """Options of `prepare_images`."""

    size: int | None = 96
    """Side of the square in pixels, 8 to 4096; None keeps the bytes of every file: nothing is decoded, cropped or
    turned upright, and only headers are read."""
    quality: int = 90
    """JPEG quality, 1 to 100."""
    validation_fraction: float = 0.1
    """Share of every class that is held out, 0 to below 1."""
    test_fraction: float = 0.0
    """Share that is kept for a test after training, in the split `test`; then splits are fixed."""
    fixed_splits: bool = False
    """Decides each file by a hash of its path alone, so that none changes its split when others come or go; shares are
    met on average. Else every class has its exact share, and a few files change sides when others come."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """Policy for files that are no images: `fail` raises an error that names them, `skip` reports and omits them."""
    seed: int = 0
    """Decides which files are held out, and the order of the rows."""
    num_partitions: int | None = None
    """Spark partitions; by default one per 128 files, or 8 MB of up to 1024 small ones, or 64 MiB of files that are
    kept as they are: independent of the machine."""

    def __post_init__(self) -> None:
        size, held_out, kept = self.size, self.validation_fraction, self.test_fraction
        conditions = {
            "size": ("8..4096 or None", size is None or 8 <= size <= 4096),
            "quality": ("1..100", 1 <= self.quality <= 100),
            "validation_fraction": ("0 <= fraction < 1", 0 <= held_out < 1),
            "test_fraction": ("0 <= fraction, and below 1 together with validation", 0 <= kept < 1 - held_out),
            "on_bad_image": ("'fail' or 'skip'", self.on_bad_image in ("fail", "skip")),
            "num_partitions": ("1 or more", self.num_partitions is None or self.num_partitions >= 1),
        }
        for name, (expected, is_met) in conditions.items():
            require(name, expected, getattr(self, name), met=is_met)


def prepare_images(
    spark: "SparkSession",
    folder: ImageFolder,
    options: PrepareOptions | None = None,
    *,
    only: Collection[str] | None = None,
) -> "DataFrame":
    """Return the images of a folder as rows of a DataFrame; lazy.

    Columns: image (binary: a square RGB JPEG, upright; the file's own bytes if `size` is None), label (int: index into
    `folder.classes`), class_name (string), width and height (int, of the image as stored), split (string: `train`,
    `validation` or `test`), path (string, relative to the source), error (string, null for an image that is usable;
    carries the policy `on_bad_image`).

    Rows are mixed over classes; the same folder and options give the same rows in the same partitions everywhere.

    Args:
        spark: The session.
        folder: Result of `list_images`.
        options: Size, quality, splits and bad images.
        only: Paths of files whose rows are wanted alone; they equal those of the whole folder.

    Examples:
        >>> rows = prepare_images(spark, list_images("photos"), PrepareOptions(size=32))
        >>> rows.where("label = 0").count()
        6
    """
    frame = prepare_with_sizes(spark, folder, options or PrepareOptions(), only=only)
    return select_columns(frame, [(name, name) for name in frame.columns if name not in SOURCE_SIZE])


def prepare_with_sizes(
    spark: "SparkSession", folder: ImageFolder, options: PrepareOptions, *, only: Collection[str] | None = None
) -> "DataFrame":
    """Return the frame of `prepare_images` with the columns of `SOURCE_SIZE` too; lazy."""
    inventory = _inventory(folder, options, only)
    partitions = options.num_partitions or _count_partitions(inventory, is_kept=options.size is None)
    rows = make_frame(spark, inventory)
    rows = rows.repartitionByRange(partitions, "place").sortWithinPartitions("place")
    encoding = folder.encoding if options.size is None else "jpeg"
    schema = spark_schema(_PREPARED.names, on_bad_image=options.on_bad_image, encoding=encoding)
    return map_in_arrow(rows, _prepare_task(folder, options), schema)


def prepare_here(folder: ImageFolder, options: PrepareOptions, only: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `prepare_images` of a few files, prepared by threads of this process."""
    yield from _prepare_task(folder, options)(iter(_inventory(folder, options, only).to_batches()))


def _count_partitions(inventory: pa.Table, *, is_kept: bool = False) -> int:
    """Return the number of partitions for these files; a task costs as much as a hundred small files."""
    files, num_bytes = inventory.num_rows, pc.sum(inventory.column("num_bytes")).as_py() or 0
    if is_kept:
        return int(max(1, min(-(-num_bytes // _KEPT_BYTES_PER_PARTITION), _MAX_PARTITIONS)))
    small = max(-(-files // _SMALL_FILES_PER_PARTITION), -(-num_bytes // _SMALL_BYTES_PER_PARTITION))
    return int(max(1, min(small, -(-files // _FILES_PER_PARTITION), _MAX_PARTITIONS)))


def spark_schema(names: Iterable[str], *, on_bad_image: str = "fail", encoding: str = "jpeg") -> "StructType":
    """Return some columns of prepared images; the metadata of `image` and `error` have the encoding and the policy."""
    from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

    kinds = {pa.binary(): BinaryType(), pa.int32(): IntegerType(), pa.string(): StringType()}
    facts = {"image": {ENCODING: encoding}, "error": {POLICY: on_bad_image}}
    return StructType(
        [StructField(name, kinds[_PREPARED.field(name).type], metadata=facts.get(name)) for name in names]
    )


def policy_and_columns(schema: "StructType") -> tuple[str | None, dict[str, str | None] | None]:
    """Return what the metadata say of the columns of `prepare_images`; None and None for frames of other origin.

    Returns:
        The policy for bad images, `fail` or `skip`; and the columns to store by default, with their encodings: all but
        `error`, the image in the encoding of its files.

    Raises:
        SchemaError: The column `path`, which names bad images, was dropped.
    """
    known = {field.name: field.metadata or {} for field in schema.fields}
    policy = known.get(ERROR, {}).get(POLICY)
    if policy is None:
        return None, None
    if "path" not in known:
        raise SchemaError(
            "a frame of prepare_images keeps its columns `path` and `error` until it is written", column="path"
        )
    encodings = {name: metadata.get(ENCODING) for name, metadata in known.items() if name != ERROR}
    encodings["image"] = encodings.get("image") or "jpeg"
    return str(policy), encodings


def splits_of(folder: ImageFolder, options: PrepareOptions) -> dict[str, str]:
    """Return the split of each file, by its path."""
    return split_files(
        folder,
        validation=options.validation_fraction,
        test=options.test_fraction,
        fixed=options.fixed_splits,
        seed=options.seed,
    )


def _inventory(folder: ImageFolder, options: PrepareOptions, only: Collection[str] | None) -> pa.Table:
    splits, wanted = splits_of(folder, options), None if only is None else set(only)
    chosen = (file for file in folder.files if wanted is None or file.path in wanted)
    files = sorted(chosen, key=lambda file: place_key(file.path, options.seed + 1))
    columns = {
        "place": range(len(files)),
        "path": [file.path for file in files],
        "label": [file.label for file in files],
        "class_name": [folder.classes[file.label] for file in files],
        "split": [splits[file.path] for file in files],
        "num_bytes": [file.num_bytes for file in files],
    }
    return pa.table({name: pa.array(values, _INVENTORY[name]) for name, values in columns.items()})


def _prepare_task(folder: ImageFolder, options: PrepareOptions) -> BatchTask:
    """Return the function that runs on executors; store and options are pickled with it, the inventory is not."""
    store = open_store(folder.source, folder.storage_options)
    if options.size is None:
        return partial(_keep_files, store, folder.encoding)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = ((row, 0) for batch in batches for row in batch.to_pylist())
        yield from _batched(read_ahead(lambda row: prepare_file(store, row, options), files, _READ_AHEAD))

    return task


def _keep_files(store: Store, encoding: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with the bytes of the files as they are; a file that is no image becomes a row with an `error`.

    So does one that the column's encoding would refuse: a truncated JPEG, or a PNG named as a JPEG.
    """
    codec = built_in_encoding(encoding)
    check = codec.check if isinstance(codec, ImageFileEncoding) else None
    for batch in batches:
        begin = 0
        for contents in read_contents(store, batch.column("path").to_pylist()):
            files = batch.slice(begin, len(contents))
            begin += len(contents)
            listed = zip(contents.to_pylist(), files.column("num_bytes").to_pylist(), strict=True)
            facts = pa.RecordBatch.from_pylist([_facts_of(*file, check) for file in listed], _FACTS)
            errors = facts.column("error")
            images = contents if errors.null_count == len(errors) else pc.if_else(errors.is_null(), contents, None)
            columns = {name: rows.column(name) for rows in (files, facts) for name in rows.schema.names}
            columns |= {"image": images}
            yield pa.RecordBatch.from_arrays([columns[name] for name in _PREPARED.names], schema=_PREPARED)


def _facts_of(data: bytes, num_bytes: int, check: Callable[[bytes], None] | None) -> dict[str, Any]:
    """Return the sides of an image, or as `error` the reason why it is none that can be used."""
    try:
        _check_size(data, num_bytes)
        header = probe_image(data)
        if check is not None:
            check(data)
    except (BadImageError, SchemaError) as error:
        return {"error": error.message}
    return dict(zip(_SIDES, 2 * (header.width, header.height), strict=True))


def _check_size(data: bytes, num_bytes: int) -> None:
    if len(data) != num_bytes:
        raise BadImageError(
            f"the file changed while it was read: {num_bytes} bytes when listed, {len(data)} now; list the folder again"
        )


def prepare_file(store: Store, file: dict[str, Any], options: PrepareOptions) -> dict[str, Any]:
    """Return one row of the result for one row of the inventory; a bad image becomes a row with an `error`.

    Raises:
        StoreError: The file cannot be read, which is not a bad image, and is never skipped.
    """
    row = {"label": file["label"], "class_name": file["class_name"], "split": file["split"], "path": file["path"]}
    data = store.get(file["path"])
    try:
        _check_size(data, file["num_bytes"])
        image = prepare_jpeg(data, size=require_size(options), quality=options.quality)
    except BadImageError as error:
        return {**dict.fromkeys(_PREPARED.names), **row, "error": error.message}
    sizes = {name: getattr(image, name) for name in _SIDES}
    return {**row, **sizes, "image": image.data, "error": None}


def require_size(options: PrepareOptions) -> int:
    """Return the side of prepared images.

    Raises:
        ValueError: Files are kept as they are.
    """
    if options.size is None:
        raise ArgumentError(
            "`size=None` keeps files as they are, which dataframe_to_mds(prepare_images(...)) writes; give a size, as "
            "in PrepareOptions(size=96)"
        )
    return options.size


def _batched(rows: Iterator[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows as Arrow batches of bounded size."""
    part: list[dict[str, Any]] = []
    num_bytes = 0
    for row in rows:
        part.append(row)
        num_bytes += len(row["image"] or b"")
        if num_bytes >= _BATCH_BYTES or len(part) == _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(part, _PREPARED)
            part, num_bytes = [], 0
    if part:
        yield pa.RecordBatch.from_pylist(part, _PREPARED)


def bad_images(bad: list[tuple[str, str]], *, of: int | None = None) -> SmaltiError:
    """Return one error for all bad images (path, reason); its message has the first twenty."""
    shown = "\n".join(f"  {path}: {reason}" for path, reason in bad[:20])
    more = f"\n  … and {len(bad) - 20} more" if len(bad) > 20 else ""
    total = f" of {of}" if of is not None else ""
    return BadImageError(
        f"{len(bad)}{total} files are not usable images:\n{shown}{more}\nRemove or replace them, or set "
        f'`on_bad_image` to "skip" to leave them out.',
        paths=[path for path, _ in bad],
    )
