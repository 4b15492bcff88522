"""The writers: `MDSWriter`, with MosaicML's interface, and `VersionWriter`, its life cycle up to publication.

A subclass of `VersionWriter` provides the builder of shards and the options.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from smalti.attributes import Replaceable
from smalti.catalog import Draft, Manifest, new_write_id, publish
from smalti.catalog.manifest import row_hash_text
from smalti.catalog.next_version import check_append
from smalti.catalog.publishing import MODES, Mode, check_target
from smalti.catalog.retention import markers
from smalti.errors import ArgumentError, CatalogError, CommitUnknown, SchemaError, SmaltiError
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.redaction import hide_options
from smalti.storage import Store, open_store
from smalti.writer.progress import UploadProgress
from smalti.writer.uploader import SampleBuilder, ShardUploader, UploadOptions

if TYPE_CHECKING:
    import pyarrow as pa

Location = str | Path
Writer = TypeVar("Writer", bound="VersionWriter")


@dataclass(frozen=True)
class WriterOptions:
    """The options that all writers share, with the names and meanings of the arguments of `MDSWriter`."""

    out: Location | tuple[Location, Location]
    keep_local: bool = False
    exist_ok: bool = False
    max_workers: int | None = None
    retry: int = 2
    progress_bar: bool = False
    storage_options: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    row_hash: bool = False
    mode: Mode | None = None

    def __post_init__(self) -> None:
        hide_options(self)

    def chosen_mode(self) -> Mode:
        """Return the mode that `mode` and `exist_ok` name.

        Raises:
            ValueError: the mode is unknown, or contradicts another option.
        """
        if self.mode is None:
            return "overwrite" if self.exist_ok else "create"
        if self.mode not in MODES:
            raise ArgumentError(f"`mode` is {self.mode!r}, expected one of {', '.join(MODES)}")
        if self.exist_ok and self.mode != "overwrite":
            raise ArgumentError(
                f'`exist_ok=True` is MosaicML\'s name for mode="overwrite", found mode="{self.mode}" beside it; leave '
                "`exist_ok` out"
            )
        if self.mode == "append" and self.keep_local and isinstance(self.out, tuple):
            raise ArgumentError(
                '`keep_local=True` cannot be given with mode="append": the local folder would get the new samples '
                "alone, or after others than the remote set has. Append to the remote set alone"
            )
        return self.mode

    def uploads(self) -> UploadOptions:
        """Return the options of the uploader.

        Raises:
            ValueError: `retry` or `max_workers` is below 1.
        """
        if self.retry < 1:
            raise ArgumentError(f"`retry` is the number of tries, at least 1, found {self.retry}")
        if self.max_workers is not None and self.max_workers < 1:
            raise ArgumentError(f"`max_workers` is the number of threads, at least 1, found {self.max_workers}")
        workers = self.max_workers or min(8, (os.cpu_count() or 1) + 4)
        return UploadOptions(workers, attempts=self.retry, hash_rows=self.row_hash)

    def stores(self) -> tuple[Store, ...]:
        """Return the stores to write to; the first one decides whether the version is published.

        Raises:
            StoreError: a URL cannot be opened.
        """
        if not isinstance(self.out, tuple):
            return (open_store(self.out, self.storage_options),)
        local, remote = self.out
        stores = [open_store(remote, self.storage_options)]
        if self.keep_local:
            stores.append(open_store(local))
        return tuple(stores)


class VersionWriter:
    """A writer of one version of a shard set, used by one thread; the base of the writers, which provide the builder.

    The version is published all at once when the `with` block ends without an error. If the block raises, nothing is
    published and the uploaded shards are deleted, unless `finish` was called in the block, which cannot be undone.
    """

    def __init__(self, schema: Schema, builder: SampleBuilder, options: WriterOptions) -> None:
        """Check the options, and that the version can be published at `options.out`.

        Raises:
            DatasetExists: there is a set already and the mode is `create`, or Smalti did not write the set.
            SchemaError: the mode is `append`, and the set has other columns.
            StoreError: `out` cannot be read.
            ValueError: an option is invalid.
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
        self._may_be_published = False  # from the start of publishing on: the shards must not be deleted then
        self._uploader = ShardUploader(
            self._stores[0],
            f"{self._write_id}/0",
            builder,
            uploads=uploads,
            mirrors=self._stores[1:],
            on_stored=self._progress.add if self._progress else None,
        )
        if type(self).write is VersionWriter.write:  # no call in between, which takes a tenth of the time of a sample
            vars(self)["write"] = self._uploader.write

    @Replaceable
    def write_id(self) -> str:
        """The write id, which names this write before and after it is published."""
        return self._write_id

    @Replaceable
    def manifest(self) -> Manifest | None:
        """The published version; None before."""
        return self._published

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add one sample, which has exactly the columns of the set.

        Raises:
            SchemaError: the sample does not match the schema; it was not added.
            StoreError: an upload failed.
            ValueError: the writer was finished.
        """
        self._uploader.write(sample)

    def write_batch(self, batch: "pa.RecordBatch | pa.Table") -> None:
        """Add every row of an Arrow batch or table, column by column; otherwise as `write`.

        Tables are added batch by batch, and batches of more than 64 MiB in parts, so that memory is bounded.

        Raises:
            SchemaError: a row does not match the schema; no row of its batch or part was added.
        """
        self._uploader.write_batch(batch)

    def abort(self) -> None:
        """Stop, and delete what was uploaded; nothing is published. A no-op once publishing has begun."""
        self._abort(SmaltiError())

    def finish(self) -> Manifest:
        """Upload the last shards and publish the version. Leaving the `with` block calls it.

        Raises:
            StoreError: an upload failed; nothing was published, and the uploaded shards were deleted.
            CommitConflict: another writer published first; as above. Appends are retried, 30 times at most.
            DatasetExists: another writer has created a set there, and the mode is `create`; as above.
            SchemaError: another writer has replaced the set to append to by one with other columns; as above.
            CommitUnknown: the store stopped answering while publishing; nothing was deleted.
            ValueError: the writer was finished already; the published version stays.
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
        self._may_be_published = True
        try:
            self._published = publish(self._stores[0], draft, mode=self._mode)
        except CommitUnknown:
            raise
        except (CatalogError, SchemaError) as error:
            # After these errors it is certain that no version references the shards.
            self._may_be_published = False
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
        left = () if self._may_be_published else self._uploader.abort()
        if not left and not self._may_be_published:
            self._end_marker()
        self._close_progress()
        if left and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"{len(left)} uploaded objects could not be deleted; no version names them: {left[0]} ...")

    def _end_marker(self) -> None:
        if os.getpid() == self._pid:  # in a forked process the marker belongs to the parent
            for store in self._stores:
                markers.end(store, self._write_id)

    def _close_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None


class MDSWriter(VersionWriter):
    """A writer of one version of a shard set in MDS. Not thread-safe: used by one thread.

    The version is published all at once when the block ends without an error. If the block raises, nothing is
    published and the uploaded shards are deleted.

    Threads hash, compress and upload shards while the next one is filled. Memory holds at most `max_workers` shards
    that are being uploaded, one that waits and one that is being filled, plus up to 64 MiB of a batch that is being
    added. A shard that is being uploaded counts twice if it is compressed or the store is remote.

    Args:
        columns: Name to encoding, such as `{"image": "jpeg", "label": "int"}`.
        out: A local folder or a URL; or both as (local, remote).
        keep_local: With (local, remote), whether the set is written to the local folder as well.
        compression: `"zstd"`, `"zstd:1"` ... `"zstd:22"`, another algorithm of MDS, or None; `"auto"` is zstd for
            each shard that it makes at least a tenth smaller.
        hashes: Checksums to record for every file; None means xxh3_64, an empty list none at all.
        size_limit: Largest shard before compression, in bytes or as `"64mb"`; None for a single shard.
        exist_ok: MosaicML's name for `mode="overwrite"`.
        max_workers: Shards that are hashed, compressed and uploaded at the same time, each in memory; by default
            the number of cores plus 4, at most 8.
        retry: Attempts per upload, at least 1.
        progress_bar: Whether to show stored shards and bytes on the error stream.
        storage_options: For the file system of the URL.
        metadata: Kept with the version; JSON.
        allow_unsafe_types: Whether columns may be `pkl`, whose values can run code when they are read.
        row_hash: Whether the version records the hash of its samples, independent of order and shards, with which
            `verify`, `diff` and `compact` compare them; about 0.2 microseconds per sample.
        mode: `"create"`, the default, if there must be no set yet; `"overwrite"` or `"append"` to publish a new
            version of a set, or create it. Earlier versions stay readable. An append needs the columns of the
            set; concurrent appends are all added.

    Raises:
        SchemaError: a column or option is invalid, or `append` to a set with other columns.
        DatasetExists: there is a set already and the mode is `create`, or Smalti did not write the set.
        StoreError: `out` cannot be read.
        ValueError: `retry` or `max_workers` is below 1, or the mode is unknown or contradicts `exist_ok` or
            `keep_local`.

    Examples:
        >>> with MDSWriter(out="s3://bucket/set", columns={"text": "str", "label": "int"}) as writer:
        ...     writer.write({"text": "a cat", "label": 3})
        >>> smalti.open_dataset("s3://bucket/set")[0]
        {'label': 3, 'text': 'a cat'}
    """

    def __init__(  # noqa: PLR0913 - MosaicML's names and defaults, so that notebooks need no changes
        self,
        *,
        columns: Mapping[str, str],
        out: Location | tuple[Location, Location],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        exist_ok: bool = False,
        max_workers: int | None = None,
        retry: int = 2,
        progress_bar: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        allow_unsafe_types: bool = False,
        row_hash: bool = False,
        mode: Mode | None = None,
    ) -> None:
        schema = Schema.from_columns(columns, allow_unsafe_types=allow_unsafe_types)
        chosen = ShardOptions(compression, ("xxh3_64",) if hashes is None else tuple(hashes), size_limit)
        builder = ShardBuilder(schema, chosen, allow_unsafe_types=allow_unsafe_types)
        options = WriterOptions(
            out, keep_local, exist_ok, max_workers, retry, progress_bar, storage_options, metadata, row_hash, mode
        )
        super().__init__(schema, builder, options)
