"""The purge of deleted samples: versions that hold them are retired, and what is left is scanned.

1. Every version that can still be opened is searched. Shards that several versions share are read once.
2. Versions that hold chosen samples must have no tags, or the tags are removed or moved, as the caller says.
3. They are retired (`smalti.catalog.retention.vacuum`): what no kept version needs is removed at once.
4. Copies of them in the cache folder of this machine are removed.
5. Every shard that a version still has is read again, and searched.

Also here: the report of a deletion: what was deleted, what was removed of older versions, and what a scan found.
"""

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from smalti.cache import inspect
from smalti.cache.sources import detect_cache_folder
from smalti.catalog.manifest import Header, stored_bytes
from smalti.catalog.opening import find_newest, headers_before, read_tags
from smalti.catalog.retention.vacuum import PendingWrite, Retirement, retire
from smalti.catalog.sidecars import columns_of
from smalti.catalog.tags import tag, tags, untag
from smalti.errors import ArgumentError, CatalogError, IndexFileError, SchemaError, StoreNotFound
from smalti.storage import Store
from smalti.writer.search import SampleSearch, VersionContent

OnShard = Callable[[int, int], None]
OnProgress = Callable[[str, int, int], None]
"""Called with what is being done (such as "searched", "rewritten", "removed", "scanned"), how many, and of how many."""


@dataclass(frozen=True)
class PurgeOptions:
    """Options of a purge, beside the retirement of versions that hold chosen samples.

    Examples:
        >>> report = delete("s3://bucket/users", [("user_id", "==", 3)], purge=PurgeOptions(tags="move"))
        >>> [version.version for version in report.purge.retired]
        [1, 2]
    """

    tags: Literal["refuse", "remove", "move"] = "refuse"
    """The treatment of tags of versions that have to go: refuse the call, remove them, or move them to the newest."""
    all_versions: bool = False
    """Retire every older version: also those without a chosen sample, and those that cannot be searched because they
    lack a column."""
    unsafe_ttl: bool = False
    """Remove objects of unpublished writes at once, not only after seven days; safe only if no writer is running."""
    bucket_versions: bool = False
    """Remove what a versioned bucket keeps of the removed objects."""
    cache: Path | str | bool = True
    """The cache folder whose copies are removed too: True for this user's own, False for none."""

    def __post_init__(self) -> None:
        if self.tags not in ("refuse", "remove", "move"):
            raise ArgumentError(f"`tags` is {self.tags!r}, expected refuse, remove or move")


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


_Retiring = dict[int, tuple[Header, int | None]]
"""Versions that have to go by number, with the number of chosen samples in each; None if it lacks a column, or is half
removed, so that it cannot be searched."""


@dataclass
class Purge:
    """One purge of a set; its searches remember what they found."""

    store: Store
    search: SampleSearch
    options: PurgeOptions
    on_progress: OnProgress | None = None
    _counts: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def check(self, *, newest_goes: bool, dry_run: bool) -> None:
        """Check that the versions with chosen samples may go, before anything is published.

        `newest_goes` is whether the newest version holds some, so that it becomes one of the older ones.

        Raises:
            CatalogError: a version cannot be searched, or has a tag.
        """
        newest, going = self._newest(), self._to_retire()
        unknown = sorted(
            version for version, (_, count) in going.items() if count is None and version not in newest.expired
        )
        if unknown and not self.options.all_versions:
            raise CatalogError(
                f"{self.store.url}: the versions {', '.join(map(str, unknown))} lack a column by which the samples are "
                "chosen, or have other values in it, so that it is unknown whether they hold them; nothing was "
                "deleted. Say `all_versions` to retire every older version",
                versions=unknown,
            )
        named = self._tags_of({*going, newest.version} if newest_goes else going)
        if named and self.options.tags == "refuse" and not dry_run:
            raise CatalogError(
                f"{self.store.url}: versions that hold the samples have tags: {_listed(named)}; nothing was deleted. "
                "Say what to do with tags: remove them, or move them to the new version",
                tags=named,
            )

    def dry_run(self, num_matched: int) -> PurgeReport:
        """Report what would go; the newest version too, if it holds chosen samples: `num_matched` of them."""
        retired = self._to_retire()
        done = self._retire(retired, dry_run=True)
        if num_matched:
            newest = self._newest()
            retired[newest.version] = newest, num_matched
        settled = dict.fromkeys(self._tags_of(retired), "in the way, unless it is removed or moved")
        return self._report(retired, done, {}, settled, None)

    def run(self) -> PurgeReport:
        """Retire, clear the cache, scan."""
        retired = self._to_retire()
        hashes: dict[str, Mapping[str, str]] = {}
        for header, _ in retired.values():
            with suppress(IndexFileError):  # it is half removed
                for group in VersionContent.read(self.store, header):
                    hashes.update({file.basename: file.hashes for shard in group for file in shard.stored_files})
        settled = self._settle_tags(retired)
        done = self._retire(retired, dry_run=False)
        return self._report(retired, done, hashes, settled, self._scan())

    def _report(
        self,
        retired: _Retiring,
        done: Retirement,
        hashes: Mapping[str, Mapping[str, str]],
        settled: Mapping[str, str],
        scan: ScanReport | None,
    ) -> PurgeReport:
        newest = self._newest()
        digests: dict[bool, set[str]] = {True: set(), False: set()}  # of versions and added columns, by: is it removed
        for header in (newest, *headers_before(self.store, newest)):
            own = {header.digest, *(entry.digest for entry in columns_of(header.sidecars))}
            digests[header.version in newest.expired] |= own
        removed_digests = tuple(sorted(digests[True] - digests[False]))
        cache_files, cache = None, self.options.cache
        if scan is not None and cache is not False:
            folder = detect_cache_folder() if cache is True else Path(cache).expanduser()
            cache_files = sum(each.files for digest in removed_digests for each in inspect.clear(folder, digest))
        kept = None
        if done.old_versions is not None:
            num_bytes = sum(each.num_bytes for each in done.old_versions)
            kept = OldVersions(len(done.old_versions), num_bytes, done.old_versions_removed)
        return PurgeReport(
            version=done.version,
            write_id=done.write_id,
            retired=tuple(
                RetiredVersion(version, header.digest, header.write_id, header.created, header.rows, num_matched)
                for version, (header, num_matched) in sorted(retired.items())
            ),
            objects=tuple(
                RemovedObject(each.key, each.num_bytes, each.why.value, hashes.get(each.key, {}))
                for each in done.removed
            ),
            num_uploads=None if done.uploads is None else len(done.uploads),
            bucket_versions=kept,
            tags=settled,
            pending=done.pending,
            cache_files=cache_files,
            cache_digests=removed_digests,
            scan=scan,
        )

    def _newest(self) -> Header:
        newest = find_newest(self.store).header
        if newest is None:
            raise CatalogError(f"{self.store.url}: the versions are gone")
        return newest

    def _openable(self) -> list[Header]:
        """Return the headers of all versions that can be opened, newest first."""
        newest = self._newest()
        gone = set(newest.expired) - set(tags(self.store).values())
        return [newest, *(header for header in headers_before(self.store, newest) if header.version not in gone)]

    def _to_retire(self) -> _Retiring:
        """Return the versions before the newest that have to go."""
        newest, *older = self._openable()
        going: _Retiring = {}
        for header in older:
            num_matched = self._count(header, newest)
            if num_matched != 0 or self.options.all_versions:
                going[header.version] = header, num_matched
        return going

    def _count(self, header: Header, newest: Header) -> int | None:
        key = _content_of(header)
        if key not in self._counts:
            try:
                content = VersionContent.read(self.store, header)
                shown = progress_of(self.on_progress, f"searched of version {header.version}")
                self._counts[key] = sum(len(rows) for _, rows in self.search.run(content, shown))
            except SchemaError:
                self._counts[key] = None
            except (IndexFileError, StoreNotFound):
                if header.version not in newest.expired:
                    raise
                return None
        return self._counts[key]

    def _tags_of(self, versions: Collection[int]) -> dict[str, int]:
        return {name: version for name, version in tags(self.store).items() if version in versions}

    def _settle_tags(self, retired: Collection[int]) -> dict[str, str]:
        """Remove or move the tags of versions that go; return what was done with each."""
        named = self._tags_of(retired)
        if named and self.options.tags == "refuse":
            raise CatalogError(
                f"{self.store.url}: tags were set meanwhile on versions that hold the samples: {_listed(named)}; call "
                "again, and say what to do with tags",
                tags=named,
            )
        done = {}
        for name, found in read_tags(self.store).items() if named else ():
            if name not in named:
                continue
            if self.options.tags == "move":
                done[name] = f"moved to version {tag(self.store, name, move=found, metadata=found.metadata or None)}"
            else:
                untag(self.store, name)
                done[name] = "removed"
        return done

    def _retire(self, retired: Collection[int], *, dry_run: bool) -> Retirement:
        return retire(
            self.store,
            retired,
            unsafe_ttl=self.options.unsafe_ttl,
            bucket_versions=self.options.bucket_versions,
            dry_run=dry_run,
            on_remove=progress_of(self.on_progress, "removed"),
        )

    def _scan(self) -> ScanReport:
        """Read every shard that a version still has."""
        headers = self._openable()
        self.search.forget()
        contents = {_content_of(header): header for header in headers}
        shards: dict[str, tuple[int, int]] = {}
        matches: list[ScanMatch] = []
        for header in contents.values():
            content = VersionContent.read(self.store, header)
            shown = progress_of(self.on_progress, f"scanned of version {header.version}")
            for group, rows in self.search.run(content, shown):
                matches.append(ScanMatch(header.version, group[0].stored.basename, len(rows)))
            for group in content:
                for row, shard in enumerate(group):
                    shards[shard.stored.basename] = (0 if row else shard.samples, stored_bytes(shard))
        return ScanReport(
            versions=tuple(sorted(header.version for header in headers)),
            num_shards=len(shards),
            num_samples=sum(samples for samples, _ in shards.values()),
            num_bytes=sum(num_bytes for _, num_bytes in shards.values()),
            matches=tuple(matches),
            finished=utc_now(),
        )


def progress_of(on_progress: OnProgress | None, what: str) -> OnShard | None:
    """Return the callback for one kind of work; None if there is no caller's."""
    return None if on_progress is None else lambda done, total: on_progress(what, done, total)


def _content_of(header: Header) -> tuple[str, str]:
    """Return a key that is equal for versions with the same samples."""
    return header.table_key, json.dumps(list(header.sidecars), sort_keys=True)


def _listed(named: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r} of version {version}" for name, version in named.items())
