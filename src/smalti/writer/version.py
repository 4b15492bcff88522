"""One version of a shard set, from the first sample to its publication; what every writer of a format shares."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from smalti.attributes import Replaceable
from smalti.catalog import Draft, Manifest, new_write_id, publish
from smalti.catalog.manifest import row_hash_text
from smalti.catalog.publishing.next_version import check_append
from smalti.catalog.publishing.publish import MODES, Mode, check_target
from smalti.catalog.retention import markers
from smalti.errors import CatalogError, CommitUnknown, SchemaError
from smalti.format import Schema
from smalti.storage import Store, open_store
from smalti.writer.progress import UploadProgress
from smalti.writer.uploader import SampleBuilder, ShardUploader, UploadOptions

if TYPE_CHECKING:
    import pyarrow as pa

Place = str | Path
Writer = TypeVar("Writer", bound="VersionWriter")


@dataclass(frozen=True)
class WriterOptions:
    """Where a writer's version goes, and how; the arguments that MosaicML's writers share, and Smalti's own."""

    out: Place | tuple[Place, Place]
    """A local folder or a URL; or both as (local, remote)."""
    keep_local: bool = False
    """With (local, remote), whether the set is written to the local folder as well."""
    exist_ok: bool = False
    """MosaicML's name for `mode="overwrite"`."""
    max_workers: int | None = None
    """Shards hashed, compressed and uploaded at the same time, each in memory; by default one per core and 4 more, at
    most 8."""
    retry: int = 2
    """Tries per upload, at least 1."""
    progress_bar: bool = False
    """Whether stored shards and bytes are counted on the error stream."""
    storage_options: Mapping[str, Any] | None = None
    """For the file system of the URL."""
    metadata: Mapping[str, Any] | None = None
    """Kept with the version; JSON."""
    row_hash: bool = False
    """Whether the version gets a row hash; it costs some 0.2 microseconds a sample."""
    mode: Mode | None = None
    """Whether to `create` a set where there is none, or to `overwrite` or `append` to one by a new version; by default
    what `exist_ok` says."""

    def chosen_mode(self) -> Mode:
        """Return the mode that `mode` and `exist_ok` name.

        Raises:
            ValueError: There is no such mode, or it contradicts another option.
        """
        if self.mode is None:
            return "overwrite" if self.exist_ok else "create"
        if self.mode not in MODES:
            raise ValueError(f"`mode` is {self.mode!r}, expected one of {', '.join(MODES)}")
        if self.exist_ok and self.mode != "overwrite":
            raise ValueError(
                f'`exist_ok=True` is MosaicML\'s name for mode="overwrite", found mode="{self.mode}" beside it; leave '
                "`exist_ok` out"
            )
        if self.mode == "append" and self.keep_local and isinstance(self.out, tuple):
            raise ValueError(
                '`keep_local=True` cannot be given with mode="append": the local folder would get the new samples '
                "alone, or after others than the remote set has. Append to the remote set alone"
            )
        return self.mode

    def uploads(self) -> UploadOptions:
        """The part that the uploader takes.

        Raises:
            ValueError: A number below 1.
        """
        if self.retry < 1:
            raise ValueError(f"`retry` is the number of tries, at least 1, found {self.retry}")
        if self.max_workers is not None and self.max_workers < 1:
            raise ValueError(f"`max_workers` is the number of threads, at least 1, found {self.max_workers}")
        workers = self.max_workers or min(8, (os.cpu_count() or 1) + 4)
        return UploadOptions(workers, attempts=self.retry, hash_rows=self.row_hash)

    def stores(self) -> tuple[Store, ...]:
        """The stores to write to, the one that decides first.

        Raises:
            StoreError: A URL that cannot be opened.
        """
        if not isinstance(self.out, tuple):
            return (open_store(self.out, self.storage_options),)
        local, remote = self.out
        stores = [open_store(remote, self.storage_options)]
        if self.keep_local:
            stores.append(open_store(local))
        return tuple(stores)


class VersionWriter:
    """Writes one version of a shard set; used by one thread. The base of the writers, each of which brings a builder.

    The version becomes visible when the `with` block ends well, all at once. When the block raises, nothing is
    published and what had been uploaded is deleted; unless `finish` was called in it, which cannot be undone.
    """

    def __init__(self, schema: Schema, builder: SampleBuilder, options: WriterOptions) -> None:
        """Check the options, and that `options.out` can take the version.

        Raises:
            DatasetExists: There is a set already and the mode is `create`, or it is not one of Smalti's.
            SchemaError: The mode is `append`, and the set has other columns.
            StoreError: `out` cannot be read.
            ValueError: An option that cannot be used.
        """
        uploads = options.uploads()
        self._mode = options.chosen_mode()
        self._write_id = new_write_id()
        self._published: Manifest | None = None
        self._pid = os.getpid()
        self._schema = schema
        self._metadata = dict(options.metadata or {})
        self._stores = options.stores()
        for store in self._stores:
            newest = check_target(store, self._mode).header
            if newest is not None and self._mode == "append":
                check_append(store, newest, schema)
        for store in self._stores:
            markers.begin(store, self._write_id)
        self._progress = UploadProgress() if options.progress_bar else None
        self._may_be_named = False  # once publishing has begun a version may name our shards: they are not deleted
        self._uploader = ShardUploader(
            self._stores[0],
            f"{self._write_id}/0",
            builder,
            uploads=uploads,
            mirrors=self._stores[1:],
            on_stored=self._progress.add if self._progress else None,
        )

    @Replaceable
    def write_id(self) -> str:
        """Name of what is written, before and after it is published."""
        return self._write_id

    @Replaceable
    def manifest(self) -> Manifest | None:
        """What was published; None before."""
        return self._published

    def write(self, sample: Mapping[str, Any]) -> None:
        """Take one sample in: exactly the columns of the set.

        Raises:
            SchemaError: The sample does not fit; it was not taken in.
            StoreError: An upload failed.
            ValueError: Finished already.
        """
        self._uploader.write(sample)

    def write_batch(self, batch: "pa.RecordBatch | pa.Table") -> None:
        """Take every row of an Arrow batch or table in, column by column; otherwise as `write`.

        A table is taken batch by batch, and a batch of more than 64 MiB in parts, so that memory stays bounded.

        Raises:
            SchemaError: A row does not fit; nothing was taken in of the batch or part with that row.
        """
        self._uploader.write_batch(batch)

    def finish(self) -> Manifest:
        """Upload the rest and publish the version; leaving the `with` block does it.

        Raises:
            StoreError: An upload failed; nothing was published, and what had been uploaded was deleted.
            CommitConflict: Somebody else published first; as above. An append is tried again before, 30 times at most.
            DatasetExists: Somebody else has made a set there, and the mode is `create`; as above.
            SchemaError: Somebody else has replaced the set to append to by one with other columns; as above.
            CommitUnknown: The store stopped answering while publishing; nothing was deleted.
            ValueError: Finished already; what was published stays.
        """
        try:
            shards = self._uploader.finish()
        except BaseException as error:
            self._abort(error)
            raise
        self._close_progress()
        draft = Draft(
            write_id=self._write_id,
            schema=self._schema,
            shards=tuple(shards),
            metadata=self._metadata,
            row_hash="" if self._uploader.row_hash is None else row_hash_text(self._uploader.row_hash),
        )
        self._may_be_named = True
        try:
            self._published = publish(self._stores[0], draft, mode=self._mode)
        except CommitUnknown:
            raise
        except (CatalogError, SchemaError) as error:
            # These say for sure that no version names our shards.
            self._may_be_named = False
            self._abort(error)
            raise
        for store in self._stores[1:]:
            publish(store, draft, mode=self._mode)
        self._end_marker()
        return self._published

    def __enter__(self: Writer) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort(error)
        elif self._published is None:
            self.finish()

    def _abort(self, error: BaseException) -> None:
        left = () if self._may_be_named else self._uploader.abort()
        if not left and not self._may_be_named:
            self._end_marker()
        self._close_progress()
        if left and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"{len(left)} uploaded objects could not be deleted; no version names them: {left[0]} ...")

    def _end_marker(self) -> None:
        for store in self._stores if os.getpid() == self._pid else ():  # a fork's copy ends nothing of its parent's
            markers.end(store, self._write_id)

    def _close_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None
