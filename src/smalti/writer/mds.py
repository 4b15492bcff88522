"""`MDSWriter`, with the interface that MosaicML's users know; a border: it makes options and hands over."""

from collections.abc import Mapping, Sequence
from typing import Any

from smalti.catalog.publishing.publish import Mode
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.writer.version import Place, VersionWriter, WriterOptions


class MDSWriter(VersionWriter):
    """Writes one version of a shard set; used by one thread.

        with MDSWriter(out="s3://bucket/set", columns={"image": "jpeg", "label": "int"}) as writer:
            writer.write({"image": data, "label": 3})

    The version becomes visible when the block ends well, all at once. When the block raises, nothing is published and
    what had been uploaded is deleted.

    Shards are hashed, compressed and stored on threads while the next one fills. In memory are at most `max_workers`
    shards on their way, one that waits for its turn and one being filled, and while a batch is taken in up to 64 MiB of
    it more. A shard on its way counts twice where it is compressed or goes to a remote store.
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
        allow_unsafe_types: bool = False,
        row_hash: bool = False,
        mode: Mode | None = None,
    ) -> None:
        """Check the options, and that `out` can take the version.

        Args:
            columns: Name to encoding, such as `{"image": "jpeg", "label": "int"}`.
            out: A local folder or a URL; or both as (local, remote).
            keep_local: With (local, remote), whether the set is written to the local folder as well.
            compression: `"zstd"`, `"zstd:1"` ... `"zstd:22"`, another algorithm of MDS, or None.
            hashes: Checksums to record for every file; None means xxh3_64, an empty list none at all.
            size_limit: Largest shard before compression, in bytes or as `"64mb"`; None for a single shard.
            exist_ok: MosaicML's name for `mode="overwrite"`.
            max_workers: Shards hashed, compressed and uploaded at the same time, each in memory; by default one per
                core and 4 more, at most 8.
            retry: Tries per upload, at least 1.
            progress_bar: Whether stored shards and bytes are counted on the error stream.
            storage_options: For the file system of the URL.
            metadata: Kept with the version; JSON.
            allow_unsafe_types: Whether columns may be `pkl`, whose values run code when they are read.
            row_hash: Whether the version says which samples it has, in whatever order and shards, so that `verify`,
                `diff` and `compact` can compare them; some 0.2 microseconds a sample.
            mode: `"create"` a set where there is none, the default; `"overwrite"` or `"append"` to one by a new
                version, or create it. Earlier versions stay readable. An append needs the columns of the set; of
                several at the same time each one's samples are added.

        Raises:
            SchemaError: A column or an option that cannot be used, or `append` to a set with other columns.
            DatasetExists: There is a set already and the mode is `create`, or it is not one of Smalti's.
            StoreError: `out` cannot be read.
            ValueError: `retry` or `max_workers` below 1, no such mode, or one that `exist_ok` or `keep_local`
                contradicts.
        """
        schema = Schema.from_columns(columns, allow_unsafe_types=allow_unsafe_types)
        chosen = ShardOptions(compression, ("xxh3_64",) if hashes is None else tuple(hashes), size_limit)
        builder = ShardBuilder(schema, chosen, allow_unsafe_types=allow_unsafe_types)
        options = WriterOptions(
            out, keep_local, exist_ok, max_workers, retry, progress_bar, storage_options, metadata, row_hash, mode
        )
        super().__init__(schema, builder, options)
