"""The facts of a shard set and of one of its versions, from the manifest and the tags; no shard is read.

Also here: a few rows of a version (`head`), the first, those from a place on, or random ones.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from smalti.attributes import whole_number
from smalti.catalog import Manifest
from smalti.catalog.manifest import has_write_id
from smalti.catalog.opening import WantedVersion, find_newest, open_version
from smalti.catalog.sidecars import aligned_shards, columns_of, sources_of
from smalti.catalog.table.shard_table import bytes_of, kinds_of, sizes_of
from smalti.catalog.tags import tags
from smalti.errors import CatalogError, StoreError, StoreNotFound
from smalti.format.index import PARQUET
from smalti.format.logical import masks_of
from smalti.inspection.reading import VersionRows, explain_missing
from smalti.inspection.values import value_json
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

    Examples:
        >>> facts = info("s3://bucket/users")
        >>> facts.version, facts.rows, [column.name for column in facts.columns]
        (2, 15, ['text', 'user_id'])
    """
    store = open_store(place)
    try:
        manifest = open_version(store, WantedVersion(version, tag))
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
    newest = None
    if manifest.version:
        with suppress(CatalogError):  # it is not there, so that only an older one can be described
            newest = find_newest(store, lenient=True).header
    sources = sources_of(manifest.sidecars)
    common = [set(file.hashes) for each in main_kinds for file in each.stored_files]
    splits = []
    for name in manifest.partitions:
        own = manifest.select(name)
        splits.append(SplitInfo(name, int(sizes_of(own).sum()), len(own), int(bytes_of(own).stored.sum())))
    return Info(
        url=store.url,
        written_by=_written_by(manifest),
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
        hashes=tuple(sorted(set.intersection(*common))) if common else (),
        splits=tuple(splits),
        columns=_columns(manifest),
        source_files=None if sources is None else int(sources.get("files", 0)),
        lineage=dict(manifest.lineage),
        metadata=dict(manifest.metadata),
        split=split,
    )


def _written_by(manifest: Manifest) -> str:
    if manifest.version or not len(manifest.shards):
        return SMALTI
    first = manifest.shards[0].raw.basename
    if has_write_id(first):
        return SMALTI
    return MOSAICML if first.rpartition("/")[2].startswith("shard.") else UNKNOWN


def _tags(store: Store, manifest: Manifest) -> dict[str, int] | None:
    if not manifest.version:
        return {}
    try:
        return tags(store)
    except StoreError:  # a store that answers reads may refuse, or not support, listings
        return None


def _columns(manifest: Manifest) -> tuple[ColumnInfo, ...]:
    found = dict.fromkeys(manifest.schema.names, False)
    encodings, logical = manifest.schema.columns(), dict(manifest.logical)
    for entry in columns_of(manifest.sidecars):
        found |= dict.fromkeys(entry.columns, True)
        encodings |= entry.columns
        logical |= entry.logical
    masks = masks_of(logical)
    hidden = set(masks.values())
    columns = []
    for name in (name for name in found if name not in hidden):
        kind, own = logical.get(name), None
        if isinstance(kind, dict):  # without its mark of nulls; None if the stored values are the values
            own = {key: value for key, value in kind.items() if key != "mask"}
        own = None if own == {"type": "plain"} else own
        columns.append(ColumnInfo(name, encodings[name], own, name in masks, found[name]))
    return tuple(columns)


DEFAULT_ROWS = 10
MAX_ROWS = 10_000
"""Rows that `head` returns at most: they are in memory at the same time."""


@dataclass(frozen=True)
class Head:
    """Some rows of a version."""

    url: str
    version: int
    """0 for a set without versions."""
    digest: str
    split: str | None
    num_rows: int
    """Rows of the version, or of the split."""
    columns: dict[str, str]
    """Encodings of the columns that were read, by name."""
    numbers: tuple[int, ...]
    """Number of each row in the version or split, from 0: `dataset[number]` of a dataset opened alike."""
    rows: tuple[dict[str, Any], ...]
    """Values by column. Images and pickled values are the stored bytes, which were not decoded."""

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON; `smalti.inspection.values` describes the values."""
        facts = {name: value for name, value in vars(self).items() if name != "numbers"}
        rows = [
            {"row": number, "values": {name: value_json(row[name], self.columns[name]) for name in row}}
            for number, row in zip(self.numbers, self.rows, strict=True)
        ]
        return {**facts, "rows": rows}


def head(  # noqa: PLR0913
    place: Place,
    rows: int = DEFAULT_ROWS,
    *,
    version: int | None = None,
    tag: str | None = None,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    offset: int = 0,
    sample: bool = False,
    seed: int = 0,
) -> Head:
    """Return a few rows of a version, the newest by default.

    Of uncompressed shards only these rows are read; of a compressed shard, its beginning up to the last of them.

    Args:
        place: The root of the set: a URL, folder or store.
        rows: Number of rows, at most 10,000; fewer if there are fewer.
        version: The number of the version.
        tag: Its tag, instead of the number.
        split: Split to read; None for the whole set.
        columns: Columns to read; None for all.
        offset: Number of the first row.
        sample: Return random rows of those from `offset` on, in their order, instead of the first ones.
        seed: Number that determines which rows are random.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version or tag.
        CatalogError: there is no such split.
        SchemaError: there is no such column.
        FormatError: a row is damaged.
        ValueError: a number is out of range, or both `version` and `tag` are given.

    Examples:
        >>> head("s3://bucket/users", rows=2, columns=["user_id"]).rows
        ({'user_id': 0}, {'user_id': 1})
    """
    count, begin = whole_number("`rows`", rows, 0, MAX_ROWS), whole_number("`offset`", offset, 0)
    found = VersionRows(place, version=version, tag=tag, split=split)
    chosen = found.choose(columns)
    numbers = choose_rows(begin, found.num_rows, count, seed=seed if sample else None)
    manifest = found.set.manifest
    return Head(
        url=found.store.url,
        version=manifest.version,
        digest=manifest.digest,
        split=split,
        num_rows=found.num_rows,
        columns={name: found.encodings[name] for name in chosen},
        numbers=tuple(numbers.tolist()),
        rows=tuple(found.read(numbers, chosen)) if len(numbers) else (),
    )


def choose_rows(begin: int, end: int, count: int, *, seed: int | None) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return the sorted numbers of at most `count` rows in [begin, end): the first ones, or random ones by a seed."""
    there = max(0, end - begin)
    if seed is None or count >= there:
        return np.arange(begin, begin + min(count, there), dtype=np.int64)
    drawn = np.random.default_rng(seed)
    if count * 4 > there:
        return np.sort(drawn.permutation(there)[:count]) + begin
    found = np.unique(drawn.integers(0, there, count, dtype=np.int64))
    while len(found) < count:  # few repeats: at most a quarter of the rows is chosen
        found = np.unique(np.concatenate([found, drawn.integers(0, there, count - len(found), dtype=np.int64)]))
    return found + begin
