"""The results of copies."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CopiedVersion:
    """A version of the source, and the version of the target with the same content."""

    source: int
    """Number at the source; 0 for a plain MDS set."""
    target: int | None
    """Number at the target; None if it is not there yet, in a dry run."""
    write_id: str
    digest: str
    rows: int
    was_present: bool
    """True if the target had it before the call."""
    is_placeholder: bool = False
    """True if the source has no objects of it any more: at the target its number stands for the next version."""


@dataclass(frozen=True)
class SkippedVersion:
    """A version of the source that was asked for and cannot be copied."""

    source: int
    why: str


@dataclass(frozen=True)
class CopyReport:
    """The result of `copy_version` or `sync`."""

    source: str
    """Address, without secrets."""
    target: str
    dry_run: bool
    versions: tuple[CopiedVersion, ...]
    """The versions that were asked for, oldest first."""
    num_objects: int
    """Number of objects that were copied, or would be."""
    num_bytes: int
    """Their size, bytes."""
    num_present: int
    """Number of objects of new versions that the target had already."""
    bytes_present: int
    tags: Mapping[str, int] = field(default_factory=dict)
    """Tags that were set or moved at the target, or would be: name to version of the source."""
    skipped: tuple[SkippedVersion, ...] = ()
    may_hold_deleted: tuple[int, ...] = ()
    """Versions of the target from before a deletion of samples that its newest version records: they may still hold
    the samples. Call `delete` with `purge` and the same condition at the target, or `vacuum`."""

    @property
    def is_in_sync(self) -> bool:
        """True if there was nothing to copy, publish or tag."""
        return all(each.was_present for each in self.versions) and not self.num_objects and not self.tags

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "is_in_sync": self.is_in_sync}

    def summary(self) -> str:
        """Return a one-line summary."""
        did = "would be copied" if self.dry_run else "copied"
        new = sum(not each.was_present for each in self.versions)
        if self.is_in_sync:
            return f"nothing to copy: {len(self.versions):,} versions are there"
        there = f", {self.num_present:,} objects were there" if self.num_present else ""
        tagged = f", {len(self.tags):,} tags" if self.tags else ""
        what = f"{new:,} versions, {self.num_objects:,} objects, {self.num_bytes:,} bytes{tagged}"
        return f"{what} {did}{there}"
