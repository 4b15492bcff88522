"""A shard set kept up to date with a folder of images: what `prepare_images` makes of new and changed files alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.catalog import Manifest
from smalti.sources.image_folder import ImageFolder
from smalti.sources.splits import TRAIN, VALIDATION
from smalti.spark.incremental.reshard import reshard_files
from smalti.spark.incremental.source_table import SourceFile
from smalti.spark.prepare import PrepareOptions, prepare_images, validation_files
from smalti.storage.redact import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = {"image": "jpeg", "label": "int", "path": "str"}
_RECIPE = "prepare_images 1"  # another number when the same file and options would give another row


def reshard_images(  # noqa: PLR0913  the public door: these names are the documented interface
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
) -> Manifest:
    """The version that holds exactly the images of this folder; only new and changed ones are prepared. Blocks.

    A file whose label or split changes, because a class or other files of its class came or went, counts as changed.

    Args:
        spark: the session.
        folder: from `list_images`, of now.
        out: the root of the set: a path or URL that all executors can write to.
        options: as for `prepare_images`; other ones convert everything.
        columns: name to encoding, of the columns of `prepare_images` to store, `path` among them; by default image,
            label and path.
        compression: of shard files; none by default, because JPEG does not get smaller.
        hashes: checksums of shard files.
        size_limit: largest shard before compression.
        metadata: kept in the manifest, beside the names of the classes.
        storage_options: credentials and endpoint of the store.

    Returns:
        The new version, or the newest one if nothing changed.

    Raises:
        BadImageError: the policy is `fail`, and a new or changed file is no image.
        Otherwise: as for `reshard_files`.
    """
    chosen = options or PrepareOptions()

    def prepare(session: "SparkSession", paths: Sequence[str]) -> "DataFrame":
        return prepare_images(session, folder, chosen, only=paths)

    recipe = asdict(chosen)
    del recipe["num_partitions"]  # it moves rows, and changes none
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
    )


def source_files(folder: ImageFolder, options: PrepareOptions) -> list[SourceFile]:
    """The files with everything that their rows depend on: content, label and split."""
    validation = validation_files(folder, options)
    return [
        SourceFile(
            file.path,
            f"{file.num_bytes} {file.modified} {folder.classes[file.label]} {file.label} "
            f"{VALIDATION if file.path in validation else TRAIN}",
        )
        for file in folder.files
    ]
