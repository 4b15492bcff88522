"""Retirement of chosen versions: at once, their objects are removed that no kept version needs, whatever their age.

`vacuum` waits until no process can be reading a version any more; a purge of deleted samples cannot wait. What it
removes and what it leaves:

1. Every object of a published write that no kept version needs goes, also a young one. A reader that is still in a
   retired version fails at the next shard that it has not yet fetched; it never gets wrong data.
2. Objects of a write that was not published may belong to a running writer: they go when they are as old as for a
   vacuum (or at once, with `unsafe_ttl`), and are reported as pending until then.
3. As in a vacuum, a version that lists what goes is published first, so that no later version can name it again.
4. Old contents that a versioned bucket keeps are counted, and removed with `bucket_versions`.
5. Killed at any point, every kept version is whole, and the next call continues.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from smalti.catalog.commit import SYSTEM, PublishingClock
from smalti.catalog.publishing import announce_removal
from smalti.catalog.retention.sweep import (
    Doomed,
    SetFacts,
    Sweep,
    is_condemned,
    is_ours,
    old_uploads,
    owner_of,
)
from smalti.catalog.retention.vacuum import (
    LEAST_SECONDS,
    PUBLISH_ATTEMPTS,
    SetState,
    StoreListing,
    check_set,
    list_uploads,
    remove_objects,
)
from smalti.catalog.sidecars import purged_erasures
from smalti.catalog.tags import tags
from smalti.errors import CatalogError, CommitConflict, StoreError
from smalti.storage import OldVersion, Store, UnfinishedUpload

_SOON = 1.0  # second: with `unsafe_ttl`, what was put in the second of the listing is old too


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
