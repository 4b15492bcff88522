"""`ShardUploader`: samples are cut into shards, which threads seal and upload. It publishes nothing.

The uploaded shards become visible when the caller publishes a version with them.

Intended behaviour of the uploads; anything else is a bug:
1. At most `max_workers` shards are being sealed and uploaded; a further one blocks the writer, so memory is bounded.
2. After each put the size of the object is checked: some stores acknowledge objects and keep empty ones.
3. From the first failure on no sample is taken: it is raised by every later call.
4. Every wait ends: a put has the store's deadlines, and waiting for a shard has `timeout_seconds` on top.
5. `finish` returns the shards in the order in which they were put, whatever the order in which the threads finish.
6. A call that is interrupted, at any point, leaves a failed uploader, so that no shard can be missing unnoticed.
7. A copy of the uploader in a forked process does nothing: the shards belong to the parent process.
8. The block lists of the shards are put together in their order, so that their places do not depend on the threads;
   a file of them is put when it is large enough, and at the end.
"""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from smalti.catalog.commit import put_and_check
from smalti.errors import ClosedError, SchemaError, SmaltiError, StoreAuthError, StoreError, StoreTimeout
from smalti.format import FilledShard, ShardBuilder, ShardInfo, ShardPacker, place_lists
from smalti.format.encodings.encoding import Int64s
from smalti.format.hashing import Buffer
from smalti.format.writing.rows import RowBlock
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_FILE_BYTES = 8 << 20
"""Block lists that are kept in memory and stored as one file: those of a thousand shards of usual size."""
_BATCH_BYTES = 1 << 26  # larger Arrow batches are added in parts of this size


@dataclass(frozen=True)
class UploadOptions:
    """Limits of the uploads of one writer."""

    max_workers: int = 4
    """Shards hashed, compressed and uploaded at the same time; each is in memory."""
    attempts: int = 2
    """Attempts per object and store, on top of the retries of the store itself."""
    timeout_seconds: float = 900.0
    """Longest wait for one shard to be stored, seconds."""
    hash_rows: bool = False
    """True if the threads also compute the row hash of the samples: 0.2 microseconds per sample."""
    is_synced: bool = True
    """True if a put makes the object durable; if False, the caller must call `sync` of the stores for each object."""


class SampleBuilder(Protocol):
    """The interface of shard builders, which cut samples into shards, as `ShardBuilder` does."""

    def add(self, sample: Mapping[str, Any], /) -> Sequence[FilledShard]:
        """Add one sample, and return the completed shards."""

    def add_batch(self, batch: "pa.RecordBatch", /) -> Sequence[FilledShard]:
        """Add every row of a batch, and return the completed shards."""

    def finish(self) -> Sequence[FilledShard]:
        """Return the last shards."""


class NoSamples:
    """A builder for writers that get whole shards (`ShardUploader.write_shard`): it refuses samples."""

    def add(self, _: Any) -> NoReturn:
        """Refuse the sample.

        Raises:
            SchemaError: Always.
        """
        raise SchemaError("this writer takes whole shards; give samples to the one that fills them.")

    add_batch = add

    def finish(self) -> Sequence[FilledShard]:
        """Return no shards."""
        return ()


class ShardUploader:
    """A writer of shards below a prefix, which threads seal and upload. Not thread-safe: used by one thread.

    Memory holds at most `uploads.max_workers` shards that are being uploaded, one that waits and one that is being
    filled, plus up to 64 MiB of a batch that is being added. After any error but SchemaError the uploader cannot be
    used any more; call `abort`.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        builder: SampleBuilder | ShardPacker,
        *,
        partition: str | None = None,
        uploads: UploadOptions | None = None,
        mirrors: Sequence[Store] = (),
        on_stored: Callable[[ShardInfo], None] | None = None,
    ) -> None:
        """Create an empty uploader; threads and the store are first used when a shard is full.

        Args:
            store: The store of the shards.
            prefix: The folder for them, which no other writer may use; empty for the root.
            builder: Cuts the samples into shards; it must not be shared.
            partition: The split that the shards belong to; the prefix should then start with it.
            uploads: Concurrency, attempts and timeouts.
            mirrors: Further stores that get the same objects.
            on_stored: Called, on an uploading thread, with every shard that is in all stores.
        """
        self._builder: SampleBuilder | ShardPacker | None = builder
        self._stores = (store, *mirrors)
        self._prefix = prefix
        self._partition = partition
        self._options = uploads or UploadOptions()
        self._on_stored = on_stored
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[Future[tuple[ShardInfo, bytes | None]]] = deque()
        """Shards that are not stored yet; each becomes the shard and its block list, which is stored later."""
        self._stored: list[ShardInfo] = []
        self._block_lists: list[tuple[int, bytes]] = []
        self._num_block_files = self._num_block_list_bytes = 0
        self._row_hash = 0
        self._lock = threading.Lock()
        self._keys: list[str] = []
        self._failure: BaseException | None = None
        self._cancelled = threading.Event()
        self._pid = os.getpid()
        # Bound methods that are replaced by `_refuse` at the end, so that adding a sample needs no state check.
        self._add = getattr(builder, "add", self._refuse_values)
        self._add_batch = getattr(builder, "add_batch", self._refuse_values)
        self._add_encoded = getattr(builder, "add_encoded", self._refuse_encoded)
        self.write: Callable[[Mapping[str, Any]], None] = self._write
        """Add one sample; blocks while too many shards are being uploaded. Errors are those of `write_batch`.

        A function of the builder where it has one, without a call in between: a call takes a tenth of the time.
        """
        self._rows: RowBlock | None = None
        if type(builder) is ShardBuilder:  # a subclass may add samples otherwise
            self._rows = builder.row_writer(self._put, self._record_interrupt)
            self.write = self._rows.write

    def _write(self, sample: Mapping[str, Any]) -> None:
        self._put_filled(self._add, sample)

    def write_encoded(self, lengths: Int64s, data: memoryview) -> None:
        """Add samples as stored in a shard of the same schema; see `ShardBuilder.add_encoded`.

        Raises:
            SchemaError: they do not match the schema, or the builder cannot add encoded samples.
            StoreError: a shard could not be stored.
            ValueError: the uploader was finished or aborted.
        """
        self._put_filled(self._add_encoded, lengths, data)

    def write_batch(self, batch: "pa.RecordBatch | pa.Table") -> None:
        """Add every row of an Arrow batch or table; see `VersionWriter.write_batch`.

        Raises:
            SchemaError: a row does not match the schema; no row of its part was added.
            StoreError: a shard could not be stored, or an earlier one exceeded `timeout_seconds`.
            ValueError: the uploader was finished or aborted.
            SmaltiError: the uploader was made before a fork, in the parent process.
        """
        self._put_filled(lambda: (shard for part in _parts(batch) for shard in self._add_batch(part)))

    def write_shard(self, shard: FilledShard) -> None:
        """Add a shard that the caller has filled, after the shards that are complete by now; otherwise as `write`.

        Its name must be unique among the shards of this uploader.
        """
        if self._add == self._refuse:
            self._refuse()
        self._put_filled(lambda: (shard,))

    def finish(self) -> list[ShardInfo]:
        """Upload the last shards, wait for all, and return every shard in order, with its keys in the store.

        Raises:
            StoreError: a shard could not be stored.
            ValueError: the uploader was finished or aborted.
        """
        if self._builder is None or self._add == self._refuse:
            self._refuse()
        self._put_filled(self._builder.finish)
        try:
            self._check_process()
            while self._running:
                self._settle()
            self._raise_failure()
            self._put_block_lists()
        except BaseException as error:
            self._record_interrupt(error)
            raise
        self._close()
        self._builder = None  # it holds memory
        return list(self._stored)

    @property
    def row_hash(self) -> int | None:
        """Sum of the hashes of all samples, valid after `finish`; None if they are not hashed. See `row_hash_text`."""
        return self._row_hash if self._options.hash_rows else None

    def abort(self) -> tuple[str, ...]:
        """Stop, wait for running uploads, delete what was stored, and return the addresses that were not deleted.

        Idempotent. It may also be called after `finish`, as long as no version with the shards was published.
        """
        self._refuse_samples()
        self._builder = None
        if os.getpid() != self._pid:
            return ()
        self._cancelled.set()
        for future in self._running:
            future.cancel()
        wait(self._running, timeout=self._options.timeout_seconds)
        self._running.clear()
        self._close()
        with self._lock:
            keys, self._keys = self._keys, []
            self._failure = None  # raised already; later calls are a use after the end
        left = []
        for store, key in itertools.product(self._stores, keys):
            try:
                store.delete(key)
            except StoreError:  # noqa: PERF203 - the others are deleted
                left.append(store.locate(key))
        return tuple(left)

    def _close(self) -> None:
        self._refuse_samples()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _refuse_samples(self) -> None:
        self._add = self._add_batch = self._add_encoded = self._refuse
        if self._rows is not None:
            self._rows.close(self._refuse)

    @staticmethod
    def _refuse_values(*_: object) -> NoReturn:
        raise SchemaError("this builder takes samples as they are stored; write the values with a `ShardBuilder`")

    @staticmethod
    def _refuse_encoded(*_: object) -> NoReturn:
        raise SchemaError("this builder cannot add encoded samples; write the samples one by one")

    def _refuse(self, *_: object) -> NoReturn:
        self._raise_failure()
        raise ClosedError("this writer was finished or aborted; make a new one")

    def _put_filled(self, fill: Callable[..., Iterable[FilledShard]], *samples: Any) -> None:
        """Submit the shards that these samples fill."""
        try:
            for shard in fill(*samples):
                self._put(shard)
        except BaseException as error:
            self._record_interrupt(error)
            raise

    def _record_interrupt(self, error: BaseException) -> None:
        """Mark the uploader as failed if `error` is an interrupt: the call may have lost a sample or a shard."""
        if not isinstance(error, Exception):  # exceptions are refused samples, or failures that are recorded already
            text = "this writer was interrupted, and a sample or a shard would be missing; make a new one, write again."
            self._fail(ValueError(text))

    def _put(self, shard: FilledShard) -> None:
        """Submit a shard; blocks while too many are being uploaded."""
        self._check_process()
        try:
            while self._running and (self._running[0].done() or len(self._running) >= self._options.max_workers):
                self._settle()
            self._raise_failure()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._options.max_workers, thread_name_prefix="smalti-upload")
            self._running.append(self._pool.submit(self._store, [shard]))
        except Exception as error:  # such as a thread that cannot be started: this shard would be missing
            self._fail(error)
            raise

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise SmaltiError(
                "this writer was made before a fork, and the parent process uploads its shards; create a writer in "
                "each process, and publish what they wrote together with `smalti.merge_index`."
            )

    def _settle(self) -> None:
        """Wait for the first of the running shards."""
        future = self._running[0]  # stays in the queue if the wait is interrupted, for `abort` to wait for it
        is_done = bool(wait([future], timeout=self._options.timeout_seconds).done)
        self._running.popleft()
        if not is_done:
            self._fail(
                StoreTimeout(
                    f"{self._stores[0].locate(self._prefix)}: a shard was not stored within "
                    f"{self._options.timeout_seconds} s; look at the store and the network, and write again.",
                    key=self._prefix,
                )
            )
        elif not future.cancelled() and future.exception() is None:
            info, block_hashes = future.result()
            if block_hashes is not None:
                self._block_lists.append((len(self._stored), block_hashes))
                self._num_block_list_bytes += len(block_hashes)
            self._stored.append(info)
            if self._num_block_list_bytes >= _BLOCK_FILE_BYTES:
                self._put_block_lists()
        self._raise_failure()

    def _put_block_lists(self) -> None:
        """Store the lists so far as one file, and note their places in the shards."""
        if not self._block_lists:
            return
        name = f"{self._prefix}/blocks.{self._num_block_files:05}.xxh3".removeprefix("/")
        lists = [hashes for _, hashes in self._block_lists]
        try:
            self._put_object(name, b"".join(lists), is_synced=True)
        except Exception as error:  # on the writer's thread: `finish` and `_put_filled` record the others
            self._fail(error)
            raise
        for (place, _), found in zip(self._block_lists, place_lists(lists, name), strict=True):
            self._stored[place] = replace(self._stored[place], blocks=found)
        self._block_lists, self._num_block_list_bytes = [], 0
        self._num_block_files += 1

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        self._refuse_samples()

    def _store(self, holder: list[FilledShard]) -> tuple[ShardInfo, bytes | None]:
        """Seal and store a shard, on a thread of the pool; return it as placed, and its block list."""
        try:
            filled = holder.pop()  # popped, so that the unsealed shard is freed as soon as the sealed one exists
            row_hash = filled.row_hash() if self._options.hash_rows else 0
            built = filled.seal()
            del filled
            info = replace(built.info.with_prefix(self._prefix), partition=self._partition)
            for file, payload in zip(info.stored_files, built.payloads, strict=True):
                self._put_object(file.basename, payload, is_synced=self._options.is_synced)
            with self._lock:
                self._row_hash += row_hash
            if self._on_stored is not None and not self._cancelled.is_set():
                self._on_stored(info)
            return info, built.block_hashes
        except BaseException as error:
            self._fail(error)
            raise

    def _put_object(self, key: str, data: Buffer, *, is_synced: bool) -> None:
        """Put an object into every store."""
        with self._lock:
            self._keys.append(key)
        for store in self._stores:
            content = bytes(data) if isinstance(data, bytearray) else data
            put = partial(store.put if is_synced else store.put_unsynced, key, content)
            for attempt in range(1, self._options.attempts + 1):
                if self._cancelled.is_set():
                    return
                try:
                    put_and_check(put, store, key, len(data), attempts=1, error=StoreError)
                    break
                except StoreAuthError:
                    raise
                except StoreError:
                    if attempt == self._options.attempts:
                        raise


def _parts(batch: "pa.RecordBatch | pa.Table") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    if isinstance(batch, pa.Table):
        for piece in batch.to_batches():
            yield from _parts(piece)
    elif isinstance(batch, pa.RecordBatch):
        rows = max(1, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, rows):
            yield batch.slice(begin, rows)
    else:
        raise SchemaError(
            f"expected a pyarrow.RecordBatch or Table, found {type(batch).__name__}; `pyarrow.table(columns)` makes "
            "one of a dict of columns."
        )
