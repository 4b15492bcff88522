"""Making a version visible, all at once.

Intended behaviour; anything else is a bug:
1. Every shard is in the store, with its declared size, before anything is published.
2. The shard table is written under the name of its content; then `_versions/<n>.json` is created by put-if-absent.
   That single put is the commit: of several writers exactly one succeeds, the others raise `CommitConflict`, except
   that an append reads the new state and tries again, a bounded number of times.
3. A reply that was lost, or a conflict with our own retried put, is settled by reading the object back and comparing
   the write id. When it cannot be read, `CommitUnknown` says so; nothing is ever removed.
4. The same write id published again returns the version that it already has, and finishes its index files.
5. A writer killed at any point leaves the old version or the new one; what it had uploaded is named by no version.
6. An index file that Smalti did not write is never replaced.
"""

import hashlib
import random
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Literal

from smalti.catalog.checked_puts import check_created, put_checked
from smalti.catalog.header import (
    FOLDER,
    INDEX,
    MAX_REMEMBERED_WRITES,
    Header,
    header_key,
    read_header,
    read_manifest,
    table_key,
)
from smalti.catalog.indexing import refresh_index
from smalti.catalog.manifest import Draft, Manifest, check_shards, digest_of, new_write_id, stored_bytes
from smalti.catalog.reading import Newest, find_newest
from smalti.catalog.table import emit_table
from smalti.errors import (
    CatalogError,
    CommitConflict,
    CommitUnknown,
    DatasetExists,
    SchemaError,
    StoreAuthError,
    StoreError,
    StoreExists,
    StoreNotFound,
    StoreTimeout,
    VersionNotFound,
)
from smalti.format import ShardInfo
from smalti.storage import Place, Store, open_store

Mode = Literal["create", "overwrite", "append"]
MODES: tuple[Mode, ...] = ("create", "overwrite", "append")
REBASES = 30
"""How often an append tries again after somebody else was first."""
PUT_ATTEMPTS = 4
READ_BACK_ATTEMPTS = 4
PAUSE_SECONDS = 0.05


def publish(place: Place, draft: Draft, *, mode: Mode = "create") -> Manifest:
    """The new version that holds the draft's shards: alone (`create`, `overwrite`) or after those there are (`append`).

    Blocks; safe to call again with the same draft after any failure.

    Raises:
        DatasetExists: `create`, and there is a set; or the place holds a set that Smalti did not write.
        CommitConflict: somebody else published first; nothing of ours is visible.
        CommitUnknown: the store no longer answers, and the commit may or may not have taken effect.
        SchemaError: `append`, and the columns differ from those of the set.
        CatalogError: a shard of the draft is not in the store, or not with its declared size.
    """
    store = open_store(place)
    for turn in range(REBASES):
        newest = check_target(store, mode, write_id=draft.write_id)
        known = _version_of_write(newest.header, draft.write_id)
        if known is not None:
            return _finish(store, read_header(store, known))
        if turn == 0:
            _check_stored(store, draft)
            store.check_exclusive_puts(FOLDER)
        shards = _content(store, newest.header, draft, mode)
        header = _prepare(store, shards, draft, _Step(newest.header, mode))
        committed = _commit(store, header)
        if committed is not None:
            return _finish(store, committed)
        if mode != "append":
            raise CommitConflict(
                f"{store.url}: version {header.version} was published by somebody else while this {mode} was "
                "under way; "
                "nothing of it is visible. Look at the new version and publish again if that is still wanted",
                version=header.version,
                write_id=draft.write_id,
            )
        time.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5) * min(turn + 1, 10))
    raise CommitConflict(
        f"{store.url}: an append was overtaken {REBASES} times; nothing of it is visible. Publish again when "
        "fewer writers are at work",
        write_id=draft.write_id,
    )


def rollback(place: Place, version: int) -> Manifest:
    """A new version with the content, and so the digest, of an earlier one; that version itself if it is the newest.

    Raises:
        VersionNotFound: there is no such version.
        CommitConflict: somebody published meanwhile; nothing was rolled back.
    """
    store = open_store(place)
    newest = find_newest(store).header
    if newest is None:
        raise VersionNotFound(f"{store.url} has no versions to roll back to", version=version)
    try:
        target = read_header(store, version)
    except StoreNotFound as error:
        raise VersionNotFound(
            f"{store.url} has versions 1 to {newest.version}; {version} is not one of them", version=version
        ) from error
    if target.digest == newest.digest:
        return _finish(store, newest)
    read_manifest(store, target)  # a version whose table is damaged must not become the newest
    store.check_exclusive_puts(FOLDER)
    write_id = new_write_id()
    header = _follow(newest, target, write_id, metadata={**target.metadata, "rolled_back_to": version})
    committed = _commit(store, header)
    if committed is None:
        raise CommitConflict(
            f"{store.url}: version {header.version} was published by somebody else while rolling back to "
            f"{version}; nothing was "
            "rolled back. Look at the new version first",
            version=header.version,
        )
    return _finish(store, committed)


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


@dataclass(frozen=True)
class _Step:
    """From which version, by which operation."""

    parent: Header | None
    operation: str


def _version_of_write(header: Header | None, write_id: str) -> int | None:
    return None if header is None else header.writes.get(write_id)


def _content(store: Store, parent: Header | None, draft: Draft, mode: Mode) -> tuple[ShardInfo, ...]:
    if mode != "append" or parent is None:
        return tuple(draft.shards)
    before = read_manifest(store, parent)
    if before.shards and before.schema != draft.schema:
        raise SchemaError(
            f"cannot append to version {parent.version} of {store.url}: it has columns "
            f"{before.schema.columns()}, these shards have "
            f"{draft.schema.columns()}",
            expected=before.schema.columns(),
            found=draft.schema.columns(),
        )
    shards = (*before.shards, *draft.shards)
    check_shards(shards, draft.schema)
    return shards


def _check_stored(store: Store, draft: Draft) -> None:
    """Every shard is there with its size; by few listings where shards lie together, else one by one."""
    sizes: dict[str, int] = {}
    files = [file for shard in draft.shards for file in shard.stored_files]
    folders = {_folder(file.basename, draft.write_id) for file in files}
    for folder in sorted(folder for folder in folders if folder):
        sizes.update({info.key: info.num_bytes for info in store.list(folder)})
    for file in files:
        try:
            found = sizes.get(file.basename)
            if found is None:
                found = store.size(file.basename)
        except StoreNotFound as error:
            raise CatalogError(
                f"shard {store.locate(file.basename)} is not in the store; nothing was published", key=file.basename
            ) from error
        if found != file.num_bytes:
            raise CatalogError(
                f"shard {store.locate(file.basename)} has {found} bytes, its writer says {file.num_bytes}: "
                "the upload is incomplete; "
                "nothing was published",
                key=file.basename,
            )


def _folder(basename: str, write_id: str) -> str:
    """The folder of the write in a shard's key, or the folder of the shard."""
    parts = basename.split("/")[:-1]
    return "/".join(parts[: parts.index(write_id) + 1] if write_id in parts else parts)


def _prepare(store: Store, shards: tuple[ShardInfo, ...], draft: Draft, step: _Step) -> Header:
    """Write the shard table; the header that would make it a version."""
    table = emit_table(shards)
    sha256 = hashlib.sha256(table).hexdigest()
    put_checked(store, table_key(sha256), table)
    content = Header(
        version=0,
        parent=None,
        write_id=draft.write_id,
        operation=step.operation,
        digest=digest_of(shards),
        rows=sum(shard.samples for shard in shards),
        num_shards=len(shards),
        num_bytes=sum(map(stored_bytes, shards)),
        partitions=tuple(sorted({shard.partition for shard in shards if shard.partition is not None})),
        columns=draft.schema.columns(),
        table_key=table_key(sha256),
        table_sha256=sha256,
        created="",
        lineage=dict(draft.lineage),
    )
    return _follow(step.parent, content, draft.write_id, metadata=dict(draft.metadata), operation=step.operation)


def _follow(
    parent: Header | None, content: Header, write_id: str, *, metadata: dict[str, object], operation: str = "rollback"
) -> Header:
    """The header of the version after `parent` that shows the content of `content`."""
    version = 1 if parent is None else parent.version + 1
    writes = {} if parent is None else dict(parent.writes)
    writes[write_id] = version
    recent = sorted(writes.items(), key=lambda item: item[1])[-MAX_REMEMBERED_WRITES:]
    return replace(
        content,
        version=version,
        parent=None if parent is None else parent.version,
        write_id=write_id,
        operation=operation,
        metadata=metadata,
        created=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        writes=dict(recent),
    )


def _commit(store: Store, header: Header) -> Header | None:
    """The header of this version as it lies there when it is ours; None for a lost race, an unknown outcome raises."""
    key, payload = header_key(header.version), header.emit()
    fault: StoreError | None = None
    for attempt in range(PUT_ATTEMPTS):
        try:
            store.put_if_absent(key, payload)
        except StoreExists:
            pass  # somebody's, or ours: an earlier put of ours may have landed although its reply was lost
        except StoreAuthError:
            raise  # refused: it cannot have taken effect
        except StoreError as error:
            fault = error
        else:
            check_created(store, key, payload)
            return header
        found = _read_back(store, header)
        if found is not None:
            return found if found.write_id == header.write_id else None
        time.sleep(PAUSE_SECONDS * 2**attempt * random.uniform(1.0, 1.5))
    if isinstance(fault, StoreTimeout) or fault is None:
        raise _unknown(store, header) from fault  # a put that was only slow may still land
    raise fault


def _read_back(store: Store, header: Header) -> Header | None:
    """The header of the version as it lies in the store, None if it is not there."""
    fault: StoreError | None = None
    for attempt in range(READ_BACK_ATTEMPTS):
        try:
            return read_header(store, header.version)
        except StoreNotFound:  # noqa: PERF203 -- a handful of attempts
            return None
        except StoreError as error:
            fault = error
            time.sleep(PAUSE_SECONDS * 2**attempt * random.uniform(1.0, 1.5))
    raise _unknown(store, header) from fault


def _unknown(store: Store, header: Header) -> CommitUnknown:
    return CommitUnknown(
        f"{store.url}: it cannot be told whether version {header.version} was published (write id "
        f"{header.write_id}), because the store "
        "stopped answering. Nothing was removed; publish again with the same write id: it returns the "
        "version or makes it",
        version=header.version,
        write_id=header.write_id,
    )


def _finish(store: Store, header: Header) -> Manifest:
    manifest = read_manifest(store, header)
    refresh_index(store, manifest)
    return manifest
