"""Vacuum: remove objects that no version needs any more, and never one that a kept version needs.

1. Times are the store's own: a probe object that is put now is listed together with all other objects.
2. A version is kept if it is the newest, has a tag, or was the newest less than `older_than` ago.
3. The rules for versions and objects are in `sweep`; an object stays if there is any doubt.
4. Before anything is removed, a version with the content of the newest one is published that lists what will be removed
   (`fenced`, `expired`). A concurrent publisher loses the race against it and starts again, and no later version can
   reference anything on the list. The tags are read once more after it.
5. A vacuum that dies at any point leaves every kept version complete, and the next one continues. Two concurrent ones
   do no harm.
"""

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from smalti.catalog.additions.columns import columns_of, live_keys
from smalti.catalog.header import FOLDER, INDEX, Header, header_key, read_manifest
from smalti.catalog.publishing.check_stored import stored_sizes_of
from smalti.catalog.publishing.commit import SYSTEM, PublishingClock
from smalti.catalog.publishing.publish import announce_removal
from smalti.catalog.reading import find_newest, headers_before, no_shard_set
from smalti.catalog.retention.age import checked_limit, probe_in, probe_timestamp
from smalti.catalog.retention.listing import Listing, Names
from smalti.catalog.retention.markers import MARKERS
from smalti.catalog.retention.sweep import (
    Doomed,
    Known,
    Sweep,
    VersionCase,
    Why,
    keeps_version,
    old_uploads,
    sweep,
    writes_of,
)
from smalti.catalog.tags import tags
from smalti.errors import CatalogError, CommitConflict, StoreError, StoreNotFound
from smalti.storage import ObjectInfo, Place, Store, UnfinishedUpload, open_store

_PUBLISH_ATTEMPTS = 10  # when others publish at the same time
_TABLE_SUFFIX = ".arrow"


@dataclass(frozen=True)
class VacuumReport:
    """The objects that a vacuum removed, or would remove."""

    dry_run: bool
    version: int | None
    """The version that was published with the list of removals; None if none was needed."""
    expired: tuple[int, ...]
    """Versions that cannot be opened any more after this vacuum."""
    removed: tuple[Doomed, ...]
    """The objects, in the order of their removal."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """Number of objects that stay, by reason."""
    uploads: tuple[UnfinishedUpload, ...] | None = ()
    """Unfinished uploads and temporary files that were begun before the limit: removed too; None if the store does not
    list them."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the removed objects, and of unfinished uploads as far as the store reports them."""
        return sum(each.num_bytes for each in self.removed) + sum(each.num_bytes or 0 for each in self.uploads or ())

    def summary(self) -> str:
        """Return a one-line summary."""
        did = "would be removed" if self.dry_run else "removed"
        unfinished = f", {len(self.uploads):,} unfinished uploads" if self.uploads else ""
        versions = ", ".join(map(str, self.expired)) or "none"
        what = f"{len(self.removed):,} objects{unfinished}, {self.num_bytes:,} bytes"
        return f"{what} {did}; versions that go: {versions}"


def vacuum(
    place: Place,
    *,
    older_than: str | float = "7d",
    dry_run: bool = True,
    unsafe_ttl: bool = False,
    on_remove: Callable[[int, int], None] | None = None,
    clock: PublishingClock = SYSTEM,
) -> VacuumReport:
    """Remove versions that were superseded long ago, and leftovers of dead writers; by default only report them.

    Never removed are objects that the newest version, a tagged or a recent one needs, objects younger than
    `older_than`, objects of a writer that may still be running, and objects that Smalti did not write. Headers stay, so
    that the history remains complete.

    Args:
        place: The root of the set: a URL, folder or store. A small object is put there and removed, to read the
            store's clock.
        older_than: Seconds, or text such as "7d", "36h".
        dry_run: Only report.
        unsafe_ttl: Allow less than seven days; objects that a slow writer or reader still needs may be removed then.
        on_remove: Called with (done, total) after each removal.
        clock: For pauses; no age is measured with it.

    Raises:
        StoreNotFound: there is no set.
        CatalogError: the set has no versions, or none yet; the store reports no times; or `older_than` is invalid.
        IndexFileError: a version that is kept cannot be read, so that the objects that it needs are unknown.
        CommitConflict: other writers kept publishing; nothing was removed.
        CommitUnknown: the store stopped answering; nothing was removed.
        StoreError: the store failed; calling again continues.
    """
    store, limit = open_store(place), checked_limit(older_than, whose="writer or reader", unsafe_ttl=unsafe_ttl)
    _check_set(store)
    listed = _StoreListing(store)
    for attempt in range(_PUBLISH_ATTEMPTS):
        state = _State.of(store, listed, listed.now - limit)
        unfinished = _unfinished(store)
        found = state.sweep(state.kept_versions, unfinished or ())
        uploads = None if unfinished is None else old_uploads(unfinished, state.writes, state.cutoff)
        if dry_run:
            return _report(state, found, uploads, dry_run=True)
        _abort(store, uploads)
        if not found.doomed:
            return _report(state, found, uploads, dry_run=False)
        if not state.expired and not found.fences:  # no version could reference the removed objects again
            _remove(store, found.doomed, on_remove)
            return _report(state, found, uploads, dry_run=False)
        committed = announce_removal(
            store,
            state.newest,
            f"vacuum-{secrets.token_hex(8)}",
            fenced=state.fences(found),
            expired=state.expired,
            clock=clock,
        )
        if committed is not None:
            tagged = set(tags(store).values()) & set(state.expired)  # tagged since the first read
            found = state.sweep({*state.kept_versions, *tagged}, unfinished or ()) if tagged else found
            _remove(store, found.doomed, on_remove)
            return _report(state, found, uploads, dry_run=False, version=committed.version)
        clock.pause(0.05 * (attempt + 1))
    raise CommitConflict(
        f"{store.url}: others published {_PUBLISH_ATTEMPTS} times during the call; nothing was removed. Call again"
    )


def _check_set(store: Store) -> None:
    newest = find_newest(store)
    if newest.header is not None:
        return
    if newest.index is None:
        writers = sum(1 for _ in store.list(MARKERS))
        if writers:
            raise CatalogError(
                f"{store.url} has no version yet, so that a writer could still publish what would be "
                f"removed; {writers} unfinished writers have left files. Publish a version and call again, or remove "
                "the folder if no writer is at work"
            )
        raise no_shard_set(store)
    raise CatalogError(f"{store.url} is a plain MDS set without versions; nothing there is Smalti's to remove")


class _StoreListing:
    """All objects of the store, and the current time by the store's clock; a million objects take some 25 MB."""

    def __init__(self, store: Store) -> None:
        self.times: dict[str, float | None] = {}
        """Times of the objects below `_versions/` and of tables, by key."""
        with probe_in(store, FOLDER) as probe:
            self.objects = Listing(self._recorded(store.list(), probe))
        self.now = probe_timestamp(store, self.times.pop(probe, None))

    def _recorded(self, found: Iterator[ObjectInfo], probe: str) -> Iterator[ObjectInfo]:
        """Record the times of the catalog's objects, and pass all objects on but the probe."""
        for info in found:
            if info.key.startswith(f"{FOLDER}/") or info.key.endswith(_TABLE_SUFFIX):
                self.times[info.key] = info.changed
            if info.key != probe:
                yield info


@dataclass(frozen=True)
class _State:
    """The state of the set: its objects, listed first, and its versions and tags, read after that."""

    store: Store
    listed: _StoreListing
    cutoff: float
    headers: Mapping[int, Header]
    kept_versions: frozenset[int]
    expired: tuple[int, ...]
    """Versions that this vacuum removes."""

    @classmethod
    def of(cls, store: Store, listed: _StoreListing, cutoff: float) -> "_State":
        newest = find_newest(store).header
        if newest is None:
            raise StoreNotFound(f"{store.url}: the versions are gone", key=INDEX)
        # Headers are read before the tags, so that a tag made in between is seen.
        headers = {header.version: header for header in (newest, *headers_before(store, newest))}
        tagged, expired = set(tags(store).values()), set(newest.expired)
        cases = (
            VersionCase(
                header,
                is_newest=version == newest.version,
                is_tagged=version in tagged,
                is_expired=version in expired,
                superseded=listed.times.get(header_key(version + 1)),
                cutoff=cutoff,
            )
            for version, header in headers.items()
        )
        kept = frozenset(case.header.version for case in cases if keeps_version(case))
        removed = tuple(sorted(headers.keys() - kept - expired))
        return cls(store, listed, cutoff, headers, kept, removed)

    @property
    def newest(self) -> Header:
        return self.headers[max(self.headers)]

    @property
    def published(self) -> set[str]:
        return {*self.newest.writes, *(header.write_id for header in self.headers.values())}

    @property
    def writes(self) -> set[str]:
        return writes_of(self.listed.objects, self.published)

    def sweep(self, kept_versions: Collection[int], unfinished: Iterable[UnfinishedUpload]) -> Sweep:
        needed = {self._content(self.headers[version]): version for version in sorted(kept_versions)}
        live = Names(chain.from_iterable(self._needed(self.headers[version]) for version in needed.values()))
        expired = {header.write_id for version, header in self.headers.items() if version not in kept_versions}
        known = Known(self.published, live, expired, self.newest.writes.keys())
        return sweep(self.listed.objects, known, self.cutoff, unfinished)

    def fences(self, found: Sweep) -> tuple[str, ...]:
        """Return the fences of this vacuum, and those of earlier ones that are recent or still have objects."""
        first_fenced: dict[str, int] = {}
        for version in sorted(self.headers):
            for name in self.headers[version].fenced:
                first_fenced.setdefault(name, version)
        recent = {name for name, version in first_fenced.items() if self._is_recent(version)}
        carried = {name for name in self.newest.fenced if name in recent or name in found.shown}
        return tuple(sorted({*carried, *found.fences}))

    def _is_recent(self, version: int) -> bool:
        time = self.listed.times.get(header_key(version))
        return time is None or time >= self.cutoff

    @staticmethod
    def _content(header: Header) -> tuple[str, str]:
        """Return a key that is equal for versions that need the same objects."""
        return header.table_key, json.dumps(list(header.sidecars), sort_keys=True)

    def _needed(self, header: Header) -> Iterator[Sequence[str]]:
        """Yield the keys of all objects that a version needs, some thousands at a time."""
        tables = (header.table_key, *(entry.table_key for entry in columns_of(header.sidecars)))
        if header.version in self.newest.expired and not all(key in self.listed.times for key in tables):
            return  # it was tagged while an earlier vacuum removed it
        yield (header.table_key,)
        for part in stored_sizes_of(read_manifest(self.store, header, recount=False).shards):
            yield [name for name, _ in part]
        yield list(live_keys(self.store, header.sidecars))


def _remove(store: Store, doomed: Sequence[Doomed], on_remove: Callable[[int, int], None] | None) -> None:
    for done, each in enumerate(doomed, start=1):
        store.delete(each.key)
        if on_remove is not None:
            on_remove(done, len(doomed))


def _unfinished(store: Store) -> list[UnfinishedUpload] | None:
    try:
        return list(store.unfinished_uploads())
    except StoreError:  # not every S3-compatible store lists them, nor for all credentials
        return None


def _abort(store: Store, uploads: Sequence[UnfinishedUpload] | None) -> None:
    for upload in uploads or ():
        store.abort_upload(upload)


def _report(
    state: _State,
    found: Sweep,
    uploads: tuple[UnfinishedUpload, ...] | None,
    *,
    dry_run: bool,
    version: int | None = None,
) -> VacuumReport:
    return VacuumReport(
        dry_run=dry_run,
        version=version,
        expired=state.expired if version is not None or dry_run else (),
        removed=found.doomed,
        uploads=uploads,
        kept={why.value: found.kept[why] for why in Why if why in found.kept},
    )
