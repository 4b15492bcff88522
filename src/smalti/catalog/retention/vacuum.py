"""Removing what no version needs any more, without ever touching what one does.

1. What time it is, and how old an object is, the store says: an object put now is listed with everything else.
2. A version is kept if it is the newest, has a tag, or was the newest less than `older_than` ago.
3. What may go is reasoned out in `sweeping`; the least doubt keeps an object.
4. Before anything is removed, a version with the content of the newest one says what will be (`fenced`, `expired`).
   Whoever publishes meanwhile loses against it and looks again, and nothing that it names can be named by a later
   version. Tags are looked at once more after it.
5. A vacuum that dies at any point leaves every kept version whole; the next one goes on. Two at once do no harm.
"""

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from smalti.catalog.additions.columns import columns_of, live_keys
from smalti.catalog.header import FOLDER, INDEX, Header, header_key, read_manifest
from smalti.catalog.publishing.check_stored import stored_sizes_of
from smalti.catalog.publishing.commit import SYSTEM, Clock
from smalti.catalog.publishing.publish import commit_same
from smalti.catalog.reading import find_newest, headers_before, no_shard_set
from smalti.catalog.retention.listing import Listing, Names
from smalti.catalog.retention.markers import MARKERS
from smalti.catalog.retention.sweep import (
    Doomed,
    Known,
    Sweep,
    Why,
    checked_limit,
    old_uploads,
    probe_in,
    sweep,
    told_time,
    writes_of,
)
from smalti.catalog.tags import tags
from smalti.errors import CatalogError, CommitConflict, StoreError, StoreNotFound
from smalti.storage import ObjectInfo, Place, Store, UnfinishedUpload, open_store

_TURNS = 10
_TABLE = ".arrow"


@dataclass(frozen=True)
class VacuumReport:
    """What a vacuum removed, or would remove."""

    dry_run: bool
    version: int | None
    """The version that says what was removed; None where none had to say it."""
    expired: tuple[int, ...]
    """Versions that cannot be opened afterwards, of this vacuum."""
    removed: tuple[Doomed, ...]
    """Objects, in the order of their removal."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """Why objects stay, and how many do."""
    uploads: tuple[UnfinishedUpload, ...] | None = ()
    """Uploads and temporary files that were begun as long ago and never ended: removed too; None where the store does
    not list them."""

    @property
    def num_bytes(self) -> int:
        """Bytes of what was, or would be, removed; of unfinished uploads those that the store tells."""
        return sum(each.num_bytes for each in self.removed) + sum(each.num_bytes or 0 for each in self.uploads or ())

    def summary(self) -> str:
        """One line for people."""
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
    clock: Clock = SYSTEM,
) -> VacuumReport:
    """Remove versions that were superseded long ago, and what dead writers left; by default only say what would go.

    Never removed: what the newest version, a tagged one or a young one needs, what is younger than `older_than`, what
    a writer that may still be at work has put, and what Smalti did not write. Headers stay: the history remains whole.

    Args:
        place: The root of the set: a URL, folder or store. A small object is put there and removed, to read the
            store's clock.
        older_than: Seconds, or text such as "7d", "36h".
        dry_run: Only report.
        unsafe_ttl: Allow less than seven days: what a slow writer or reader still needs may then go.
        on_remove: Called with (done, total) after each removal.
        clock: For pauses; no age is measured with it.

    Raises:
        StoreNotFound: there is no set.
        CatalogError: the set has no versions, or none yet; the store tells no times; or `older_than` cannot be used.
        IndexFileError: a version that is kept cannot be read, so that it cannot be told what it needs.
        CommitConflict: others published all the time; nothing was removed.
        CommitUnknown: the store stopped answering; nothing was removed.
        StoreError: the store failed; call again, and it goes on.
    """
    store, limit = open_store(place), checked_limit(older_than, whose="writer or reader", unsafe_ttl=unsafe_ttl)
    _check_set(store)
    listed = _Listed(store)
    for turn in range(_TURNS):
        state = _State.of(store, listed, listed.now - limit)
        unfinished = _unfinished(store)
        found = state.sweep(state.kept_versions, unfinished or ())
        uploads = None if unfinished is None else old_uploads(unfinished, state.writes, state.cutoff)
        if dry_run:
            return _report(state, found, uploads, dry_run=True)
        _abort(store, uploads)
        if not found.doomed:
            return _report(state, found, uploads, dry_run=False)
        if not state.expired and not found.fences:  # what goes could not be named again anyway
            _remove(store, found.doomed, on_remove)
            return _report(state, found, uploads, dry_run=False)
        committed = commit_same(
            store,
            state.newest,
            f"vacuum-{secrets.token_hex(8)}",
            fenced=state.fences(found),
            expired=state.expired,
            clock=clock,
        )
        if committed is not None:
            tagged = set(tags(store).values()) & set(state.expired)  # tagged after we looked
            found = state.sweep({*state.kept_versions, *tagged}, unfinished or ()) if tagged else found
            _remove(store, found.doomed, on_remove)
            return _report(state, found, uploads, dry_run=False, version=committed.version)
        clock.pause(0.05 * (turn + 1))
    raise CommitConflict(f"{store.url}: others published {_TURNS} times meanwhile; nothing was removed. Call again")


def _check_set(store: Store) -> None:
    newest = find_newest(store)
    if newest.header is not None:
        return
    if newest.index is None:
        writers = sum(1 for _ in store.list(MARKERS))
        if writers:
            raise CatalogError(
                f"{store.url} has no version yet, so that nothing keeps a writer from publishing what would be "
                f"removed; {writers} unfinished writers have left files. Publish a version and call again, or remove "
                "the folder if no writer is at work"
            )
        raise no_shard_set(store)
    raise CatalogError(f"{store.url} is a plain MDS set without versions; nothing there is Smalti's to remove")


class _Listed:
    """Everything that is there, and the time by the store's own clock; a million objects take some 25 MB."""

    def __init__(self, store: Store) -> None:
        self.times: dict[str, float | None] = {}
        """Of the catalog's own objects and of tables."""
        with probe_in(store, FOLDER) as probe:
            self.objects = Listing(self._watched(store.list(), probe))
        self.now = told_time(store, self.times.pop(probe, None))

    def _watched(self, found: Iterator[ObjectInfo], probe: str) -> Iterator[ObjectInfo]:
        for info in found:
            if info.key.startswith(f"{FOLDER}/") or info.key.endswith(_TABLE):
                self.times[info.key] = info.changed
            if info.key != probe:
                yield info


@dataclass(frozen=True)
class _State:
    """What there is: objects that were listed first, and versions and tags that were read after that."""

    store: Store
    listed: _Listed
    cutoff: float
    headers: Mapping[int, Header]
    kept_versions: frozenset[int]
    expired: tuple[int, ...]
    """Versions that go now, and were not gone before."""

    @classmethod
    def of(cls, store: Store, listed: _Listed, cutoff: float) -> "_State":
        newest = find_newest(store).header
        if newest is None:
            raise StoreNotFound(f"{store.url}: the versions are gone", key=INDEX)
        # All of them before the tags: a version that was tagged since its header was read is seen to have its tag.
        headers = {header.version: header for header in (newest, *headers_before(store, newest))}
        kept = {newest.version, *tags(store).values()} & headers.keys()
        for version in headers.keys() - set(newest.expired):
            superseded = listed.times.get(header_key(version + 1))
            if superseded is None or superseded >= cutoff:  # None: published since the listing
                kept.add(version)
        gone = tuple(sorted(headers.keys() - kept - set(newest.expired)))
        return cls(store, listed, cutoff, headers, frozenset(kept), gone)

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
        """Those of this vacuum, and those of earlier ones that may still matter."""
        begun: dict[str, int] = {}
        for version in sorted(self.headers):
            for name in self.headers[version].fenced:
                begun.setdefault(name, version)
        recent = {name for name, version in begun.items() if self._is_recent(version)}
        carried = {name for name in self.newest.fenced if name in recent or name in found.shown}
        return tuple(sorted({*carried, *found.fences}))

    def _is_recent(self, version: int) -> bool:
        time = self.listed.times.get(header_key(version))
        return time is None or time >= self.cutoff

    @staticmethod
    def _content(header: Header) -> tuple[str, str]:
        """Equal for versions that need the same objects."""
        return header.table_key, json.dumps(list(header.sidecars), sort_keys=True)

    def _needed(self, header: Header) -> Iterator[Sequence[str]]:
        """Keys of everything that a version needs, some thousand at a time."""
        tables = (header.table_key, *(entry.table_key for entry in columns_of(header.sidecars)))
        if header.version in self.newest.expired and not all(key in self.listed.times for key in tables):
            return  # tagged just when it went
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
    except StoreError:  # not everything that speaks S3 lists them, and not to everybody; the report says so
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
