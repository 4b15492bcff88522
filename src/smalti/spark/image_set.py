"""A shard set kept up to date with a folder of images: `prepare_images` runs on new and changed files only."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.catalog import Manifest
from smalti.redaction import redact
from smalti.sources.image_folder import ImageFolder
from smalti.spark.prepare import PrepareOptions, prepare_images, require_size, splits_of
from smalti.spark.reshard import Erased, SourceFile, reshard_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = {"image": "jpeg", "label": "int", "path": "str"}
_RECIPE = "prepare_images 2"  # increase the number when the same file and options would give another row


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
        recipe=[_RECIPE, recipe],
        columns=COLUMNS if columns is None else columns,
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
