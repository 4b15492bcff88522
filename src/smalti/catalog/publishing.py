"""Publishing: a version becomes visible all at once.

Intended behaviour; anything else is a bug:
1. Every shard is in the store, with its declared size, before anything is published.
2. The shard table is written under the name of its content; then `_versions/<n>.json` is created by put-if-absent.
   That single put is the commit (`commit`): of several writers exactly one succeeds, the others raise
   `CommitConflict`, except that an append reads the new state and retries, a bounded number of times.
3. A lost reply, or a conflict with our own retried put, is settled by reading the object back and comparing the write
   id. If it cannot be read, `CommitUnknown` is raised; nothing is ever removed.
4. Publishing the same write id again returns its version, and finishes the index files of that version.
5. A writer killed at any point leaves the old version or the new one; no version references its unpublished uploads.
6. An index file that Smalti did not write is never replaced.
7. Before a vacuum removes anything, it publishes a version that lists the affected writes. Those writes are refused
   from then on, so that a writer that was suspended for any length of time cannot publish shards that are gone.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from smalti.attributes import whole_number
from smalti.catalog.commit import PAUSE_SECONDS, SYSTEM, PublishingClock, commit
from smalti.catalog.index import check_readable, refresh_index
from smalti.catalog.manifest import (
    FOLDER,
    INDEX,
    Draft,
    Header,
    Manifest,
    header_key,
    make_manifest,
    new_write_id,
    read_header,
    read_manifest,
)
from smalti.catalog.next_version import VersionStep, header_of_draft, next_header
from smalti.catalog.opening import Newest, find_newest, header_of
from smalti.catalog.sidecars import kept_after_rollback
from smalti.catalog.table.segments import shards_only_in
from smalti.catalog.table.shard_table import stored_sizes_of
from smalti.errors import (
    ArgumentError,
    CatalogError,
    CommitConflict,
    CommitUnknown,
    DatasetExists,
    DeletedSamplesWarning,
    StoreError,
    StoreNotFound,
    VersionNotFound,
)
from smalti.format import ShardInfo
from smalti.storage import Place, Store, open_store

_BATCH = 1 << 14  # files that are handled together
Mode = Literal["create", "overwrite", "append"]
MODES: tuple[Mode, ...] = ("create", "overwrite", "append")
REBASES = 30
"""Attempts of an append when other writers publish first."""


def publish(place: Place, draft: Draft, *, mode: Mode = "create", clock: PublishingClock = SYSTEM) -> Manifest:
    """Publish the shards of a draft, which are in the store already, as a new version.

    Blocks. Idempotent: it can be called again with the same draft after any failure.

    Args:
        place: Root of the set: a URL, folder or store.
        draft: The shards, and what is known of them.
        mode: `create` or `overwrite`: these shards alone; `append`: after the present ones.
        clock: The time of this machine; simulations have their own.

    Raises:
        DatasetExists: `create`, and there is a set; or the place holds a set that Smalti did not write.
        CommitConflict: another writer published first; nothing of this draft is visible.
        CommitUnknown: the store no longer answers: the commit may or may not have taken effect, or it has, and the
            index files could not be replaced. Calling again settles it.
        SchemaError: `append`, and the columns or their logical types differ from those of the set.
        CatalogError: a shard of the draft is not in the store, or not with its declared size; or a vacuum is removing
            the shards of this write.
        StoreError: the store failed before anything was visible.

    Examples:
        >>> draft = smalti.load_manifest("s3://bucket/users").redraft(new_write_id(), metadata={"licence": "CC0"})
        >>> publish("s3://bucket/users", draft, mode="overwrite").metadata["licence"]
        'CC0'
    """
    store = open_store(place)
    for attempt in range(REBASES):
        newest = check_target(store, mode, write_id=draft.write_id).header
        done = _already_published(store, newest, draft, is_first=attempt == 0)
        if done is not None:
            return done
        if mode == "overwrite" and newest is not None and newest.erased:
            versions = ", ".join(str(entry.get("version")) for entry in newest.erased)
            warnings.warn(
                f"{store.url}: samples were deleted from this set (versions {versions}), and its content is now "
                "replaced by rows that were not compared with them: if their source still holds the samples, they are "
                "back. Run `smalti delete` again, or clean the source first",
                DeletedSamplesWarning,
                stacklevel=2,
            )
        try:
            return _commit_draft(store, draft, VersionStep(newest, mode, clock))
        except CommitConflict:
            if mode != "append":
                raise
        clock.pause(PAUSE_SECONDS * min(attempt + 1, 10))
    raise CommitConflict(
        f"{store.url}: an append was overtaken {REBASES} times; nothing of it is visible. Publish again when "
        "fewer writers publish at the same time",
        write_id=draft.write_id,
    )


def replace_content(
    place: Place,
    draft: Draft,
    *,
    based_on: int,
    operation: str = "compact",
    erased: tuple[Mapping[str, Any], ...] = (),
    clock: PublishingClock = SYSTEM,
) -> Manifest:
    """Publish the draft's shards in place of those of version `based_on`, if that is the newest.

    `erased` are records of deletions of samples, which this and all later versions carry.

    Raises:
        CommitConflict: another version is the newest; nothing of this draft is visible.
        Otherwise: as for `publish`.
    """
    store = open_store(place)
    newest = check_target(store, "overwrite", write_id=draft.write_id).header
    done = _already_published(store, newest, draft, is_first=True)
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
    return _commit_draft(store, draft, VersionStep(newest, operation, clock, erased=erased))


def publish_copy(store: Store, draft: Draft, step: VersionStep) -> Manifest:
    """Publish a version of another store, whose objects are in this one, as the version after `step.parent`.

    Write id, digest and row hash are those of the source. Nothing is retried: another publisher since `step.parent` was
    read may have been a vacuum that removes objects which the caller found here.

    Raises:
        CommitConflict: another writer published first; nothing of this draft is visible.
        Otherwise: as for `publish`.
    """
    following = 1 if step.parent is None else step.parent.version + 1
    if store.exists(header_key(following)):  # a vacuum may be removing shards: asked before they are looked for
        raise CommitConflict(
            f"{store.url}: version {following} was published by another writer during this {step.operation}; nothing "
            "of it is visible. Do it again from the new version",
            version=following,
            write_id=draft.write_id,
        )
    check_stored(store, draft.shards, draft.write_id)
    store.check_exclusive_puts(FOLDER)
    return _commit_draft(store, draft, step)


def rollback(place: Place, version: int, *, write_id: str | None = None, clock: PublishingClock = SYSTEM) -> Manifest:
    """Publish the content of an earlier version, with its digest, as the newest; a no-op if it is the newest already.

    It also works if the newest versions cannot be read; what they recorded is not known then, which is a
    `DeletedSamplesWarning`.

    Args:
        place: Root of the set: a URL, folder or store.
        version: The earlier version.
        write_id: Makes a repeated call idempotent: if it is published already, its version is returned.
        clock: The time of this machine; simulations have their own.

    Raises:
        VersionNotFound: there is no such version, or a vacuum removed its shards.
        CatalogError: a shard of it is missing.
        CommitConflict: another writer published during the call; nothing was rolled back.
        CommitUnknown: as for `publish`.

    Examples:
        >>> version = rollback("s3://bucket/users", 1)
        >>> version.version, version.rows
        (3, 10)
    """
    store, version = open_store(place), whole_number("version", version)
    found = find_newest(store, skips_unreadable=True)
    newest = found.header
    if newest is None:
        if found.unreadable is not None:
            raise found.unreadable
        raise VersionNotFound(f"{store.url} has no versions to roll back to", version=version)
    if write_id is not None and write_id in newest.writes:
        return _finish(store, _header_of_write(store, newest, write_id))
    if version in newest.expired:
        raise VersionNotFound(
            f"{store.url}: version {version} was vacuumed: its shards were removed, or are being removed",
            version=version,
        )
    target = header_of(store, version)
    if target.has_files_of(newest) and found.unreadable is None:
        return _finish(store, newest)
    _check_rolled_back(store, newest, target)
    if found.unreadable is not None:
        warnings.warn(
            f"{store.url}: versions {newest.version + 1} to {found.last} cannot be read ({found.unreadable}); the "
            f"rollback continues from version {newest.version}. If one of them was a deletion of samples, delete them "
            "again",
            DeletedSamplesWarning,
            stacklevel=2,
        )
        newest = replace(newest, version=found.last)
    store.check_exclusive_puts(FOLDER)
    content = replace(target, metadata={**target.metadata, "rolled_back_to": version})
    header = next_header(content, write_id or new_write_id(), VersionStep(newest, "rollback", clock))
    header = replace(header, erased=kept_after_rollback(newest, target))
    committed = _commit(store, header, clock)
    if committed is None:
        raise CommitConflict(
            f"{store.url}: version {header.version} was published by another writer during the rollback to "
            f"{version}; nothing was rolled back. Look at the new version first",
            version=header.version,
        )
    return _finish(store, committed)


def _check_rolled_back(store: Store, newest: Header, target: Header) -> None:
    """Check that the shards of the target are stored; of versions in segments, those that the newest does not have."""
    shards = read_manifest(store, target).shards
    if not (target.is_segmented and newest.is_segmented):
        check_stored(store, shards, target.write_id)
        return
    missing = shards_only_in(shards, read_manifest(store, newest).shards)
    check_stored(store, missing, "")  # in the folders of their tasks: the one of the write may have many others


def write_index(place: Place) -> Manifest:
    """Write index files that list all shards of the newest version, for readers that know no versions.

    Publishers do that themselves for up to `MAX_LISTED_SHARDS` shards. The next version replaces a longer list: call
    this again after it.

    Args:
        place: Root of the set: a URL, folder or store.

    Raises:
        VersionNotFound: there are no versions.
        CommitUnknown: the store failed; call again.

    Examples:
        >>> write_index("s3://bucket/users").version
        2
    """
    store = open_store(place)
    newest = find_newest(store).header
    if newest is None:
        raise VersionNotFound(f"{store.url} has no versions of which an index file could be written")
    return _finish(store, newest, lists_all=True)


def announce_removal(
    store: Store,
    newest: Header,
    write_id: str,
    *,
    fenced: tuple[str, ...] = (),
    expired: tuple[int, ...] = (),
    operation: str = "vacuum",
    erased: tuple[Mapping[str, Any], ...] | None = None,
    clock: PublishingClock = SYSTEM,
) -> Header | None:
    """Publish the content of the newest version again, with the list of what a vacuum is about to remove.

    A publisher that started from an older version loses the race against this one, and a publisher that starts from
    this one sees the list: no later version can reference a removed object. `newest` is the newest version when the
    vacuum decided what to remove. `fenced` has the write ids, and digests of shard tables, of removed objects, and
    replaces the parent's. `expired` has the versions that lose objects, and is added to the parent's. `erased` replaces
    the records of deletions.

    Returns:
        The new header; None if another publisher was first.

    Raises:
        CommitUnknown: as for `publish`; nothing may be removed then.
    """
    step = VersionStep(newest, operation, clock, expired=expired)
    header = replace(next_header(newest, write_id, step), fenced=fenced)
    if erased is not None:
        header = replace(header, erased=erased)
    committed = _commit(store, header, clock)
    if committed is not None:
        _finish(store, committed)
    return committed


def check_target(store: Store, mode: Mode, *, write_id: str = "", can_append: bool = True) -> Newest:
    """Return the state of the place, if `mode` may publish there. Writers call it before they write any shard.

    `can_append` is False for what can only be published as a whole.

    Raises:
        DatasetExists: as for `publish`.
    """
    if mode not in MODES:
        raise ArgumentError(f"`mode` is {mode!r}, expected one of {', '.join(MODES)}")
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
    if newest.is_copy:
        raise DatasetExists(
            f"{store.url} holds the shards of a set that was copied without its {FOLDER} folder; it is never replaced "
            f"or extended. Copy {FOLDER} too, or choose another place",
            url=store.url,
        )
    if newest.is_unversioned and mode != "overwrite":
        raise DatasetExists(
            f"{store.url} already holds a data set, which smalti.compat.streaming wrote without versions; use "
            f'mode="overwrite" to replace it by a version, or `smalti convert {store.url} NEW` for a set that can be '
            "appended to",
            url=store.url,
        )
    if newest.header is not None and mode == "create" and write_id not in newest.header.writes:
        adding = 'mode="append" to add to it or ' if can_append else ""
        raise DatasetExists(
            f"{store.url} already holds a data set (version {newest.header.version}, {newest.header.rows} samples); "
            f'use {adding}mode="overwrite" to replace it by a new version',
            url=store.url,
            version=newest.header.version,
        )
    return newest


def _already_published(store: Store, newest: Header | None, draft: Draft, *, is_first: bool) -> Manifest | None:
    """Return the version of this write if it is published already; else check that it can be published.

    The stored shards are checked in the first attempt only. They cannot disappear unnoticed after that: a vacuum that
    removes them publishes first, so that the commit fails and the next attempt finds the write id fenced.
    """
    if newest is not None and draft.write_id in newest.writes:
        return _finish(store, _header_of_write(store, newest, draft.write_id))
    if newest is not None and draft.write_id in newest.fenced:
        raise CatalogError(
            f"{store.url}: write {draft.write_id} was considered abandoned, and a vacuum (version {newest.version} "
            "or an earlier one) removes its shards; nothing of it is visible. Write again, with a new write id",
            write_id=draft.write_id,
        )
    if is_first:
        check_stored(store, draft.shards, draft.write_id)
        store.check_exclusive_puts(FOLDER)
    return None


def _commit_draft(store: Store, draft: Draft, step: VersionStep) -> Manifest:
    """Create the version after `step.parent`.

    Raises:
        CommitConflict: another writer was first; nothing of this draft is visible.
        Otherwise: as for `publish`.
    """
    header, shards = header_of_draft(store, draft, step)
    committed = _commit(store, header, step.clock)
    if committed is None:
        raise CommitConflict(
            f"{store.url}: version {header.version} was published by another writer during this {header.operation}; "
            "nothing of it is visible. Look at the new version, and publish again if it is still needed",
            version=header.version,
            write_id=header.write_id,
        )
    return _finish(store, committed, shards if committed == header else None)


def _commit(store: Store, header: Header, clock: PublishingClock) -> Header | None:
    """Create the version if readers can read it; return its header, or None if another writer was first.

    Raises:
        CatalogError: they could not; nothing was published.
        CommitUnknown, StoreError: as for `commit`.
    """
    check_readable(header, where=store.url)
    return commit(store, header, clock)


def _header_of_write(store: Store, newest: Header, write_id: str) -> Header:
    """Read the header of the version that a write was published as."""
    version = newest.writes[write_id]
    if version in newest.expired:
        raise VersionNotFound(
            f"{store.url}: this write was published as version {version}, and a vacuum removed its shards since; write "
            "again, with a new write id, if it is still needed",
            version=version,
        )
    return read_header(store, version)


def _finish(
    store: Store, header: Header, shards: Sequence[ShardInfo] | None = None, *, lists_all: bool = False
) -> Manifest:
    """Bring the index files up to date, and return the manifest; the shard table is read if `shards` is not given."""
    try:
        manifest = read_manifest(store, header) if shards is None else make_manifest(header, shards)
        refresh_index(store, manifest, lists_all=lists_all)
    except StoreError as error:
        raise CommitUnknown(
            f"{store.url}: version {header.version} is published (write id {header.write_id}) and can be opened, but "
            f"its index files may not show it yet, because the store failed: {error}. Nothing was removed; publish "
            "again with the same write id to finish them",
            version=header.version,
            write_id=header.write_id,
        ) from error
    return manifest


def check_stored(store: Store, shards: Sequence[ShardInfo], write_id: str) -> None:
    """Check that every file of the shards is in the store, with its size, in memory that names do not add to.

    The shards of one write have a common folder, and a few listing requests return all their sizes. Names and sizes are
    compared by 64-bit hashes, 160 MB for ten million with their places. Files that the listing does not show with their
    size are looked up one by one.

    Raises:
        CatalogError: one is not.
    """
    folders: set[str] = set()
    expected = [np.zeros(0, np.uint64)]
    for batch in stored_sizes_of(shards):
        expected.append(_hashed(batch))
        folders |= {_folder(name, write_id) for name, _ in batch}
    hashes = np.concatenate(expected)
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    is_listed = np.zeros(hashes.size, bool)
    for folder in sorted(folders - {""}):
        found = store.list(folder)
        while objects := list(islice(found, _BATCH)):
            present = _hashed([(info.key, info.num_bytes) for info in objects])
            places = np.searchsorted(hashes, present)
            is_listed[order[places[hashes.take(places, mode="clip") == present]]] = True
    if is_listed.all():
        return
    files = (file for shard in shards for file in shard.stored_files)
    for file, is_there in zip(files, is_listed.tolist(), strict=True):
        if is_there:
            continue
        where, key = store.locate(file.basename), file.basename
        try:
            found_bytes = store.size(key)
        except StoreNotFound as error:
            raise CatalogError(f"shard {where} is not in the store; nothing was published", key=key) from error
        if found_bytes != file.num_bytes:
            raise CatalogError(
                f"shard {where} has {found_bytes} bytes, its writer says {file.num_bytes}: the upload is incomplete; "
                "nothing was published",
                key=key,
            )


def _hashed(files: Sequence[tuple[str, int]]) -> NDArray[np.uint64]:
    """Return a hash of the name and the size of each file."""
    return np.array([xxh3_64_intdigest(f"{num_bytes} {name}".encode()) for name, num_bytes in files], np.uint64)


def _folder(basename: str, write_id: str) -> str:
    """Return the folder of the write in a shard's key, or else the folder of the shard."""
    parts = basename.split("/")[:-1]
    return "/".join(parts[: parts.index(write_id) + 1] if write_id in parts else parts)
