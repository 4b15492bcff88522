"""Samples to shards in a store; publishes nothing: what it returns becomes visible when somebody commits it.

Shards that are sealed and put on threads while the writer goes on: bounded, checked, and none forgotten.

Intended behaviour; anything else is a bug:
1. At most `max_workers` shards are under way; a further one blocks the writer, so memory is bounded.
2. A put counts when the store has it with its full size, asked for afterwards: stores have taken empty bodies before.
3. The first failure is told at once through `on_failure`, and raised by the next `put` or `drain` and every one after.
4. Every wait ends: a put has the store's deadlines, and waiting for a shard has `timeout_seconds` on top.
5. `drain` gives the shards in the order in which they were put, however their threads overtook each other.
6. A call that is interrupted, anywhere, leaves a queue that has failed: no shard is forgotten by one who goes on.
7. A fork's copy stores, deletes and waits for nothing: the shards on their way are its parent's.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from smalti.errors import SchemaError, SmaltiError, StoreAuthError, StoreError, StoreTimeout
from smalti.format import FilledShard, ShardInfo
from smalti.format.encodings.encoding import Int64s
from smalti.format.hashing import Buffer
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

Put = Callable[[str, bytes | memoryview], None]


@dataclass(frozen=True)
class UploadOptions:
    """How shards travel."""

    max_workers: int = 4
    """Shards hashed, compressed and uploaded at the same time; each is in memory."""
    attempts: int = 2
    """Tries per object and store, on top of the retries of the store itself."""
    timeout_seconds: float = 900.0
    """Longest wait for one shard to be stored."""
    hash_rows: bool = False
    """Whether the row hash of what is written is summed up meanwhile, on the threads: 0.2 microseconds a sample."""
    is_synced: bool = True
    """False if somebody calls `sync` of the stores for every object before anybody counts on it."""


@dataclass(frozen=True)
class Destination:
    """Where the shards of one writer go."""

    stores: tuple[Store, ...]
    """One or more, which all get the same objects."""
    prefix: str = ""
    """The folder for them, which no other writer may use; empty for the root."""
    partition: str | None = None
    """The split that the shards belong to; the prefix should then start with it."""

    def place(self, info: ShardInfo) -> ShardInfo:
        """The shard as it lies there."""
        return replace(info.with_prefix(self.prefix), partition=self.partition)


class UploadQueue:
    """Shards on their way into one destination; used by one thread."""

    def __init__(
        self,
        destination: Destination,
        options: UploadOptions,
        *,
        on_failure: Callable[[], None] | None = None,
        on_stored: Callable[[ShardInfo], None] | None = None,
    ) -> None:
        """Start no thread yet.

        Args:
            destination: Where the shards go.
            options: How many at a time, and how patiently.
            on_failure: Called once, on the failing thread, as soon as a shard has failed for good.
            on_stored: Called on its thread with every shard that the stores have whole.
        """
        self._destination = destination
        self._options = options
        self._on_failure = on_failure
        self._on_stored = on_stored
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[Future[ShardInfo]] = deque()
        self._stored: list[ShardInfo] = []
        self._row_hash = 0
        self._lock = threading.Lock()
        self._keys: list[str] = []
        self._failure: BaseException | None = None
        self._cancelled = threading.Event()
        self._pid = os.getpid()

    def put(self, shard: FilledShard) -> None:
        """Have the shard sealed and stored soon; blocks while too many are under way.

        Raises:
            StoreError: This or an earlier shard failed, or does not end.
            SmaltiError: This is a fork's copy.
        """
        self._check_process()
        try:
            while self._running and (self._running[0].done() or len(self._running) >= self._options.max_workers):
                self._settle()
            self.raise_failure()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._options.max_workers, thread_name_prefix="smalti-upload")
            self._running.append(self._pool.submit(self._store, [shard]))
        except Exception as error:  # such as a thread that cannot be started: this shard is lost
            self._fail(error)
            raise

    def drain(self) -> list[ShardInfo]:
        """Every shard, in order, when all of them are stored.

        Raises:
            StoreError: One failed, or does not end.
            SmaltiError: This is a fork's copy.
        """
        self._check_process()
        while self._running:
            self._settle()
        self.raise_failure()
        self._close()
        return list(self._stored)

    @property
    def row_hash(self) -> int | None:
        """The sum of the hashes of the samples stored so far; None if they are not hashed."""
        return self._row_hash if self._options.hash_rows else None

    def cancel(self) -> tuple[str, ...]:
        """Stop, wait for what runs, and delete what was put; returns the addresses that could not be deleted."""
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
            self._failure = None  # told already: what comes now is a use after the end
        stores = self._destination.stores
        return tuple(store.locate(key) for store in stores for key in keys if not _deleted(store, key))

    def raise_failure(self) -> None:
        """Return only if no shard has failed so far."""
        if self._failure is not None:
            raise self._failure

    def note(self, error: BaseException) -> None:
        """Have every further call fail if `error` is an interrupt: what a call had in its hands then is lost."""
        if not isinstance(error, Exception):  # those are refusals, or known here already
            text = "this writer was interrupted, and a sample or a shard would be missing; make a new one, write again."
            self._fail(ValueError(text))

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise SmaltiError(
                "this writer was made before a fork, and its shards are on their way in the parent process; make a "
                "writer in each process, and publish what they wrote together with `smalti.merge_index`."
            )

    def _settle(self) -> None:
        future = self._running[0]  # still there if the wait is interrupted: then it is `cancel` that waits for it
        is_done = bool(wait([future], timeout=self._options.timeout_seconds).done)
        self._running.popleft()
        if not is_done:
            place = self._destination.stores[0].locate(self._destination.prefix)
            self._fail(
                StoreTimeout(
                    f"{place}: a shard was not stored within {self._options.timeout_seconds} s; look at the store and "
                    "the network, and write again.",
                    key=self._destination.prefix,
                )
            )
        elif not future.cancelled() and future.exception() is None:
            self._stored.append(future.result())
        self.raise_failure()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        if self._on_failure is not None:
            self._on_failure()

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _store(self, holder: list[FilledShard]) -> ShardInfo:
        try:
            filled = holder.pop()  # popped, so that the unfinished form is free once there is the finished one
            row_hash = filled.row_hash() if self._options.hash_rows else 0
            built = filled.seal()
            del filled
            info = self._destination.place(built.info)
            for file, payload in zip(info.stored_files, built.payloads, strict=True):
                with self._lock:
                    self._keys.append(file.basename)
                for store in self._destination.stores:
                    self._put(store, file.basename, payload)
            with self._lock:
                self._row_hash += row_hash
            if self._on_stored is not None and not self._cancelled.is_set():
                self._on_stored(info)
            return info
        except BaseException as error:
            self._fail(error)
            raise

    def _put(self, store: Store, key: str, data: Buffer) -> None:
        put = store.put if self._options.is_synced else store.put_unsynced
        for attempt in range(1, self._options.attempts + 1):
            if self._cancelled.is_set():
                return
            try:
                _put_checked(put, store, key, data)
                return
            except StoreAuthError:
                raise
            except StoreError:
                if attempt == self._options.attempts:
                    raise


def _put_checked(put: Put, store: Store, key: str, data: Buffer) -> None:
    put(key, bytes(data) if isinstance(data, bytearray) else data)
    found = store.size(key)
    if found != len(data):
        raise StoreError(
            f"{store.locate(key)}: put {len(data)} bytes, and the store has {found}; it did not take the whole object. "
            "Write again; if it happens again, look at the store.",
            key=key,
            expected=len(data),
            found=found,
        )


def _deleted(store: Store, key: str) -> bool:
    try:
        store.delete(key)
    except StoreError:
        return False
    return True


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

    def write_encoded(self, lengths: Int64s, data: memoryview) -> None:
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
