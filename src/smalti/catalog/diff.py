"""The difference between two versions. Shards are immutable: equal names and hashes mean equal samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smalti.catalog.digest import digest_of_shards
from smalti.catalog.manifest import Annotations, Manifest, stored_bytes
from smalti.catalog.opening import WantedVersion, open_version
from smalti.catalog.sidecars import load_sources, sources_of
from smalti.catalog.table.segments import shards_only_in
from smalti.format import ShardInfo
from smalti.storage import Place, Store, open_store


@dataclass(frozen=True)
class VersionDiff:
    """The changes from version `a` to version `b`."""

    a: int
    b: int
    added: tuple[ShardInfo, ...]
    """Shards in `b` only, in its order."""
    removed: tuple[ShardInfo, ...]
    """Shards in `a` only, in its order."""
    num_kept: int
    """Number of shards in both."""
    rows: tuple[int, int]
    """Samples of `a` and of `b`."""
    num_bytes: tuple[int, int]
    """Bytes of `a` and of `b` as stored."""
    columns_added: Mapping[str, str]
    """Name to encoding."""
    columns_removed: Mapping[str, str]
    columns_changed: Mapping[str, tuple[str, str]]
    """Name to both encodings."""
    lineage: tuple[Mapping[str, Any], Mapping[str, Any]]
    """Lineage of `a` and of `b`."""
    same_rows: bool | None
    """True if both have the same samples, in any order and shards; None if a version has no row hash."""
    is_equal: bool
    """True if both have the same columns, and shards with the same content in the same order."""

    @property
    def rows_added(self) -> int:
        """Samples in the added shards."""
        return sum(shard.samples for shard in self.added)

    @property
    def rows_removed(self) -> int:
        """Samples in the removed shards."""
        return sum(shard.samples for shard in self.removed)

    @property
    def bytes_added(self) -> int:
        """Bytes of the added shards as stored, which a reader of `a` has to fetch for `b`."""
        return sum(map(stored_bytes, self.added))

    def summary(self) -> str:
        """Return a one-line summary."""
        rows = {True: "the same samples", False: "other samples", None: "row hashes unknown"}[self.same_rows]
        return (
            f"version {self.a} to {self.b}: {len(self.added):,} shards ({self.rows_added:,} samples) added, "
            f"{len(self.removed):,} ({self.rows_removed:,}) removed, {self.num_kept:,} kept; {rows}"
        )


def diff(place: Place, a: int | str, b: int | str | None = None) -> VersionDiff:
    """Compare two versions.

    Args:
        place: Root of the set: a URL, folder or store.
        a: Number or tag of a version.
        b: Number or tag of the other one; by default the newest.

    Raises:
        StoreNotFound: there is no set.
        VersionNotFound: there is no such version or tag.

    Examples:
        >>> changes = diff("s3://bucket/users", 1, 2)
        >>> changes.rows, len(changes.added), len(changes.removed)
        ((10, 15), 1, 0)
    """
    store = open_store(place)
    choices = (WantedVersion(tag=which) if isinstance(which, str) else WantedVersion(which) for which in (a, b))
    before, after = (open_version(store, choice) for choice in choices)
    return compare(before, after)


def compare(before: Manifest, after: Manifest) -> VersionDiff:
    """Compare two versions that were loaded before. Pure."""
    old, new = _columns(before), _columns(after)
    if before.digest_scheme == after.digest_scheme:
        has_equal_shards = before.digest == after.digest
    else:  # digests of different schemes cannot be compared
        has_equal_types = before.rows == after.rows and dict(before.logical) == dict(after.logical)
        has_equal_shards = has_equal_types and digest_of_shards(before.shards) == digest_of_shards(after.shards)
    same_rows: bool | None = before.digest == after.digest
    if not same_rows and before.rows == after.rows and before.schema == after.schema:
        same_rows = before.row_hash == after.row_hash if before.row_hash and after.row_hash else None
    added, removed = shards_only_in(after.shards, before.shards), shards_only_in(before.shards, after.shards)
    return VersionDiff(
        a=before.version,
        b=after.version,
        added=added,
        removed=removed,
        num_kept=len(after.shards) - len(added),
        rows=(before.rows, after.rows),
        num_bytes=(before.num_bytes, after.num_bytes),
        columns_added={name: kind for name, kind in new.items() if name not in old},
        columns_removed={name: kind for name, kind in old.items() if name not in new},
        columns_changed={name: (old[name], new[name]) for name in old if name in new and old[name] != new[name]},
        lineage=(before.lineage, after.lineage),
        same_rows=same_rows,
        is_equal=has_equal_shards and old == new,
    )


@dataclass(frozen=True)
class SourceChanges:
    """Numbers of source files that differ between two versions of a set that `reshard_files` keeps up to date."""

    added: int
    removed: int
    changed: int
    """In both versions, with other rows."""


def source_changes(store: Store, before: Annotations, after: Annotations) -> SourceChanges | None:
    """Count the source files that were added, removed and changed; None if a version does not list its files.

    Raises:
        StoreError: a list of files cannot be read.
    """
    entries = [sources_of(version.sidecars) for version in (before, after)]
    if None in entries:
        return None
    if entries[0] == entries[1]:
        return SourceChanges(0, 0, 0)
    old, new = (load_sources(store, entry).fingerprints for entry in entries if entry is not None)
    changed = sum(new[path] != mark for path, mark in old.items() if path in new)
    return SourceChanges(len(new.keys() - old.keys()), len(old.keys() - new.keys()), changed)


def _columns(manifest: Manifest) -> dict[str, str]:
    """Return name to encoding, including added columns."""
    found = manifest.schema.columns()
    for columns in (sidecar.get("columns") for sidecar in manifest.sidecars):
        found |= columns if isinstance(columns, dict) else {}
    return found
