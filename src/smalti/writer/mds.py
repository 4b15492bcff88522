"""`MDSWriter`, with the interface that MosaicML's users know; a border: it makes options and hands over."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from smalti.catalog import Draft, Manifest, new_write_id, publish
from smalti.catalog.publishing import check_target
from smalti.errors import CommitConflict, DatasetExists
from smalti.format import Schema, ShardOptions
from smalti.storage import Store, open_store
from smalti.writer.queue import UploadOptions
from smalti.writer.uploader import ShardUploader

if TYPE_CHECKING:
    import pyarrow as pa

Place = str | Path


class MDSWriter:
    """Writes one version of a shard set; used by one thread.

        with MDSWriter(out="s3://bucket/set", columns={"image": "jpeg", "label": "int"}) as writer:
            writer.write({"image": data, "label": 3})

    The version becomes visible when the block ends well, all at once. When the block raises, nothing is published and
    what had been uploaded is deleted.
    """

    def __init__(  # noqa: PLR0913 - MosaicML's names and defaults, so that a notebook moves over unchanged
        self,
        *,
        columns: Mapping[str, str],
        out: Place | tuple[Place, Place],
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
    ) -> None:
        """Check the options, and that `out` can take the version.

        Args:
            columns: Name to encoding, such as `{"image": "jpeg", "label": "int"}`.
            out: A local folder or a URL; or both as (local, remote).
            keep_local: With (local, remote), whether the set is written to the local folder as well.
            compression: `"zstd"`, `"zstd:1"` ... `"zstd:22"`, or None.
            hashes: Checksums to record for every file; None means xxh3_64, an empty list none at all.
            size_limit: Largest shard before compression, in bytes or as `"64mb"`; None for a single shard.
            exist_ok: Whether a set that is there already is replaced: by a new version, the old ones stay readable.
            max_workers: Uploads at the same time, each with its shard in memory; by default one per core and 4 more,
                at most 8.
            retry: Tries per upload, at least 1.
            progress_bar: Accepted because MosaicML's writer takes it; nothing is shown.
            storage_options: For the file system of the URL.
            metadata: Kept with the version; JSON.

        Raises:
            SchemaError: A column or an option that cannot be used.
            DatasetExists: There is a set already and `exist_ok` is not given, or it is not one of Smalti's.
            StoreError: `out` cannot be read.
        """
        if progress_bar:
            warnings.warn("`progress_bar` shows nothing in Smalti; drop it", UserWarning, stacklevel=2)
        if retry < 1:
            raise ValueError(f"`retry` is the number of tries, at least 1, found {retry}")
        self.write_id = new_write_id()
        self.manifest: Manifest | None = None
        """What was published; None before."""
        self._schema = Schema.from_columns(columns)
        self._metadata = dict(metadata or {})
        self._mode: Literal["create", "overwrite"] = "overwrite" if exist_ok else "create"
        self._stores = _open_stores(out, keep_local=keep_local, options=storage_options)
        for store in self._stores:
            check_target(store, self._mode)
        chosen = ShardOptions(compression, ("xxh3_64",) if hashes is None else tuple(hashes), size_limit)
        self._uploader = ShardUploader(
            self._stores[0],
            f"{self.write_id}/0",
            self._schema,
            chosen,
            uploads=UploadOptions(max_workers or min(8, (os.cpu_count() or 1) + 4), attempts=retry),
            mirrors=self._stores[1:],
        )

    def write(self, sample: Mapping[str, Any]) -> None:
        """Take one sample in: exactly the columns of the set.

        Raises:
            SchemaError: The sample does not fit; it was not taken in.
            StoreError: An upload failed.
            ValueError: Finished already.
        """
        self._uploader.write(sample)

    def write_batch(self, batch: "pa.RecordBatch") -> None:
        """Take every row of an Arrow batch in, column by column; otherwise as `write`."""
        self._uploader.write_batch(batch)

    def finish(self) -> Manifest:
        """Upload the rest and publish the version; leaving the `with` block does it.

        Raises:
            StoreError: An upload failed; nothing was published, and what had been uploaded was deleted.
            CommitConflict: Somebody else published first; as above.
            CommitUnknown: The store stopped answering while publishing; nothing was deleted.
        """
        try:
            shards = self._uploader.finish()
        except BaseException:
            self._abort(None)
            raise
        draft = Draft(write_id=self.write_id, schema=self._schema, shards=tuple(shards), metadata=self._metadata)
        try:
            self.manifest = publish(self._stores[0], draft, mode=self._mode)
        except (CommitConflict, DatasetExists) as error:
            # Only these say for sure that no version names our shards.
            self._abort(error)
            raise
        for store in self._stores[1:]:
            publish(store, draft, mode=self._mode)
        return self.manifest

    def __enter__(self) -> "MDSWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort(error)
        elif self.manifest is None:
            self.finish()

    def _abort(self, error: BaseException | None) -> None:
        left = self._uploader.abort()
        if left and error is not None and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"{len(left)} uploaded objects could not be deleted; no version names them: {left[0]} ...")


def _open_stores(
    out: Place | tuple[Place, Place], *, keep_local: bool, options: Mapping[str, Any] | None
) -> tuple[Store, ...]:
    if not isinstance(out, tuple):
        return (open_store(out, options),)
    local, remote = out
    stores = [open_store(remote, options)]
    if keep_local:
        stores.append(open_store(local))
    return tuple(stores)
