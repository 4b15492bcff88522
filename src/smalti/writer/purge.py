"""The purge of deleted samples: versions that hold them are retired, and what is left is scanned.

1. Every version that can still be opened is searched. Shards that several versions share are read once.
2. Versions that hold chosen samples must have no tags, or the tags are removed or moved, as the caller says.
3. They are retired (`smalti.catalog.retention.retire`): what no kept version needs is removed at once.
4. Copies of them in the cache folder of this machine are removed.
5. Every shard that a version still has is read again, and searched.
"""

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from smalti.cache import inspect
from smalti.cache.sources import detect_cache_folder
from smalti.catalog.header import Header
from smalti.catalog.manifest import stored_bytes
from smalti.catalog.opening import find_newest, headers_before, read_tags
from smalti.catalog.retention.retire import Retirement, RetireOptions, retire
from smalti.catalog.sidecars import columns_of
from smalti.catalog.tags import tag, tags, untag
from smalti.errors import ArgumentError, CatalogError, IndexFileError, SchemaError, StoreNotFound
from smalti.storage import Store
from smalti.writer.deletion_report import (
    OldVersions,
    PurgeReport,
    RemovedObject,
    RetiredVersion,
    ScanMatch,
    ScanReport,
    utc_now,
)
from smalti.writer.search import Selection, VersionContent

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
class _OlderVersion:
    """A version before the newest that can be opened."""

    header: Header
    num_matched: int | None
    """Number of chosen samples in it; None if it lacks a column, or is half removed, so that it cannot be searched."""
    is_expired: bool = False
    """True if a vacuum or purge has declared it removed, and a tag has kept it, or a part of it."""


@dataclass
class Purge:
    """One purge of a set; its searches remember what they found."""

    store: Store
    selection: Selection
    options: PurgeOptions
    on_progress: OnProgress | None = None
    _counts: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def check(self, *, newest_goes: bool, dry_run: bool) -> None:
        """Check that the versions with chosen samples may go, before anything is published.

        `newest_goes` is whether the newest version holds some, so that it becomes one of the older ones.

        Raises:
            CatalogError: a version cannot be searched, or has a tag.
        """
        older = self._older_versions()
        unknown = sorted(version for version, each in older.items() if each.num_matched is None and not each.is_expired)
        if unknown and not self.options.all_versions:
            raise CatalogError(
                f"{self.store.url}: the versions {', '.join(map(str, unknown))} lack a column by which the samples are "
                "chosen, or have other values in it, so that it is unknown whether they hold them; nothing was "
                "deleted. Say `all_versions` to retire every older version",
                versions=unknown,
            )
        going = {*self._to_retire(older), *([self._newest().version] if newest_goes else [])}
        named = self._tags_of(going)
        if named and self.options.tags == "refuse" and not dry_run:
            raise CatalogError(
                f"{self.store.url}: versions that hold the samples have tags: {_listed(named)}; nothing was deleted. "
                "Say what to do with tags: remove them, or move them to the new version",
                tags=named,
            )

    def dry_run(self, num_matched: int) -> PurgeReport:
        """Report what would go; the newest version too, if it holds chosen samples: `num_matched` of them."""
        retired = self._to_retire(self._older_versions())
        done = self._retire(retired, dry_run=True)
        if num_matched:
            newest = self._newest()
            retired |= {newest.version: _OlderVersion(newest, num_matched)}
        settled = dict.fromkeys(self._tags_of(retired), "in the way, unless it is removed or moved")
        return self._report(retired, done, {}, settled, None)

    def run(self) -> PurgeReport:
        """Retire, clear the cache, scan."""
        retired = self._to_retire(self._older_versions())
        hashes = self._hashes(retired)
        settled = self._settle_tags(retired)
        done = self._retire(retired, dry_run=False)
        return self._report(retired, done, hashes, settled, self._scan())

    def _report(
        self,
        retired: Mapping[int, _OlderVersion],
        done: Retirement,
        hashes: Mapping[str, Mapping[str, str]],
        settled: Mapping[str, str],
        scan: ScanReport | None,
    ) -> PurgeReport:
        digests = self._removed_digests()
        kept = None
        if done.old_versions is not None:
            num_bytes = sum(each.num_bytes for each in done.old_versions)
            kept = OldVersions(len(done.old_versions), num_bytes, done.old_versions_removed)
        headers = sorted((each.header.version, each.header, each.num_matched) for each in retired.values())
        return PurgeReport(
            version=done.version,
            write_id=done.write_id,
            retired=tuple(
                RetiredVersion(version, header.digest, header.write_id, header.created, header.rows, num_matched)
                for version, header, num_matched in headers
            ),
            objects=tuple(
                RemovedObject(each.key, each.num_bytes, each.why.value, hashes.get(each.key, {}))
                for each in done.removed
            ),
            num_uploads=None if done.uploads is None else len(done.uploads),
            bucket_versions=kept,
            tags=settled,
            pending=done.pending,
            cache_files=None if scan is None else self._clear_cache(digests),
            cache_digests=digests,
            scan=scan,
        )

    def _newest(self) -> Header:
        newest = find_newest(self.store).header
        if newest is None:
            raise CatalogError(f"{self.store.url}: the versions are gone")
        return newest

    def _older_versions(self) -> dict[int, _OlderVersion]:
        newest, *older = self._openable()
        return {
            header.version: _OlderVersion(header, self._count(header, newest), header.version in newest.expired)
            for header in older
        }

    def _openable(self) -> list[Header]:
        """Return the headers of all versions that can be opened, newest first."""
        newest = self._newest()
        tagged = set(tags(self.store).values())
        gone = set(newest.expired) - tagged
        return [newest, *(header for header in headers_before(self.store, newest) if header.version not in gone)]

    def _count(self, header: Header, newest: Header) -> int | None:
        key = _content_of(header)
        if key not in self._counts:
            try:
                content = VersionContent.read(self.store, header)
                shown = progress_of(self.on_progress, f"searched of version {header.version}")
                self._counts[key] = sum(len(rows) for _, rows in self.selection.older.run(content, shown))
            except SchemaError:
                self._counts[key] = None
            except (IndexFileError, StoreNotFound):
                if header.version not in newest.expired:
                    raise
                return None
        return self._counts[key]

    def _to_retire(self, older: Mapping[int, _OlderVersion]) -> dict[int, _OlderVersion]:
        takes_all = self.options.all_versions
        return {version: each for version, each in older.items() if each.num_matched != 0 or takes_all}

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
            options=RetireOptions(self.options.unsafe_ttl, self.options.bucket_versions),
            dry_run=dry_run,
            on_remove=progress_of(self.on_progress, "removed"),
        )

    def _hashes(self, retired: Mapping[int, _OlderVersion]) -> dict[str, Mapping[str, str]]:
        """Return the hashes of the files of versions that go, by key."""
        found: dict[str, Mapping[str, str]] = {}
        for each in retired.values():
            with suppress(IndexFileError):  # it is half removed
                for group in VersionContent.read(self.store, each.header):
                    found.update({file.basename: file.hashes for shard in group.shards for file in shard.stored_files})
        return found

    def _removed_digests(self) -> tuple[str, ...]:
        """Return the digests of removed versions and of their added columns that no other version has."""
        newest = self._newest()
        kept: set[str] = set()
        gone: set[str] = set()
        for header in (newest, *headers_before(self.store, newest)):
            own = {header.digest, *(entry.digest for entry in columns_of(header.sidecars))}
            (gone if header.version in newest.expired else kept).update(own)
        return tuple(sorted(gone - kept))

    def _clear_cache(self, digests: Collection[str]) -> int | None:
        """Remove the copies of these sets from the cache folder; return the number of files."""
        if self.options.cache is False:
            return None
        folder = detect_cache_folder() if self.options.cache is True else Path(self.options.cache).expanduser()
        return sum(each.files for digest in digests for each in inspect.clear(folder, digest))

    def _scan(self) -> ScanReport:
        """Read every shard that a version still has."""
        search, headers = self.selection.older, self._openable()
        search.forget()
        contents = {_content_of(header): header for header in headers}
        shards: dict[str, tuple[int, int]] = {}
        matches: list[ScanMatch] = []
        for header in contents.values():
            content = VersionContent.read(self.store, header)
            shown = progress_of(self.on_progress, f"scanned of version {header.version}")
            for group, rows in search.run(content, shown):
                matches.append(ScanMatch(header.version, group.main.stored.basename, len(rows)))
            for group in content:
                for row, shard in enumerate(group.shards):
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
