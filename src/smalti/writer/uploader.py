"""Samples to shards in a store; publishes nothing: what it returns becomes visible when somebody commits it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from smalti.errors import SchemaError
from smalti.format import FilledShard, ShardInfo
from smalti.format.sealing import Lengths
from smalti.storage import Store
from smalti.writer.queue import Destination, UploadOptions, UploadQueue

if TYPE_CHECKING:
    import pyarrow as pa


_PART_BYTES = 1 << 26


class SampleBuilder(Protocol):
    """What cuts samples into shards: `ShardBuilder`, or the builder of a text format."""

    def add(self, sample: Mapping[str, Any], /) -> Sequence[FilledShard]:
        """Take one sample in, and return the shards that were completed."""

    def add_batch(self, batch: "pa.RecordBatch", /) -> Sequence[FilledShard]:
        """Take every row of a batch in, and return the shards that were completed."""

    def finish(self) -> Sequence[FilledShard]:
        """The last shards."""


class ShardUploader:
    """Fills shards, and has them sealed and put below a prefix on threads meanwhile; used by one thread.

    In memory are at most `uploads.max_workers` shards on their way, one that waits for its turn and one being filled,
    and while a batch is taken in up to 64 MiB of it more. After any error but SchemaError call `abort`: the uploader is
    of no further use.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        builder: SampleBuilder,
        *,
        partition: str | None = None,
        uploads: UploadOptions | None = None,
        mirrors: Sequence[Store] = (),
        on_stored: Callable[[ShardInfo], None] | None = None,
    ) -> None:
        """Start empty; the store is first used when a shard is full.

        Args:
            store: Where the shards go.
            prefix: The folder for them, which no other writer may use; empty for the root.
            builder: What makes shards of samples; nobody else uses it.
            partition: The split that the shards belong to; the prefix should then start with it.
            uploads: How many at a time, and how patiently.
            mirrors: Further stores that get the same objects.
            on_stored: Called, on some thread, with every shard that is in the stores.
        """
        self._builder: SampleBuilder | None = builder
        destination = Destination((store, *mirrors), prefix, partition)
        self._queue = UploadQueue(destination, uploads or UploadOptions(), on_failure=self._shut, on_stored=on_stored)
        # Looked up once, and replaced when there is something to say instead: a sample costs no further checks.
        self._add = builder.add
        self._add_batch = builder.add_batch
        self._add_encoded = getattr(builder, "add_encoded", self._refuse_encoded)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Take one sample in; blocks while too many shards are on their way.

        Raises:
            SchemaError: The sample does not fit; it was not taken in.
            StoreError: A shard could not be stored, this one's or an earlier one.
            ValueError: Finished or aborted already.
        """
        try:
            for shard in self._add(sample):
                self._queue.put(shard)
        except BaseException as error:
            self._queue.note(error)
            raise

    def write_encoded(self, lengths: Lengths, data: memoryview) -> None:
        """Take samples in as they lie in a shard of the same schema; see `ShardBuilder.add_encoded`.

        Raises:
            SchemaError: They do not fit, or the shards are text, which cannot be put together so.
            StoreError: A shard could not be stored, this one's or an earlier one.
            ValueError: Finished or aborted already.
        """
        try:
            for shard in self._add_encoded(lengths, data):
                self._queue.put(shard)
        except BaseException as error:
            self._queue.note(error)
            raise

    def write_batch(self, batch: "pa.RecordBatch | pa.Table") -> None:
        """Take every row of an Arrow batch or table in, column by column; otherwise as `write`.

        A table is taken batch by batch, and a batch of more than 64 MiB in parts, so that memory stays bounded.

        Raises:
            SchemaError: A row does not fit; nothing was taken in of the batch or part with that row.
        """
        try:
            for part in _parts(batch):
                for shard in self._add_batch(part):
                    self._queue.put(shard)
        except BaseException as error:
            self._queue.note(error)
            raise

    def finish(self) -> list[ShardInfo]:
        """Every shard, in order, with its files below the prefix; all of them are in the store, whole.

        Raises:
            StoreError: A shard could not be stored.
            ValueError: Finished or aborted already.
        """
        if self._builder is None or self._add == self._refuse:
            self._refuse()
        try:
            for shard in self._builder.finish():
                self._queue.put(shard)
            shards = self._queue.drain()
        except BaseException as error:
            self._queue.note(error)
            raise
        self._shut()
        self._builder = None  # it holds memory
        return shards

    @property
    def row_hash(self) -> int | None:
        """The sum of the hashes of all samples (`catalog.row_hash`), after `finish`; None if they are not hashed."""
        return self._queue.row_hash

    def abort(self) -> tuple[str, ...]:
        """Stop and delete what was uploaded; the addresses that could not be deleted. Harmless after another abort.

        Also after `finish`, as long as nobody has committed the shards.
        """
        self._shut()
        self._builder = None
        return self._queue.cancel()

    def _shut(self) -> None:
        self._add = self._add_batch = self._add_encoded = self._refuse

    @staticmethod
    def _refuse_encoded(*_: object) -> NoReturn:
        raise SchemaError("shards of text are put together from samples alone; write the samples one by one")

    def _refuse(self, *_: object) -> NoReturn:
        self._queue.raise_failure()
        raise ValueError("this writer was finished or aborted; make a new one")


def _parts(batch: "pa.RecordBatch | pa.Table") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    if isinstance(batch, pa.Table):
        for piece in batch.to_batches():
            yield from _parts(piece)
    elif isinstance(batch, pa.RecordBatch):
        rows = max(1, batch.num_rows * _PART_BYTES // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, rows):
            yield batch.slice(begin, rows)
    else:
        raise SchemaError(
            f"expected a pyarrow.RecordBatch or Table, found {type(batch).__name__}; `pyarrow.table(columns)` makes "
            "one of a dict of columns."
        )
