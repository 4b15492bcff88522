"""Vacuum: remove objects that no version needs any more, and never one that a kept version needs.

1. Times are the store's own: a probe object that is put now is listed together with all other objects.
2. A version is kept if it is the newest, has a tag, or was the newest less than `older_than` ago.
3. The rules for versions and objects are in `sweep`; an object stays if there is any doubt.
4. Before anything is removed, a version with the content of the newest one is published that lists what will be removed
   (`fenced`, `expired`). A concurrent publisher loses the race against it and starts again, and no later version can
   reference anything on the list. The tags are read once more after it.
5. A vacuum that dies at any point leaves every kept version complete, and the next one continues. Two concurrent ones
   do no harm.

Retirement (`retire`): remove chosen versions at once, and all objects that no kept version needs, whatever their age. A
vacuum waits until no process can be reading a version any more; a purge of deleted samples cannot wait. What it removes
and what it leaves:

1. Every object of a published write that no kept version needs goes, also a young one. A reader that is still in a
   retired version fails at the next shard that it has not yet fetched; it never gets wrong data.
2. Objects of a write that was not published may belong to a running writer: they go when they are as old as for a
   vacuum (or at once, with `unsafe_ttl`), and are reported as pending until then.
3. As in a vacuum, a version that lists what goes is published first, so that no later version can name it again.
4. Old contents that a versioned bucket keeps are counted, and removed with `bucket_versions`.
5. Killed at any point, every kept version is whole, and the next call continues.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from smalti.catalog.commit import SYSTEM, PublishingClock
from smalti.catalog.manifest import FOLDER, INDEX, Header, header_key, read_manifest, segment_keys
from smalti.catalog.opening import find_newest, headers_before, no_shard_set
from smalti.catalog.publishing import announce_removal
from smalti.catalog.retention.markers import MARKERS
from smalti.catalog.retention.sweep import (
    Doomed,
    Names,
    SetFacts,
    Sweep,
    Why,
    is_condemned,
    is_ours,
    keeps_version,
    listed_objects,
    old_uploads,
    owner_of,
    sweep,
    table_digest,
    writes_of,
)
from smalti.catalog.sidecars import columns_of, erased_keys, live_keys, purged_erasures
from smalti.catalog.table.segments import tables_in
from smalti.catalog.table.shard_table import block_files_of, stored_sizes_of
from smalti.catalog.tags import tags
from smalti.errors import CatalogError, CommitConflict, IndexFileError, StoreError, StoreNotFound
from smalti.storage import ObjectInfo, OldVersion, Place, Store, UnfinishedUpload, open_store
from smalti.storage.store import delete_own

LEAST_SECONDS = 7 * 86400.0
"""Writers and readers may run for days, so a smaller limit needs `unsafe_ttl`."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
PUBLISH_ATTEMPTS = 10  # when others publish at the same time
_TABLE_SUFFIX = ".arrow"
_SOON = 1.0  # second: with `unsafe_ttl`, what was put in the second of the listing is old too


@dataclass(frozen=True)
class VacuumReport:
    """The objects that a vacuum removed, or would remove."""

    dry_run: bool
    version: int | None
    """The version that was published with the list of removals; None if none was needed."""
    expired: tuple[int, ...]
    """Versions that cannot be opened any more after this vacuum."""
    removed: Sequence[Doomed]
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

    Examples:
        >>> vacuum("s3://bucket/users", older_than="30d").expired  # what it would remove
        ()
        >>> report = vacuum("s3://bucket/users", older_than="30d", dry_run=False)
    """
    store, limit = open_store(place), checked_limit(older_than, whose="writer or reader", unsafe_ttl=unsafe_ttl)
    check_set(store)
    listed = StoreListing(store)
    for attempt in range(PUBLISH_ATTEMPTS):
        state = SetState.of(store, listed, listed.now - limit)
        unfinished = list_uploads(store)
        found = state.sweep(state.kept_versions, unfinished or ())
        uploads = None if unfinished is None else old_uploads(unfinished, state.writes, state.cutoff)
        for upload in () if dry_run else uploads or ():
            store.abort_upload(upload)
        committed = None
        # Without expired versions and fences, no version could reference the removed objects again.
        if found.doomed and not dry_run and (state.expired or found.fences):
            committed = announce_removal(
                store,
                state.newest,
                f"vacuum-{secrets.token_hex(8)}",
                fenced=state.fences(found),
                expired=state.expired,
                clock=clock,
            )
            if committed is None:
                clock.pause(0.05 * (attempt + 1))
                continue
            tagged = set(tags(store).values()) & set(state.expired)  # tagged since the first read
            found = state.sweep({*state.kept_versions, *tagged}, unfinished or ()) if tagged else found
        if not dry_run:
            remove_objects(store, found.doomed, on_remove)
        return VacuumReport(
            dry_run=dry_run,
            version=committed.version if committed else None,
            expired=state.expired if committed or dry_run else (),
            removed=found.doomed,
            uploads=uploads,
            kept={why.value: found.kept[why] for why in Why if why in found.kept},
        )
    raise CommitConflict(
        f"{store.url}: others published {PUBLISH_ATTEMPTS} times during the call; nothing was removed. Call again"
    )


def check_set(store: Store) -> None:
    """Check that there is a set with versions.

    Raises:
        StoreNotFound, CatalogError: there is none.
    """
    newest = find_newest(store)
    if newest.header is not None:
        return
    if newest.index is None:
        writers = sum(1 for _ in store.list(MARKERS))
        if writers:
            raise CatalogError(
                f"{store.url} has no version yet, so that a writer could still publish what would be "
                f"removed; {writers} unfinished writers have left files. Publish a version and call again, or remove "
                "the folder if no writer is running"
            )
        raise no_shard_set(store)
    raise CatalogError(f"{store.url} is a plain MDS set without versions; nothing there is Smalti's to remove")


class StoreListing:
    """All objects of the store, and the current time by the store's clock; a million objects take some 25 MB."""

    def __init__(self, store: Store) -> None:
        """List the objects, with a small one among them that is put for it: its time is the current one.

        Raises:
            CatalogError: the store does not report times.
        """
        self.times: dict[str, float | None] = {}
        """Times of the objects below `_versions/` and of tables, by key."""
        probe = f"{FOLDER}/probe-{secrets.token_hex(8)}"
        store.put(probe, b"what time is it?")
        try:
            self.objects = listed_objects(self._recorded(store.list(), probe))
        finally:
            with suppress(StoreError):  # a later vacuum removes it
                store.delete(probe)
        now = self.times.pop(probe, None)
        if now is None:
            raise CatalogError(
                f"{store.url}: this store does not report when its objects were put, so that no object can be called "
                "old"
            )
        self.now = now

    def _recorded(self, found: Iterator[ObjectInfo], probe: str) -> Iterator[ObjectInfo]:
        """Record the times of the catalog's objects, and pass all objects on but the probe."""
        for info in found:
            if info.key.startswith(f"{FOLDER}/") or info.key.endswith(_TABLE_SUFFIX):
                self.times[info.key] = info.changed
            if info.key != probe:
                yield info


@dataclass(frozen=True)
class SetState:
    """The state of the set: its objects, listed first, and its versions and tags, read after that."""

    store: Store
    listed: StoreListing
    cutoff: float
    headers: Mapping[int, Header]
    kept_versions: frozenset[int]
    expired: tuple[int, ...]
    """Versions that this vacuum removes."""
    condemned: frozenset[str] = frozenset()
    """See `SetFacts.condemned`."""

    @classmethod
    def of(cls, store: Store, listed: StoreListing, cutoff: float) -> "SetState":
        """Read the versions and tags, and decide by the rules of vacuum which versions are kept."""
        headers, tagged = cls._read(store)
        newest = headers[max(headers)]
        expired = set(newest.expired)
        kept = frozenset(
            version
            for version in headers
            if keeps_version(
                version,
                newest=newest.version,
                is_tagged=version in tagged,
                is_expired=version in expired,
                superseded=listed.times.get(header_key(version + 1)),
                cutoff=cutoff,
            )
        )
        removed = tuple(sorted(headers.keys() - kept - expired))
        return cls(store, listed, cutoff, headers, kept, removed)

    @classmethod
    def retiring(cls, store: Store, listed: StoreListing, cutoff: float, retired: Collection[int]) -> "SetState":
        """Read the versions and tags; all are kept but these, and those that a vacuum has removed."""
        headers, tagged = cls._read(store)
        newest = headers[max(headers)]
        gone = {*retired, *(version for version in newest.expired if version not in tagged)}
        published = {*newest.writes, *(header.write_id for header in headers.values())}
        tables = {
            table_digest(key)
            for version, header in headers.items()
            if version in gone
            for key in _table_keys(store, header)
        }
        removed = tuple(sorted(set(retired) - set(newest.expired)))
        return cls(store, listed, cutoff, headers, frozenset(headers) - gone, removed, frozenset(published | tables))

    @staticmethod
    def _read(store: Store) -> tuple[dict[int, Header], set[int]]:
        """Return all headers by version, and the versions that have a tag."""
        newest = find_newest(store).header
        if newest is None:
            raise StoreNotFound(f"{store.url}: the versions are gone", key=INDEX)
        # Headers are read before the tags, so that a tag made in between is seen.
        headers = {header.version: header for header in (newest, *headers_before(store, newest))}
        return headers, set(tags(store).values())

    @property
    def newest(self) -> Header:
        """The newest version."""
        return self.headers[max(self.headers)]

    @property
    def published(self) -> set[str]:
        """The write ids of all versions."""
        return {*self.newest.writes, *(header.write_id for header in self.headers.values())}

    @property
    def writes(self) -> set[str]:
        """Every write id that a version or a marker names."""
        return writes_of(self.listed.objects, self.published)

    def sweep(self, kept_versions: Collection[int], unfinished: Iterable[UnfinishedUpload]) -> Sweep:
        """Decide which objects may be removed if these versions are kept."""
        needed: dict[object, int] = {}  # one of the versions that need the same objects
        for version in sorted(kept_versions):
            header = self.headers[version]
            needed[header.table_key, json.dumps([list(header.sidecars), list(header.erased)], sort_keys=True)] = version
        seen: set[str] = set()
        live = Names(chain.from_iterable(self._needed(self.headers[version], seen) for version in needed.values()))
        expired = {header.write_id for version, header in self.headers.items() if version not in kept_versions}
        known = SetFacts(self.published, live, expired, self.condemned)
        return sweep(self.listed.objects, known, self.cutoff, unfinished)

    def fences(self, found: Sweep) -> tuple[str, ...]:
        """Return the fences of this vacuum, and those of earlier ones that are recent or still have objects."""
        first_fenced: dict[str, int] = {}
        for version in sorted(self.headers):
            for name in self.headers[version].fenced:
                first_fenced.setdefault(name, version)
        times = {name: self.listed.times.get(header_key(version)) for name, version in first_fenced.items()}
        recent = {name for name, time in times.items() if time is None or time >= self.cutoff}
        carried = {name for name in self.newest.fenced if name in recent or name in found.shown}
        return tuple(sorted({*carried, *found.fences}))

    def _needed(self, header: Header, seen: set[str]) -> Iterator[Sequence[str]]:
        """Yield the keys of all objects that a version needs, some thousands at a time.

        `seen` are segments whose shards were yielded for another version; those of this one are added.
        """
        tables = (header.table_key, *(entry.table_key for entry in columns_of(header.sidecars)))
        was_expired = header.version in self.newest.expired
        if was_expired and not all(key in self.listed.times for key in tables):
            return  # it was tagged while an earlier vacuum removed it
        segments = list(segment_keys(self.store, header).values())
        if was_expired and not all(key in self.listed.times for key in segments):
            return
        yield (header.table_key, *segments)
        yield erased_keys(header)
        for sha256, shards in tables_in(read_manifest(self.store, header, recount=False).shards):
            if sha256 and sha256 in seen:
                continue
            seen.add(sha256)
            yield list(block_files_of(shards))
            for part in stored_sizes_of(shards):
                yield [name for name, _ in part]
        yield list(live_keys(self.store, header.sidecars))


def _table_keys(store: Store, header: Header) -> tuple[str, ...]:
    """Return the keys of a version's shard table and its segments, as far as they are known."""
    with suppress(IndexFileError):  # an earlier vacuum removed the list
        return (header.table_key, *segment_keys(store, header).values())
    return (header.table_key,)


def remove_objects(store: Store, doomed: Sequence[Doomed], on_remove: Callable[[int, int], None] | None) -> None:
    """Remove the objects, in this order."""
    for done, each in enumerate(doomed, start=1):
        delete_own(store, each.key)
        if on_remove is not None:
            on_remove(done, len(doomed))


def list_uploads(store: Store) -> list[UnfinishedUpload] | None:
    """Return the unfinished uploads of the store; None if it does not list them."""
    try:
        return list(store.unfinished_uploads())
    except StoreError:  # not every S3-compatible store lists them, nor for all credentials
        return None


def parse_age(age: str | float) -> float:
    """Return an age in seconds, given as a number or as text such as "7d", "36h", "90m", "2w".

    Raises:
        CatalogError: it is neither.
    """
    if isinstance(age, int | float) and not isinstance(age, bool) and 0 <= age < float("inf"):
        return float(age)
    match = _AGE.fullmatch(age.strip()) if isinstance(age, str) else None
    if match is None:
        raise CatalogError(f'expected an age such as "7d", "36h" or a number of seconds, found {age!r:.60}')
    return float(match[1]) * _UNITS[match[2]]


def checked_limit(older_than: str | float, *, whose: str, unsafe_ttl: bool) -> float:
    """Return the age in seconds from which on objects may be removed.

    `whose` names the processes that may still need the objects, such as "writer or reader", for the message.
    `unsafe_ttl` allows less than `LEAST_SECONDS`.

    Raises:
        CatalogError: it is not an age, or is too small.
    """
    limit = parse_age(older_than)
    if limit < LEAST_SECONDS and not unsafe_ttl:
        raise CatalogError(
            f"`older_than` is {limit / 86400:.2g} days; less than {LEAST_SECONDS / 86400:.0f} may remove what a slow "
            f"{whose} still needs. Say `unsafe_ttl` if no {whose} is running"
        )
    return limit


@dataclass(frozen=True)
class PendingWrite:
    """A write that was not published and may be running, and what it has put."""

    write_id: str
    num_objects: int
    num_bytes: int


@dataclass(frozen=True)
class Retirement:
    """The result of a retirement."""

    version: int | None
    """The version that was published with the list of removals; None if none was needed."""
    write_id: str | None
    """Its write id."""
    retired: tuple[int, ...]
    """Versions that this call declared removed."""
    removed: Sequence[Doomed]
    """The objects, in the order of their removal."""
    uploads: tuple[UnfinishedUpload, ...] | None
    """Unfinished uploads that were removed; None if the store does not list them."""
    old_versions: tuple[OldVersion, ...] | None
    """Contents of removed objects that the bucket keeps, or kept; None if the store does not report them."""
    old_versions_removed: bool
    """True if they were removed."""
    pending: tuple[PendingWrite, ...]
    """Writes that may be running, and whose objects stay."""


def retire(
    store: Store,
    versions: Collection[int],
    *,
    unsafe_ttl: bool = False,
    bucket_versions: bool = False,
    dry_run: bool = False,
    on_remove: Callable[[int, int], None] | None = None,
    clock: PublishingClock = SYSTEM,
) -> Retirement:
    """Remove these versions and everything that no other version needs; with `dry_run` only report it.

    `unsafe_ttl` removes objects of unpublished writes at once, not only after seven days; safe only if no writer is
    running. `bucket_versions` also removes what a versioned bucket keeps of removed objects.

    Raises:
        CatalogError: one of them is the newest or has a tag; nothing was removed.
        CommitConflict: one was tagged during the call, or others kept publishing; nothing was removed.
        Otherwise: as for `vacuum`.
    """
    check_set(store)
    listed = StoreListing(store)
    cutoff = listed.now + _SOON if unsafe_ttl else listed.now - LEAST_SECONDS
    for attempt in range(PUBLISH_ATTEMPTS):
        state = SetState.retiring(store, listed, cutoff, versions)
        if not dry_run:
            _check_tags(store, state, versions)
        unfinished = list_uploads(store)
        found = state.sweep(state.kept_versions, unfinished or ())
        uploads = None if unfinished is None else _uploads_to_abort(unfinished, state)
        committed = None
        if not dry_run and (state.expired or found.fences):
            committed = announce_removal(
                store,
                state.newest,
                f"purge-{secrets.token_hex(8)}",
                fenced=state.fences(found),
                expired=state.expired,
                operation="purge",
                erased=purged_erasures(state.newest, state.expired),
                clock=clock,
            )
            if committed is None:
                clock.pause(0.05 * (attempt + 1))
                continue
            _check_tags(store, state, versions)
        if not dry_run:
            for upload in uploads or ():
                store.abort_upload(upload)
            remove_objects(store, found.doomed, on_remove)
        old = _old_versions(state, found)
        removes_old = bool(old) and bucket_versions and not dry_run
        for each in (old or ()) if removes_old else ():
            store.remove_old_version(each)
        return Retirement(
            version=committed.version if committed else None,
            write_id=committed.write_id if committed else None,
            retired=state.expired if committed or dry_run else (),
            removed=found.doomed,
            uploads=uploads,
            old_versions=old,
            old_versions_removed=removes_old,
            pending=tuple(_pending(state, found)),
        )
    raise CommitConflict(
        f"{store.url}: others published {PUBLISH_ATTEMPTS} times during the call; nothing was removed. Call again"
    )


def _check_tags(store: Store, state: SetState, versions: Collection[int]) -> None:
    if state.newest.version in versions:
        raise CatalogError(f"{store.url}: version {state.newest.version} is the newest, and cannot be retired")
    named = [f"{name!r} (version {version})" for name, version in tags(store).items() if version in versions]
    if named:
        raise CommitConflict(
            f"{store.url}: versions to be removed have the tags {', '.join(named)}; remove or move the tags, and call "
            "again"
        )


def _uploads_to_abort(unfinished: Iterable[UnfinishedUpload], state: SetState) -> tuple[UnfinishedUpload, ...]:
    """Return old uploads, and all of published writes: no version can name them any more."""
    found = list(unfinished)
    published = [each for each in found if owner_of(each.key, state.published) is not None]
    return tuple(dict.fromkeys([*published, *old_uploads(found, state.writes, state.cutoff)]))


def _old_versions(state: SetState, found: Sweep) -> tuple[OldVersion, ...] | None:
    """Return what the bucket keeps of objects that are gone, of this and of earlier removals."""
    try:
        listed = state.store.old_versions()
    except StoreError:  # not every S3-compatible store lists them, nor for all credentials
        return None
    if listed is None:
        return None
    old = list(listed)
    names = {each.key for each in old}  # names of objects that have no old contents are not remembered
    doomed = {each.key for each in found.doomed if each.key in names}
    present = {info.key for info in state.listed.objects if info.key in names} - doomed
    writes = state.writes
    known = SetFacts(state.published, frozenset(), frozenset(), state.condemned)
    owners = {key: owner_of(key, writes) for key in names - present}
    gone = {key for key, owner in owners.items() if is_ours(key, owner) and is_condemned(key, owner, known)} | doomed
    return tuple(each for each in old if each.key in gone)


def _pending(state: SetState, found: Sweep) -> Iterator[PendingWrite]:
    """Yield the unpublished writes of which objects stay."""
    writes = state.writes - state.published
    objects: dict[str, tuple[int, int]] = {}  # number and bytes of what stays: of what is listed, without what goes
    listed = ((1, each.key, each.num_bytes) for each in state.listed.objects)
    gone = ((-1, each.key, -each.num_bytes) for each in found.doomed)
    for sign, key, num_bytes in chain(listed, gone):
        owner = owner_of(key, writes)
        if owner in writes:
            before = objects.get(str(owner), (0, 0))
            objects[str(owner)] = before[0] + sign, before[1] + num_bytes
    for write_id, (count, num_bytes) in sorted(objects.items()):
        if count:
            yield PendingWrite(write_id, count, num_bytes)
