"""Making a version visible, all at once.

Intended behaviour; anything else is a bug:
1. Every shard is in the store, with its declared size, before anything is published.
2. The shard table is written under the name of its content; then `_versions/<n>.json` is created by put-if-absent.
   That single put is the commit (`committing`): of several writers exactly one succeeds, the others raise
   `CommitConflict`, except that an append reads the new state and tries again, a bounded number of times.
3. A reply that was lost, or a conflict with our own retried put, is settled by reading the object back and comparing
   the write id. When it cannot be read, `CommitUnknown` says so; nothing is ever removed.
4. The same write id published again returns the version that it already has, and finishes its index files.
5. A writer killed at any point leaves the old version or the new one; what it had uploaded is named by no version.
6. An index file that Smalti did not write is never replaced.
7. What a vacuum removes it names in a version of its own first. A write that it names is refused from then on, so that
   a writer who slept through any time limit cannot publish shards that are gone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from smalti.catalog.header import FOLDER, INDEX, Header, make_manifest, read_header, read_manifest
from smalti.catalog.index.refresh import refresh_index
from smalti.catalog.manifest import Draft, Manifest, new_write_id
from smalti.catalog.publishing.check_stored import check_stored
from smalti.catalog.publishing.commit import PAUSE_SECONDS, SYSTEM, Clock, commit
from smalti.catalog.publishing.next_version import Step, drafted, following
from smalti.catalog.reading import Newest, find_newest
from smalti.errors import (
    CatalogError,
    CommitConflict,
    CommitUnknown,
    DatasetExists,
    StoreError,
    StoreNotFound,
    VersionNotFound,
)
from smalti.format import ShardInfo
from smalti.storage import Place, Store, open_store
from smalti.whole import whole_number

Mode = Literal["create", "overwrite", "append"]
MODES: tuple[Mode, ...] = ("create", "overwrite", "append")
REBASES = 30
"""How often an append tries again after somebody else was first."""


def publish(place: Place, draft: Draft, *, mode: Mode = "create", clock: Clock = SYSTEM) -> Manifest:
    """The new version that holds the draft's shards: alone (`create`, `overwrite`) or after those there are (`append`).

    Blocks; safe to call again with the same draft after any failure.

    Raises:
        DatasetExists: `create`, and there is a set; or the place holds a set that Smalti did not write.
        CommitConflict: somebody else published first; nothing of ours is visible.
        CommitUnknown: the store no longer answers: the commit may or may not have taken effect, or it has, and the
            index files could not be replaced. Calling again settles it.
        SchemaError: `append`, and the columns, or what their values stand for, differ from those of the set.
        CatalogError: a shard of the draft is not in the store, or not with its declared size; or a vacuum removes what
            this write has left.
        StoreError: the store failed before anything was visible.
    """
    store = open_store(place)
    for turn in range(REBASES):
        newest = check_target(store, mode, write_id=draft.write_id).header
        done = _published(store, newest, draft, is_first=turn == 0)
        if done is not None:
            return done
        header, shards = drafted(store, draft, Step(newest, mode, clock))
        committed = commit(store, header, clock)
        if committed is not None:
            return _finish(store, committed, shards if committed == header else None)
        if mode != "append":
            raise _overtaken(store, header)
        clock.pause(PAUSE_SECONDS * min(turn + 1, 10))
    raise CommitConflict(
        f"{store.url}: an append was overtaken {REBASES} times; nothing of it is visible. Publish again when "
        "fewer writers are at work",
        write_id=draft.write_id,
    )


def replace_content(
    place: Place, draft: Draft, *, based_on: int, operation: str = "compact", clock: Clock = SYSTEM
) -> Manifest:
    """The new version that holds the draft's shards instead of those of version `based_on`, if that is the newest.

    Raises:
        CommitConflict: another version is the newest; nothing of ours is visible.
        Otherwise: as for `publish`.
    """
    store = open_store(place)
    newest = check_target(store, "overwrite", write_id=draft.write_id).header
    done = _published(store, newest, draft, is_first=True)
    if done is not None:
        return done
    if newest is None or newest.version != based_on:
        found = "there is none" if newest is None else f"the newest is {newest.version}"
        raise CommitConflict(
            f"{store.url}: this {operation} was made from version {based_on}, and {found}; nothing of it is visible. "
            "Do it again from the newest",
            version=based_on,
            write_id=draft.write_id,
        )
    header, shards = drafted(store, draft, Step(newest, operation, clock))
    committed = commit(store, header, clock)
    if committed is None:
        raise _overtaken(store, header)
    return _finish(store, committed, shards if committed == header else None)


def rollback(place: Place, version: int, *, write_id: str | None = None, clock: Clock = SYSTEM) -> Manifest:
    """A new version with the content, and so the digest, of an earlier one; that version itself if it is the newest.

    Args:
        place: The root of the set: a URL, folder or store.
        version: The earlier one.
        write_id: To make a repeated call safe: one that is published already returns its version.
        clock: For the date and for pauses.

    Raises:
        VersionNotFound: there is no such version, or a vacuum removed its shards.
        CatalogError: a shard of it is gone.
        CommitConflict: somebody published meanwhile; nothing was rolled back.
        CommitUnknown: as for `publish`.
    """
    store, version = open_store(place), whole_number("version", version)
    newest = find_newest(store).header
    if newest is None:
        raise VersionNotFound(f"{store.url} has no versions to roll back to", version=version)
    if write_id is not None and write_id in newest.writes:
        return _finish(store, _kept(store, newest, newest.writes[write_id]))
    target = _target(store, newest, version)
    if (target.digest, target.sidecars, target.logical) == (newest.digest, newest.sidecars, newest.logical):
        return _finish(store, newest)
    check_stored(store, read_manifest(store, target).shards, target.write_id)
    store.check_exclusive_puts(FOLDER)
    content = replace(target, metadata={**target.metadata, "rolled_back_to": version})
    header = following(content, write_id or new_write_id(), Step(newest, "rollback", clock))
    committed = commit(store, header, clock)
    if committed is None:
        raise CommitConflict(
            f"{store.url}: version {header.version} was published by somebody else while rolling back to "
            f"{version}; nothing was rolled back. Look at the new version first",
            version=header.version,
        )
    return _finish(store, committed)


def commit_same(
    store: Store,
    newest: Header,
    write_id: str,
    *,
    fenced: tuple[str, ...] = (),
    expired: tuple[int, ...] = (),
    clock: Clock = SYSTEM,
) -> Header | None:
    """A version with the content of the newest that says what a vacuum is about to remove; None for a lost race.

    Whoever publishes from an older version loses the race against it, and whoever publishes from it sees what goes: so
    nothing that is removed after it can be named by a version again.

    Args:
        store: The root of the set.
        newest: The version that the vacuum looked at.
        write_id: Of the vacuum.
        fenced: Write ids, and digests of shard tables, of which something is removed; instead of the parent's.
        expired: Versions of which something is removed; beside the parent's.
        clock: For the date and for pauses.

    Raises:
        CommitUnknown: as for `publish`; nothing may be removed then.
    """
    header = following(newest, write_id, Step(newest, "vacuum", clock))
    header = replace(header, fenced=fenced, expired=tuple(sorted({*newest.expired, *expired})))
    committed = commit(store, header, clock)
    if committed is not None:
        _finish(store, committed)
    return committed


def check_target(store: Store, mode: Mode, *, write_id: str = "") -> Newest:
    """What the place holds, if `mode` may publish there; for writers to call before they spend hours on shards.

    Raises:
        DatasetExists: as for `publish`.
    """
    if mode not in MODES:
        raise ValueError(f"`mode` is {mode!r}, expected one of {', '.join(MODES)}")
    newest = find_newest(store)
    if newest.is_foreign:
        raise DatasetExists(
            f"{store.url} holds an MDS set that Smalti did not write ({INDEX} has no 'smalti' key); it is "
            "never replaced or extended. "
            "Choose another place, or move its index.json away yourself",
            url=store.url,
        )
    if newest.is_split_folder:
        raise DatasetExists(
            f"{store.url} is the folder of one split of a set; publish to the set itself, one folder up", url=store.url
        )
    if newest.header is not None and mode == "create" and _version_of_write(newest.header, write_id) is None:
        raise DatasetExists(
            f"{store.url} already holds a data set (version {newest.header.version}, {newest.header.rows} "
            "samples); "
            'use mode="append" to add to it or mode="overwrite" to replace it by a new version',
            url=store.url,
            version=newest.header.version,
        )
    return newest


def _version_of_write(header: Header | None, write_id: str) -> int | None:
    return None if header is None else header.writes.get(write_id)


def _published(store: Store, newest: Header | None, draft: Draft, *, is_first: bool) -> Manifest | None:
    """The version of this write if it has one; else None, when it may have one.

    What is stored is looked at once: it stays, unless the newest version fences this write off, or does not name it
    while a vacuum goes on, which publishes first.
    """
    known = _version_of_write(newest, draft.write_id)
    if newest is not None and known is not None:
        return _finish(store, _kept(store, newest, known))
    if newest is not None and draft.write_id in newest.fenced:
        raise CatalogError(
            f"{store.url}: write {draft.write_id} was taken for dead, and a vacuum (version {newest.version} or an "
            "earlier one) removes its shards; nothing of it is visible. Write again, with a new write id",
            write_id=draft.write_id,
        )
    if is_first:
        check_stored(store, draft.shards, draft.write_id)
        store.check_exclusive_puts(FOLDER)
    return None


def _overtaken(store: Store, header: Header) -> CommitConflict:
    return CommitConflict(
        f"{store.url}: version {header.version} was published by somebody else while this {header.operation} was "
        "under way; nothing of it is visible. Look at the new version and publish again if that is still wanted",
        version=header.version,
        write_id=header.write_id,
    )


def _kept(store: Store, newest: Header, version: int) -> Header:
    """The version that a write was published as."""
    if version in newest.expired:
        raise VersionNotFound(
            f"{store.url}: this write was published as version {version}, and a vacuum removed its shards since; write "
            "again, with a new write id, if it is still wanted",
            version=version,
        )
    return read_header(store, version)


def _target(store: Store, newest: Header, version: int) -> Header:
    """The version to roll back to."""
    if version in newest.expired:
        raise VersionNotFound(
            f"{store.url}: version {version} was vacuumed: its shards were removed, or are being removed",
            version=version,
        )
    try:
        return read_header(store, version)
    except StoreNotFound as error:
        raise VersionNotFound(
            f"{store.url} has versions 1 to {newest.version}; {version} is not one of them", version=version
        ) from error


def _finish(store: Store, header: Header, shards: Sequence[ShardInfo] | None = None) -> Manifest:
    """The version, with index files that show it or a newer one; its shards are read where the caller has them not."""
    try:
        manifest = read_manifest(store, header) if shards is None else make_manifest(header, shards)
        refresh_index(store, manifest)
    except StoreError as error:
        raise CommitUnknown(
            f"{store.url}: version {header.version} is published (write id {header.write_id}) and can be opened, but "
            f"its index files may not show it yet, because the store failed: {error}. Nothing was removed; publish "
            "again with the same write id to finish them",
            version=header.version,
            write_id=header.write_id,
        ) from error
    return manifest
