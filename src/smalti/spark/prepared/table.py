"""A version of prepared images: Parquet files with the images, and one with a row for each source file.

<path>/_versions/…                 the versions, as those of shard sets (docs/versions.md); their shards are the parts
<path>/<write id>/part-….parquet   path, image, width and height of each row; each part has rows of the version only
<path>/<write id>/files.parquet    path, label, class, split and digest of each source file, or why it is no image

Label and split are not in the parts, so that no part is written again when a class is added or other files are held
out. Versions are made in `update`; parts are written in `parts`, and rows are read in `rows`.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smalti.catalog import Manifest, sidecars
from smalti.catalog.opening import WantedVersion, open_version
from smalti.errors import FormatError, StoreNotFound
from smalti.format import ShardInfo
from smalti.images.duplicates import HASH_BYTES
from smalti.spark.prepare import SOURCE_SIZE
from smalti.spark.reshard import SourceFile
from smalti.storage import Store, open_store

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
        digest = hashlib.sha256()
        for file in self.source_files():
            digest.update(f"{file.path}\0{file.fingerprint}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

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
