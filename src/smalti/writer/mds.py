"""`MDSWriter`, with the interface of MosaicML's writer. It only builds the options for `VersionWriter`."""

from collections.abc import Mapping, Sequence
from typing import Any

from smalti.catalog.publishing.publish import Mode
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.writer.version import Place, VersionWriter, WriterOptions


class MDSWriter(VersionWriter):
    """A writer of one version of a shard set in MDS. Not thread-safe: used by one thread.

        with MDSWriter(out="s3://bucket/set", columns={"image": "jpeg", "label": "int"}) as writer:
            writer.write({"image": data, "label": 3})

    The version is published all at once when the block ends without an error. If the block raises, nothing is
    published and the uploaded shards are deleted.

    Threads hash, compress and upload shards while the next one is filled. Memory holds at most `max_workers` shards
    that are being uploaded, one that waits and one that is being filled, plus up to 64 MiB of a batch that is being
    added. A shard that is being uploaded counts twice if it is compressed or the store is remote.
    """

    def __init__(  # noqa: PLR0913 - MosaicML's names and defaults, so that notebooks need no changes
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
        allow_unsafe_types: bool = False,
        row_hash: bool = False,
        mode: Mode | None = None,
    ) -> None:
        """Check the options, and that the version can be published at `out`.

        Args:
            columns: Name to encoding, such as `{"image": "jpeg", "label": "int"}`.
            out: A local folder or a URL; or both as (local, remote).
            keep_local: With (local, remote), whether the set is written to the local folder as well.
            compression: `"zstd"`, `"zstd:1"` ... `"zstd:22"`, another algorithm of MDS, or None.
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
        """
        schema = Schema.from_columns(columns, allow_unsafe_types=allow_unsafe_types)
        chosen = ShardOptions(compression, ("xxh3_64",) if hashes is None else tuple(hashes), size_limit)
        builder = ShardBuilder(schema, chosen, allow_unsafe_types=allow_unsafe_types)
        options = WriterOptions(
            out, keep_local, exist_ok, max_workers, retry, progress_bar, storage_options, metadata, row_hash, mode
        )
        super().__init__(schema, builder, options)
