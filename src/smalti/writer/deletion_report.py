"""The report of a deletion: what was deleted, what was removed of older versions, and what a scan found afterwards."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from smalti.catalog.retention.retire import PendingWrite


@dataclass(frozen=True)
class RemovedObject:
    """An object that was removed, or would be."""

    key: str
    num_bytes: int
    why: str
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the object by name, as far as a retired version named it."""


@dataclass(frozen=True)
class RetiredVersion:
    """An older version that held deleted samples and was removed, or would be."""

    version: int
    digest: str
    write_id: str
    created: str
    rows: int
    num_matched: int | None
    """Number of chosen samples in it; None if it could not be searched, or was not."""


@dataclass(frozen=True)
class ScanMatch:
    """Chosen samples in a shard that a version still has."""

    version: int
    key: str
    num_samples: int


@dataclass(frozen=True)
class ScanReport:
    """The result of reading every shard that a version still has."""

    versions: tuple[int, ...]
    """The versions whose shards were read."""
    num_shards: int
    num_samples: int
    num_bytes: int
    """Bytes of these shards as stored."""
    matches: tuple[ScanMatch, ...]
    finished: str
    """Time of the end, ISO 8601 in UTC, by the clock of this machine."""

    @property
    def ok(self) -> bool:
        """True if no shard holds a chosen sample."""
        return not self.matches


@dataclass(frozen=True)
class OldVersions:
    """Contents of removed objects that a versioned bucket keeps."""

    num_versions: int
    num_bytes: int
    removed: bool


@dataclass(frozen=True)
class PurgeReport:
    """The part of a report on older versions."""

    version: int | None
    """The version that was published with the list of removals; None if none was needed."""
    write_id: str | None
    """Its write id."""
    retired: tuple[RetiredVersion, ...]
    objects: tuple[RemovedObject, ...]
    """The removed objects, in the order of their removal."""
    num_uploads: int | None
    """Unfinished uploads and temporary files that were removed; None if the store does not list them."""
    bucket_versions: OldVersions | None
    """None if the store does not report whether it keeps contents of removed objects."""
    tags: Mapping[str, str]
    """The treatment of tags of retired versions: removed, or moved to version N."""
    pending: tuple[PendingWrite, ...]
    """Objects of writes that may be running: they were not removed."""
    cache_files: int | None
    """Copies in the cache folder of this machine that were removed; None if it was not looked at."""
    cache_digests: tuple[str, ...]
    """Digests of the removed versions: folders with these names in caches of other machines hold copies."""
    scan: ScanReport | None
    """None in a dry run."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the removed objects."""
        return sum(each.num_bytes for each in self.objects)

    @property
    def ok(self) -> bool:
        """True if the scan found no chosen sample."""
        return self.scan is None or self.scan.ok


@dataclass(frozen=True)
class DeletionReport:
    """The result of `delete`."""

    url: str
    dry_run: bool
    by: str
    """The kind of choice of the samples: where, ids, expression, function or positions."""
    what: str
    """The comparisons, or the number of ids; the ids themselves are not in the report."""
    started: str
    """Time of the begin, ISO 8601 in UTC, by the clock of this machine."""
    finished: str
    base_version: int
    """The version from which samples were deleted."""
    version: int | None
    """The version without them; None if it had none, or in a dry run."""
    write_id: str | None
    digest: str | None
    row_hash: str | None
    rows_before: int
    num_deleted: int
    """Number of chosen samples in the base version."""
    deleted_by_split: Mapping[str, int]
    """The same by split; empty if the version has none."""
    emptied_splits: tuple[str, ...]
    """Splits that the new version does not have any more."""
    num_shards: int
    """Shards of the base version, without those of added columns."""
    shards_concerned: int
    """Those with chosen samples."""
    bytes_total: int
    """Bytes of all shards of the base version as stored, with those of added columns."""
    bytes_concerned: int
    """Bytes of shards with chosen samples, with the shards beside them."""
    bytes_written: int
    """Bytes of the shards that were written in their place."""
    missing_ids: int | None
    """Number of ids of which no searched version had a sample; None if samples were not chosen by ids of a column."""
    purge: PurgeReport | None
    """None if older versions were left alone."""

    @property
    def ok(self) -> bool:
        """False if the scan after a purge found chosen samples."""
        return self.purge is None or self.purge.ok

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        found = asdict(self) | {"ok": self.ok}
        if self.purge is not None:
            found["purge"] |= {"num_bytes": self.purge.num_bytes, "ok": self.purge.ok}
            if self.purge.scan is not None:
                found["purge"]["scan"] |= {"ok": self.purge.scan.ok}
        return found

    def summary(self) -> str:
        """Return a one-line summary."""
        share = f"{self.num_deleted:,} of {self.rows_before:,} samples"
        if not self.num_deleted:
            text = f"version {self.base_version}: no sample matches"
        elif self.dry_run:
            text = f"version {self.base_version}: {share} match, in {self.shards_concerned:,} shards"
        else:
            text = f"version {self.version}: {share} of version {self.base_version} deleted"
        if self.purge is None:
            return text
        gone = ", ".join(str(each.version) for each in self.purge.retired) or "none"
        did = "would go" if self.dry_run else "removed"
        text += f"; older versions {did}: {gone} ({len(self.purge.objects):,} objects, {self.purge.num_bytes:,} bytes)"
        if self.purge.scan is not None:
            text += f"; scan: {sum(each.num_samples for each in self.purge.scan.matches):,} samples left"
        return text


def utc_now() -> str:
    """Return the time of this machine, ISO 8601 in UTC."""
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
