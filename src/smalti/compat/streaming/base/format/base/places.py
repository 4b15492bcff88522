"""SetUploader: the shards of a writer of MosaicML's interface, and the places at which the set appears.

Intended behaviour; anything else is a bug:
1. A place without a set gets a new one as MosaicML's writer leaves it: its shards, beside them `index.json`, which is
   created last and by put-if-absent, and nothing else. A writer that dies leaves no index file.
2. While a new set is written, its claim (`CLAIM`), created by put-if-absent, is in the place. A writer that finds one
   writes to a folder of its own, and publishes a version. A claim is never taken over: its writer may be suspended.
3. A place with a set that Smalti wrote gets a new version, in a folder of its own; readers of the old set keep it.
4. If the write fails, what it has stored is removed, unless it is unknown whether the index file or version appeared.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress

from smalti.catalog import Draft, new_write_id, publish
from smalti.catalog.commit import check_created
from smalti.catalog.digest import digest_of
from smalti.catalog.index import EXTRA, INDEX_FORMAT, encode_unlisted_hashes
from smalti.catalog.manifest import FOLDER, INDEX
from smalti.catalog.publishing import check_target
from smalti.catalog.retention import markers
from smalti.catalog.table.shard_table import samples_of
from smalti.errors import (
    CommitUnknown,
    DatasetExists,
    SmaltiError,
    StoreError,
    StoreExists,
    StoreNotFound,
    StoreTimeout,
)
from smalti.format import Schema, ShardInfo, emit_index
from smalti.storage import Store
from smalti.storage.store import put_own
from smalti.writer import NoSamples, ShardUploader, UploadOptions
from smalti.writer.progress import UploadProgress

CLAIM = markers.marker_key("new-set")
"""The key of the object that marks a place where a new set is being written."""


class NewSet:
    """A place without a set, which this write has claimed; the folder of the shards is the place itself."""

    def __init__(self, store: Store, write_id: str) -> None:
        self.folder = self._store = store
        self._write_id = write_id

    def publish(self, schema: Schema, shards: Sequence[ShardInfo]) -> Sequence[ShardInfo]:  # noqa: ARG002 - of `NewVersion`
        """Create the index file, and return the shards with their names below the root.

        Raises:
            DatasetExists: another writer has made a set there in the meantime.
            CommitUnknown: the store stopped answering, and the file may be there or may appear.
            StoreError: the store refused the file.
        """
        facts = {
            "format": INDEX_FORMAT,
            "write_id": self._write_id,
            "digest": digest_of(shards),
            "rows": samples_of(shards),
            **encode_unlisted_hashes(shards),
        }
        index = emit_index([shard.listed() for shard in shards], {EXTRA: facts})
        try:
            self._store.put_if_absent(INDEX, index)
            check_created(self._store, INDEX, index)
        except StoreError as error:  # the reply may be lost, or the refusal that of a repeated put of our own
            self._settle(index, error)
        return shards

    def leave(self) -> None:
        """Remove the claim, and of a local place its empty folders."""
        with suppress(StoreError):  # later writers only use folders of their own
            self._store.delete(CLAIM)
        path = self._store.local_path(CLAIM)
        if path is not None:
            with suppress(OSError):  # not empty
                path.parent.rmdir()
                path.parent.parent.rmdir()

    def _settle(self, index: bytes, fault: StoreError) -> None:
        """Return if the index file is the one that was put, whatever the store has answered."""
        try:
            present = self._store.get(INDEX)
        except StoreNotFound:
            if not isinstance(fault, StoreTimeout):
                raise fault from None
            present = None
        except StoreError:
            present = None
        if present == index:
            return
        if present is not None:
            raise DatasetExists(
                f"{self._store.url}: another writer has made a set there since this one began; nothing of this write "
                "is visible. Write to another place",
                url=self._store.url,
            ) from fault
        raise CommitUnknown(
            f"{self._store.locate(INDEX)}: it is unknown whether the set appeared, because the store stopped "
            "answering; nothing was removed. Look whether the file is there; if it is not, write to another place",
            write_id=self._write_id,
        ) from fault


class NewVersion:
    """A place with a set that Smalti wrote, or where another writer is making one."""

    def __init__(self, store: Store, write_id: str) -> None:
        self._store, self._write_id = store, write_id
        self._prefix = f"{write_id}/0"
        self.folder = store.child(self._prefix)
        markers.begin(store, write_id)

    def publish(self, schema: Schema, shards: Sequence[ShardInfo]) -> Sequence[ShardInfo]:
        """Publish the version, and return its shards; errors are those of `smalti.catalog.publish`."""
        below = tuple(shard.with_prefix(self._prefix) for shard in shards)
        return publish(self._store, Draft(self._write_id, schema, below), mode="overwrite").shards

    def leave(self) -> None:
        """Remove the marker of the write."""
        markers.end(self._store, self._write_id)


Place = NewSet | NewVersion
"""A place at which a set appears when its writer finishes."""


def open_place(store: Store, write_id: str) -> Place:
    """Return the place of a write: a new set where there is none and no other writer makes one, else a version.

    Raises:
        DatasetExists: there is a set that Smalti did not write.
        StoreError: the place cannot be read, or the store ignores conditional puts.
    """
    newest = check_target(store, "overwrite")
    if newest.header is not None or newest.is_plain:
        return NewVersion(store, write_id)
    store.check_exclusive_puts(FOLDER)
    claim = json.dumps({"smalti": 1, "write_id": write_id}).encode()
    try:
        put_own(store, CLAIM, claim)
    except StoreExists:
        return NewVersion(store, write_id)
    return NewSet(store, write_id)


class SetUploader:
    """The upload of one set to one or several places. Not thread-safe: used by one thread.

    Args:
        stores: the places; the first one decides whether the set appears.
        uploads: limits of the uploads.
        shows_progress: whether stored shards are shown on the error stream.

    Raises:
        DatasetExists: a place has a set that Smalti did not write.
        StoreError: a place cannot be read.
    """

    def __init__(self, stores: Sequence[Store], uploads: UploadOptions, *, shows_progress: bool = False) -> None:
        self._write_id = new_write_id()
        self._pid = os.getpid()
        self._places: list[Place] = []
        self._progress = UploadProgress() if shows_progress else None
        self._may_be_visible = False
        try:
            self._places += (open_place(store, self._write_id) for store in stores)
        except BaseException:
            self._leave()
            raise
        first, *others = (place.folder for place in self._places)
        on_stored = None if self._progress is None else self._progress.add
        self._uploader = ShardUploader(first, "", NoSamples(), uploads=uploads, mirrors=others, on_stored=on_stored)
        self.write_shard = self._uploader.write_shard
        """Adds a shard, whose name must be unique among those of this write; a StoreError if an upload failed."""

    def finish(self, schema: Schema) -> Sequence[ShardInfo]:
        """Wait for all shards, make the set visible, and return its shards as the first place names them.

        Raises:
            StoreError: an upload failed, or the store refused the index file; what was stored is removed.
            DatasetExists: another writer has made a set there in the meantime; as above.
            CommitConflict: another writer published a version in the meantime; as above.
            CommitUnknown: the store stopped answering; nothing was removed.
            ValueError: the write was finished already.
        """
        try:
            shards = self._uploader.finish()
        except BaseException as error:
            self.abort(error)
            raise
        self._close_progress()
        self._may_be_visible = True
        try:
            listed = self._places[0].publish(schema, shards)
        except CommitUnknown:
            raise
        except SmaltiError as error:  # it is certain that nothing names the shards
            self._may_be_visible = False
            self.abort(error)
            raise
        for place in self._places[1:]:
            place.publish(schema, shards)
        self._leave()
        return listed

    def abort(self, error: BaseException | None = None) -> None:
        """Stop, and remove what was stored; no-op once the set may be visible.

        Args:
            error: what the write fails with; it gets a note of what could not be removed.
        """
        self._close_progress()
        if self._may_be_visible:
            return
        left = self._uploader.abort()
        if not left:
            self._leave()
        elif error is not None and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"{len(left)} objects could not be removed; no set names them: {left[0]} and others")

    def _leave(self) -> None:
        if os.getpid() == self._pid:  # in a forked process the marks belong to the parent
            for place in self._places:
                place.leave()

    def _close_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None
