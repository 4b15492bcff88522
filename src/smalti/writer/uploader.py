"""Samples to shards in a store; publishes nothing: what it returns becomes visible when somebody commits it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smalti.format import BuiltShard, Schema, ShardBuilder, ShardInfo, ShardOptions
from smalti.storage import Store
from smalti.writer.queue import UploadOptions, UploadQueue

if TYPE_CHECKING:
    import pyarrow as pa


class ShardUploader:
    """Builds shards and puts them below a prefix while the next one fills; used by one thread.

    After any error call `abort`: the uploader is of no further use.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        schema: Schema,
        options: ShardOptions,
        *,
        partition: str | None = None,
        uploads: UploadOptions | None = None,
        mirrors: Sequence[Store] = (),
    ) -> None:
        """Check the options; the store is first used when a shard is full.

        Args:
            store: Where the shards go.
            prefix: The folder for them, which no other writer may use; empty for the root.
            schema: The columns.
            options: Compression, hashes, shard size.
            partition: The split that the shards belong to; the prefix should then start with it.
            uploads: How many at a time, and how patiently.
            mirrors: Further stores that get the same objects.

        Raises:
            SchemaError: An option or encoding that cannot be used.
        """
        self._prefix = prefix
        self._partition = partition
        self._builder = ShardBuilder(schema, options)
        self._queue = UploadQueue((store, *mirrors), uploads or UploadOptions())
        self._shards: list[ShardInfo] = []
        self._is_open = True

    def write(self, sample: Mapping[str, Any]) -> None:
        """Take one sample in; blocks while too many shards are on their way.

        Raises:
            SchemaError: The sample does not fit; it was not taken in.
            StoreError: An upload failed.
            ValueError: Finished or aborted already.
        """
        self._check_open()
        self._send(self._builder.add(sample))

    def write_batch(self, batch: "pa.RecordBatch") -> None:
        """Take every row of an Arrow batch in, column by column; otherwise as `write`."""
        self._check_open()
        self._send(self._builder.add_batch(batch))

    def finish(self) -> list[ShardInfo]:
        """Every shard, in order, with its files below the prefix; all of them are in the store, whole.

        Raises:
            StoreError: An upload failed.
            ValueError: Finished or aborted already.
        """
        self._check_open()
        self._send(self._builder.finish())
        self._queue.drain()
        self._is_open = False
        return list(self._shards)

    def abort(self) -> tuple[str, ...]:
        """Stop and delete what was uploaded; the addresses that could not be deleted. Harmless after another abort.

        Also after `finish`, as long as nobody has committed the shards.
        """
        self._is_open = False
        return self._queue.cancel()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError("this writer was finished or aborted; make a new one")

    def _send(self, built: Iterable[BuiltShard]) -> None:
        for shard in built:
            info = replace(shard.info.with_prefix(self._prefix), partition=self._partition)
            self._queue.put(info.stored.basename, shard.payload)
            self._shards.append(info)
