"""The copying of samples as they are stored into new shards below one write id, which compaction and deletion share.

1. Each shard is verified while it is read, and its samples are copied as stored; nothing is decoded. Memory is bounded
   by the shards that are being uploaded.
2. The row hash of the written samples must be that of the samples that were read and are to stay.
3. The tables of added columns and of source files are stored beside the shards.
4. The version is published in place of the newest; if others publish in the meantime, it is built again. What was
   written is removed if no version may name it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from smalti.catalog import Draft, Manifest, load_manifest, new_write_id
from smalti.catalog.publishing import replace_content
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import (
    ColumnsEntry,
    SourceRecord,
    read_source_record,
    sources_of,
    store_columns,
    store_sources,
)
from smalti.catalog.verify import open_checked
from smalti.errors import CatalogError, CommitConflict
from smalti.format import ShardInfo, ShardOptions, ShardPacker
from smalti.format.hashing import MODULUS
from smalti.format.writing.sealing import AUTOMATIC
from smalti.storage import Store
from smalti.writer.uploader import ShardUploader, UploadOptions

_PUBLISH_ATTEMPTS = 10  # when others publish at the same time


@dataclass
class ShardCopier:
    """The copying of samples from shards into new shards below one write id."""

    store: Store
    on_shard: Callable[[], None] = lambda: None
    """Called after each shard that was read."""
    write_id: str = field(default_factory=new_write_id)
    _uploaders: list[ShardUploader] = field(default_factory=list)
    _tables: set[str] = field(default_factory=set)

    def copy(
        self, shards: Sequence[ShardInfo], name: str, limit: int | None, stays: NDArray[np.bool_] | None = None
    ) -> tuple[list[ShardInfo], int]:
        """Copy the samples of these shards, of one split and form, into full shards of at most `limit` bytes.

        With `stays`, bool, shape (samples,), only these of the only shard are copied.

        Returns:
            The new shards, and the sum of the hashes of the samples that do not stay.

        Raises:
            CatalogError: the written samples are not those that were read and stay.
            ChecksumMismatch: a shard is damaged.
            StoreError: a shard could not be read or stored.
        """
        first = shards[0]
        compression = first.compression if len({shard.compression for shard in shards}) == 1 else AUTOMATIC
        prefix = f"{self.write_id}/{name}"
        options = ShardOptions(compression, first.hash_names, limit, first.unlisted_hashes)
        uploader = ShardUploader(
            self.store,
            prefix if first.partition is None else f"{first.partition}/{prefix}",
            ShardPacker(first.layout or first.schema, options),  # of the same columns, format and hashes
            partition=first.partition,
            uploads=UploadOptions(hash_rows=True),
        )
        self._uploaders.append(uploader)
        num_read = hash_read = hash_removed = 0
        for shard in shards:
            with open_checked(self.store, shard) as opened:
                samples = opened.stored_samples()
                mask = np.ones(len(samples), bool) if stays is None else stays
                num_read += int(mask.sum())
                hash_read += samples.row_hash()
                hash_removed += sum(samples[begin:end].row_hash() for begin, end in _spans(~mask))
                for begin, end in _spans(mask):
                    part = samples[begin:end]
                    uploader.write_encoded(part.lengths, part.content)
                    del part
                del samples
            self.on_shard()
        made = uploader.finish()
        written = sum(shard.samples for shard in made), (uploader.row_hash or 0) % MODULUS
        if written != (num_read, (hash_read - hash_removed) % MODULUS):
            others = f" and the {len(shards) - 1} shards after it" if len(shards) > 1 else ""
            raise CatalogError(
                f"{self.store.locate(prefix)}: the samples that were written are not those that were read from "
                f"{first.raw.basename}{others} and should stay; nothing was published. This is a fault of Smalti or of "
                "this machine's memory"
            )
        return made, hash_removed % MODULUS

    def store_tables(
        self,
        sources: SourceRecord | None,
        entries: Sequence[ColumnsEntry],
        rows: Sequence[Sequence[ShardInfo]],
    ) -> tuple[Mapping[str, Any], ...]:
        """Store the tables of source files and of added columns, and return their entries.

        `rows` has the shards of the new version, and then those of each addition of columns.
        """
        found: list[Mapping[str, Any]] = []
        if sources is not None:
            self.key_of("sources")
            found.append(store_sources(self.store, sources, self.write_id))
        for row, entry in enumerate(entries, 1):
            key = self.key_of(f"columns-{row}")
            found.append(store_columns(self.store, key, rows[row], entry.columns, entry.logical).to_json())
        return tuple(found)

    def key_of(self, table: str) -> str:
        """Return the key of a table beside the shards, which `abort` removes too."""
        key = f"{self.write_id}/{table}.arrow"
        self._tables.add(key)
        return key

    def publish(
        self,
        base: Manifest,
        draft_of: Callable[[Manifest], tuple[Draft, tuple[Mapping[str, Any], ...]] | None],
        *,
        operation: Literal["compact", "delete"],
    ) -> Manifest | None:
        """Publish copies in place of the shards of `base`, or of a version that others published in the meantime.

        The marker of the write stays: the caller ends it.

        Args:
            base: The newest version.
            draft_of: Returns the draft that replaces a version, with the records of deletions, and copies for it what
                is not copied yet; None if nothing has to be replaced.
            operation: What the version says that it was made by.

        Returns:
            The new version, or None if `draft_of` returned None.

        Raises:
            CommitConflict: others kept publishing; nothing is visible.
            Otherwise: as for `replace_content` and `draft_of`.
        """
        markers.begin(self.store, self.write_id)
        newest: Manifest | None = base
        for _ in range(_PUBLISH_ATTEMPTS):
            try:
                newest = load_manifest(self.store) if newest is None else newest
                made = draft_of(newest)
                if made is None:
                    self.abort()
                    return None
            except BaseException:
                self.abort()
                raise
            try:  # after any fault but a conflict a version may name the shards; if not, a vacuum removes them
                draft, erased = made
                return replace_content(self.store, draft, based_on=newest.version, operation=operation, erased=erased)
            except CommitConflict:
                newest = None
        self.abort()
        what = "compaction" if operation == "compact" else "deletion"
        raise CommitConflict(
            f"{self.store.url}: a {what} was overtaken {_PUBLISH_ATTEMPTS} times; nothing of it is visible"
        )

    def abort(self) -> None:
        """Remove the written shards and tables, and the marker if nothing is left."""
        remaining = [key for uploader in self._uploaders for key in uploader.abort()]
        if markers.remove_written(self.store, self._tables) and not remaining:
            markers.end(self.store, self.write_id)


def source_record(store: Store, manifest: Manifest) -> SourceRecord | None:
    """Return the record of the source files of a version; None if there is none."""
    entry = sources_of(manifest.sidecars)
    return None if entry is None else read_source_record(store, entry, manifest.shards)


def _spans(chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the half-open ranges of consecutive true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
