"""The facts of a shard set and of one of its versions, from the manifest and the tags; no shard is read."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from smalti.catalog import Manifest
from smalti.catalog.header import Header
from smalti.catalog.manifest import has_write_id
from smalti.catalog.opening import Choice, find_newest, open_version
from smalti.catalog.sidecars import SOURCES, aligned_shards, columns_of
from smalti.catalog.table.shard_table import bytes_of, kinds_of, sizes_of
from smalti.catalog.tags import tags
from smalti.errors import CatalogError, StoreError, StoreNotFound
from smalti.format import ShardInfo
from smalti.format.index import PARQUET
from smalti.format.logical import MASK_SUFFIX
from smalti.inspection.reading import explain_missing
from smalti.storage import Place, Store, open_store

SMALTI, MOSAICML, UNKNOWN = "Smalti", "MosaicML Streaming", "another program"


@dataclass(frozen=True)
class ColumnInfo:
    """One column as readers see it."""

    name: str
    encoding: str
    """Storage format; docs/encodings.md lists them."""
    logical: Any
    """Logical type as the manifest declares it; None where the stored values are the values."""
    is_nullable: bool
    """True if rows may have no value; None is read then."""
    is_added: bool
    """True if the column was added to the set later and lies in shards of its own."""


@dataclass(frozen=True)
class SplitInfo:
    """The size of one split."""

    name: str
    rows: int
    num_shards: int
    num_bytes: int
    """Bytes as stored, without added columns."""


@dataclass(frozen=True)
class Info:
    """The facts of a version."""

    url: str
    written_by: str
    """Smalti, MosaicML Streaming, or another program."""
    format: str
    """mds, json, csv, tsv, xsv, or parquet for a version of prepared images."""
    version: int
    """0 for a set without versions."""
    newest: int
    """Number of the newest version; 0 for a set without versions."""
    operation: str
    """Operation that published the version, such as append; empty if unknown."""
    created: str
    """Time of publication, ISO 8601 in UTC; empty if unknown."""
    write_id: str
    digest: str
    row_hash: str
    """Hash of the samples whatever their order; empty if unknown."""
    tags: dict[str, int] | None
    """All tags of the set with their versions; None if the credentials do not allow to list them."""
    rows: int
    num_shards: int
    num_bytes: int
    """Bytes of the shards as stored, with added columns."""
    raw_bytes: int
    """Bytes of the same shards uncompressed."""
    compression: tuple[str, ...]
    """Compression algorithms of the shards; empty if none is compressed."""
    hashes: tuple[str, ...]
    """Checksums that every file has."""
    splits: tuple[SplitInfo, ...]
    columns: tuple[ColumnInfo, ...]
    source_files: int | None
    """Number of files that the samples were made of; None if they are not recorded."""
    lineage: dict[str, Any]
    metadata: dict[str, Any]
    split: str | None
    """Split that the sizes are of; None for the whole set."""

    @property
    def open_with(self) -> str:
        """The line of Python that opens these samples."""
        root = self.url.removeprefix("file://")
        chosen = [f"version={self.version}"] if 0 < self.version < self.newest else []
        if self.format == PARQUET:
            return f"smalti.spark.read_prepared(spark, {', '.join([repr(root), *chosen])})"
        name = self.split or next((each.name for each in self.splits if each.name.startswith("train")), None)
        name = name or (self.splits[0].name if self.splits else None)
        chosen += [f"split={name!r}"] if name is not None else []
        return f"StreamingDataset({', '.join([f'remote={root!r}', *chosen])})"

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON."""
        return {**asdict(self), "open_with": self.open_with}


def info(place: Place, *, version: int | None = None, tag: str | None = None, split: str | None = None) -> Info:
    """Return what is at a place: the facts of one version, the newest by default.

    Args:
        place: The root of the set: a URL, folder or store.
        version: The number of the version.
        tag: Its tag, instead of the number.
        split: Split whose sizes are returned; None for the whole set.

    Raises:
        StoreNotFound: there is no set; the message says what is there instead.
        VersionNotFound: there is no such version or tag.
        CatalogError: there is no such split.
        IndexFileError: the manifest cannot be trusted.
    """
    store = open_store(place)
    try:
        manifest = open_version(store, Choice(version, tag))
    except StoreNotFound as error:
        if split is not None:
            with suppress(StoreNotFound):  # a folder of splits, as MosaicML's writer leaves it
                return info(store.child(split), version=version, tag=tag)
        raise explain_missing(store, error) from error
    if split is not None and not any(manifest.partitions):
        return info(store.child(split), version=version, tag=tag)
    return _info_of(store, manifest, split)


def _info_of(store: Store, manifest: Manifest, split: str | None) -> Info:
    shards, added = manifest.select(split), columns_of(manifest.sidecars)
    main_kinds, sizes = kinds_of(shards), bytes_of(shards)
    num_bytes, raw_bytes = int(sizes.stored.sum()), int(sizes.raw.sum())
    for entry in added:
        aligned = aligned_shards(store, entry, manifest.shards)
        of_split = bytes_of(aligned if split is None else aligned.of_partition(split))
        num_bytes, raw_bytes = num_bytes + int(of_split.stored.sum()), raw_bytes + int(of_split.raw.sum())
    newest = _newest(store) if manifest.version else None
    sources = next((entry for entry in manifest.sidecars if entry.get("kind") == SOURCES), None)
    return Info(
        url=store.url,
        written_by=_writer(manifest),
        format=main_kinds[0].format if len(main_kinds) else "mds",
        version=manifest.version,
        newest=newest.version if newest is not None else manifest.version,
        operation=manifest.operation,
        created=manifest.created,
        write_id=manifest.write_id,
        digest=manifest.digest,
        row_hash=manifest.row_hash,
        tags=_tags(store, manifest),
        rows=int(sizes_of(shards).sum()),
        num_shards=len(shards),
        num_bytes=num_bytes,
        raw_bytes=raw_bytes,
        compression=tuple(sorted({each.compression for each in main_kinds if each.compression})),
        hashes=_hashes(main_kinds),
        splits=tuple(_split(manifest, name) for name in manifest.partitions),
        columns=_columns(manifest),
        source_files=None if sources is None else int(sources.get("files", 0)),
        lineage=dict(manifest.lineage),
        metadata=dict(manifest.metadata),
        split=split,
    )


def _newest(store: Store) -> Header | None:
    """Return the header of the newest version; None if it is not there, so that only an older one can be described."""
    try:
        return find_newest(store, lenient=True).header
    except CatalogError:
        return None


def _writer(manifest: Manifest) -> str:
    if manifest.version or not len(manifest.shards):
        return SMALTI
    name = manifest.shards[0].raw.basename
    if has_write_id(name):
        return SMALTI
    return MOSAICML if name.rpartition("/")[2].startswith("shard.") else UNKNOWN


def _hashes(kinds: Sequence[ShardInfo]) -> tuple[str, ...]:
    common = [set(file.hashes) for each in kinds for file in each.stored_files]
    return tuple(sorted(set.intersection(*common))) if common else ()


def _tags(store: Store, manifest: Manifest) -> dict[str, int] | None:
    if not manifest.version:
        return {}
    try:
        return tags(store)
    except StoreError:  # a store that answers reads may refuse, or not support, listings
        return None


def _split(manifest: Manifest, name: str) -> SplitInfo:
    shards = manifest.select(name)
    return SplitInfo(name, int(sizes_of(shards).sum()), len(shards), int(bytes_of(shards).stored.sum()))


def _columns(manifest: Manifest) -> tuple[ColumnInfo, ...]:
    found = dict.fromkeys(manifest.schema.names, False)
    encodings, logical = manifest.schema.columns(), dict(manifest.logical)
    for entry in columns_of(manifest.sidecars):
        found |= dict.fromkeys(entry.columns, True)
        encodings |= entry.columns
        logical |= entry.logical
    nullable = {name for name, kind in logical.items() if isinstance(kind, dict) and kind.get("mask")}
    masks = {name + MASK_SUFFIX for name in nullable}
    return tuple(
        ColumnInfo(name, encodings[name], _logical(logical.get(name)), name in nullable, is_added)
        for name, is_added in found.items()
        if name not in masks
    )


def _logical(kind: Any) -> Any:
    """Return a logical type without its mark of nulls; None if the stored values are the values."""
    if not isinstance(kind, dict):
        return None
    own = {name: value for name, value in kind.items() if name != "mask"}
    return None if own == {"type": "plain"} else own
