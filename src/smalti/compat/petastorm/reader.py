"""make_batch_reader and BatchReader: the rows of Parquet files as batches, in Smalti's order, resumable and elastic.

Here: Petastorm's arguments turned into option objects, and the refused make_reader; the default order, which depends
only on the sizes of row groups and keeps few of them open at once; reading ahead in threads; the reader itself. Not
here: decoding of row groups and rows (`reading`).
"""

import logging
import os
import threading
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from smalti.attributes import check_choice, whole_number, whole_or_none
from smalti.compat.petastorm.errors import NoDataAvailableError
from smalti.compat.petastorm.reading.parquet import UNISCHEMA_KEY, ParquetSet, open_set
from smalti.compat.petastorm.reading.rows import Columns, DiskCache, ReaderOptions, RowReader, kept_rows, taken
from smalti.compat.petastorm.transform import TransformSpec, transform_of
from smalti.compat.petastorm.unischema import Unischema, UnischemaField, chosen_columns
from smalti.conversion.sources.parquet import read_footer
from smalti.cursor import MAX_BLOCK, MAX_CANONICAL_NODES, MAX_SEED, Cursor, MixedStream, mapping
from smalti.dataset import DEFAULT_SEED
from smalti.dataset.order import Pass, Planned, Reading, RunOrder
from smalti.dataset.resume import at_epoch, first_cursor, own_cursor, saved_cursor
from smalti.errors import CursorError, FormatError, SchemaError, SmaltiError, StoreNotFound, StoreTimeout, WorldMismatch
from smalti.order import TAILS, default_block_size, default_canonical_nodes, plan_epoch
from smalti.redaction import redact_address
from smalti.storage.retry import call_within
from smalti.world import World, detect_ranks

_OPEN_BYTES = 1 << 29
"""Bytes of row groups, by their footers, that a reader of all rows keeps open in the default order. A constant, because
the order must not depend on the machine."""


def _default_order(rows: RowReader, options: RunOrder) -> RunOrder:
    """Return the options completed by as many runs and as large windows as keep few row groups open.

    A run keeps open the row groups of its window and those at its borders: each of C runs takes about two row groups,
    and the windows share the rest of `_OPEN_BYTES`.
    """
    num_rows, num_groups = len(rows), int(np.count_nonzero(rows.sizes))
    nodes = options.num_canonical_nodes
    if nodes is None:
        limit = min(default_canonical_nodes(num_rows), num_groups, _OPEN_BYTES // (2 * rows.group_bytes))
        nodes = 1 << (max(1, limit).bit_length() - 1)
    block = options.shuffle_block_size
    if block is None:
        row_bytes = max(1, rows.group_bytes * num_groups // max(1, num_rows))
        left = max(rows.group_bytes * nodes, _OPEN_BYTES - 2 * nodes * rows.group_bytes)
        block = min(max(1, left // nodes // row_bytes), default_block_size(nodes))
    return replace(options, num_canonical_nodes=nodes, shuffle_block_size=block)


def _warn_about_repeated_reads(rows: RowReader, world: World, start: Cursor) -> None:
    """Warn if the order keeps more row groups open than `held_bytes` allows, so that they are read repeatedly."""
    nodes, block = start.canonical_nodes, start.block_size
    plan = plan_epoch(rows.sizes, seed=start.seed, epoch=0, canonical_nodes=nodes, shuffle_block_size=block)
    runs = len(plan.runs_of_host(world.host, world.num_hosts))
    mean_rows = max(1, len(rows) // max(1, int(np.count_nonzero(rows.sizes))))
    needed = min(len(rows.found.row_groups), runs * (block // mean_rows + 2)) * rows.group_bytes
    if needed > rows.options.held_bytes:
        warnings.warn(
            f"reading {rows.found.source.url} in this order keeps row groups of about {needed >> 20} MiB open, and "
            f"`held_bytes` allows {rows.options.held_bytes >> 20} MiB: row groups will be read several times. Allow "
            f"more, give `num_canonical_nodes` below {nodes} or `shuffle_block_size` below {block}, or write smaller "
            "row groups (`parquet_row_group_size_bytes`).",
            stacklevel=4,
        )


_log = logging.getLogger(__name__)
_STATE_KEY = "petastorm"
_ID_COLUMNS = ("_sample_id", "_position")
_GATHER_ROWS = 1024
"""Rows that are gathered at once without a transform: the cost of a gather hardly depends on the number of rows."""
_GATHER_BYTES = 1 << 23

_started_epochs: Counter[tuple[str, int, int]] = Counter()
"""Number of epochs started in this process, by data set and rank; a reader without a seed continues."""
_started_lock = threading.Lock()


class BatchReader:
    """Batches of rows, as namedtuples of numpy arrays; iterate it once for all its epochs, or again after `reset`.

    The order depends only on the files, the rows that are chosen, seed, epoch, runs and window: not on the world,
    threads or batch size. All ranks take equally many steps. `state_dict` is the position of the consumer.

    Raises:
        NoDataAvailableError: there are no rows.
        SchemaError: `include_ids` would overwrite a column.
    """

    batched_output = True
    """The reader yields batches, not single rows."""

    def __init__(self, rows: RowReader) -> None:
        options = rows.options
        if not len(rows):
            raise NoDataAvailableError(
                f"{rows.found.source.url}: no rows to read in {len(rows.found.row_groups)} row groups; check files, "
                "`predicate` and `filters`."
            )
        clashing = [name for name in _ID_COLUMNS if options.include_ids and name in rows.schema.fields]
        if clashing:
            raise SchemaError(
                f"{rows.found.source.url} has a column {clashing[0]!r}, and `include_ids=True` would overwrite it. "
                "Omit `include_ids`, or omit the column with `schema_fields`.",
                column=clashing[0],
            )
        self._rows, self._options = rows, options
        self.num_rows, self.num_rows_stored = len(rows), rows.found.num_rows
        """Rows of an epoch, over all ranks; and of the files, including those that a predicate filters out."""
        self.world = options.world
        """The world that divides an epoch."""
        self.where = rows.found.source.url
        """Address of the data set, without secrets."""
        self.num_epochs = options.num_epochs
        self.stopped = False
        self.last_row_consumed = False
        """True when all epochs were read completely."""
        self._fresh = first_cursor(
            _default_order(rows, options.order),
            options.world,
            [MixedStream(rows.digest, None, len(rows))],
            [rows.sizes],
        )
        self._adopted: Cursor | None = None
        self._base = options.first_epoch
        self._key = rows.digest, options.world.rank, options.world.num_ranks
        self._stream: Iterator[tuple[Reading, int, Columns]] | None = None
        self._taken: tuple[Reading, int] | None = None
        self._next: Cursor | None = None
        self._threads: ThreadPoolExecutor | None = None
        if options.order.shuffle:
            _warn_about_repeated_reads(rows, options.world, self._fresh)

    # ------------------------------------------------------------------ properties

    @cached_property
    def schema(self) -> Unischema:
        """Columns, after the transform."""
        ids = [UnischemaField(name, np.int64, ()) for name in _ID_COLUMNS if self._options.include_ids]
        return Unischema("batch", [*self._rows.schema.fields.values(), *ids])

    @property
    def batch_size(self) -> int:
        """Rows per rank and step."""
        return self._options.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch, equal on all ranks."""
        return self._reading(at_epoch(self._fresh, 0, [self._rows.sizes])).division.num_steps

    @property
    def diagnostics(self) -> dict[str, int]:
        """Row groups read so far, and their bytes in memory now and at most."""
        held = self._rows.held
        return {"row_groups_read": held.loads, "bytes_held": held.bytes_held, "most_bytes_held": held.most_held}

    def configure(self, *, batch_size: int | None = None, shuffle_rows_within: int = 0) -> None:
        """Set the options of a loader, before the first batch; at least `shuffle_rows_within` rows are mixed.

        Raises:
            RuntimeError: a batch was already read.
            ValueError: rows are to be mixed, but the reader does not shuffle.
        """
        if self._stream is not None:
            raise RuntimeError("this reader has already started: make the loader before the first batch is read.")
        order = self._options.order
        if shuffle_rows_within > 0 and not order.shuffle:
            raise ValueError(
                "`shuffling_queue_capacity` shuffles rows, but `shuffle_row_groups` is False: give "
                "shuffle_row_groups=True, which shuffles both, or set the capacity to 0."
            )
        if shuffle_rows_within > 0:
            block = max(order.shuffle_block_size or 0, self._fresh.block_size, shuffle_rows_within)
            order = replace(order, shuffle_block_size=block)
            self._fresh = replace(self._fresh, block_size=block)
        self._options = replace(self._options, batch_size=batch_size or self.batch_size, order=order)

    # ------------------------------------------------------------------ iteration

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next batch as a namedtuple.

        Raises:
            RuntimeError: the reader was stopped.
            SmaltiError: a file is missing, changed or damaged.
        """
        return self.schema.namedtuple(**self.next_batch())

    next = __next__
    """Petastorm's name for it."""

    def batches(self) -> Iterator[Columns]:
        """Yield the same batches as dicts of column name to array."""
        with suppress(StopIteration):
            while True:
                yield self.next_batch()

    def next_batch(self) -> Columns:
        """Return the next batch as a dict; raise StopIteration after the last epoch."""
        if self.stopped:
            raise RuntimeError("this reader was stopped, or its context was left: make a new one to continue.")
        if self._stream is None:
            self._stream = self._read()
        try:
            reading, step, batch = next(self._stream)
        except StopIteration:
            self.last_row_consumed = True
            raise
        self._taken = (reading, step)
        with _started_lock:
            _started_epochs[self._key] = max(_started_epochs[self._key], reading.this_pass.start.epoch + 1)
        return batch

    @property
    def has_begun(self) -> bool:
        """True if a batch was requested since the reader was created, reset, or given a state."""
        return self._stream is not None

    def current_reading(self) -> Reading:
        """Return what this rank reads of the current epoch, from the start of the iteration."""
        return self._taken[0] if self._taken else self._reading(self._start())

    def reset(self) -> None:
        """Restart the reader with the epochs after those that it has read.

        Raises:
            NotImplementedError: not all rows were read; `load_state_dict` can move to any position.
        """
        if not self.last_row_consumed:
            raise NotImplementedError(
                "a reader can be reset only after its last row; to move before that, use `load_state_dict` or make a "
                "new reader."
            )
        start = self._place()
        self._end_stream()
        self._next, self._base = start, start.epoch

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch taken: small, JSON-serialisable, equal on all ranks."""
        place = self._place()
        return place.to_state() | {_STATE_KEY: {"first_epoch": place.epoch if self._base is None else self._base}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved, on any world, with any batch size or number of threads.

        Raises:
            CursorError: the state is damaged, or was saved for other files, another selection of rows or another order.
        """
        own_state = mapping(state).get(_STATE_KEY)
        first = own_state.get("first_epoch") if isinstance(own_state, Mapping) else None
        if type(first) is not int or first < 0:
            raise CursorError(
                "saved state: expected 'first_epoch' of a Parquet reader, found none; give the result of "
                "`state_dict()` of a reader or loader of smalti.compat.petastorm."
            )
        saved = own_cursor(state)
        if saved.digest != self._fresh.digest:
            raise CursorError(
                f"cannot resume from this state: it was saved for Parquet files and rows with digest "
                f"{saved.digest[:12]}, and {self.where} has {self._fresh.digest[:12]}. Give the same files, predicate "
                "and filters; to start from the beginning, make a reader without loading a state.",
                saved=saved.digest,
                found=self._fresh.digest,
            )
        cursor = saved_cursor(saved, self._fresh, self._options.order, sizes=[self._rows.sizes])
        self._end_stream()
        self._next = self._adopted = cursor
        self._base = first

    def _place(self) -> Cursor:
        if self._taken is not None:
            reading, step = self._taken
            return reading.cursor_after(step + 1)
        return self._start()

    def _start(self) -> Cursor:
        if self._next is not None:
            return self._next
        if self._base is None:
            with _started_lock:
                self._base = _started_epochs[self._key]
        return at_epoch(self._adopted or self._fresh, self._base, [self._rows.sizes])

    # ------------------------------------------------------------------ reading

    def _reading(self, start: Cursor) -> Reading:
        return Reading(Pass(start, self.world), [self._rows.sizes], self.batch_size, self._options.order)

    def _planned(self) -> Iterator[tuple[Reading, list[Planned]]]:
        """Yield the steps of all epochs, as many together as are gathered at once."""
        start = self._start()
        base = start.epoch if self._base is None else self._base
        each, row_bytes = 1, max(1, sum(group.num_bytes for group in self._rows.found.row_groups) // self.num_rows)
        if self._options.transform is None or self._options.per_row_group:
            each = max(1, min(_GATHER_ROWS, _GATHER_BYTES // row_bytes) // self.batch_size)
        while self.num_epochs is None or start.epoch < base + self.num_epochs:
            reading = self._reading(start)
            for first in range(0, reading.division.num_steps, each):
                yield reading, reading.steps(first, first + each)
            start = start.next_epoch()
            if not reading.division.num_steps and self.num_epochs is None and not reading.division.start:
                raise NoDataAvailableError(
                    f"{self.where}: an epoch of {self.num_rows} rows has no whole step of {self.batch_size} rows for "
                    f"each of {self.world.num_ranks} ranks, and tail='drop' leaves out the "
                    "rest: the reader would never yield a batch."
                )

    def _read(self) -> Iterator[tuple[Reading, int, Columns]]:
        """Yield the batches in order; up to `num_ahead` further pieces of work run in threads meanwhile.

        An exception of a piece is raised in its turn. Without threads, the work is done in the caller's thread.

        Raises:
            SmaltiError: a piece was not finished within the timeout.
        """
        work, options = self._planned(), self._options
        if not options.num_threads:
            for piece in work:
                yield from self._gather(piece)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(options.num_threads, "smalti-parquet")
        pending: deque[Future[list[tuple[Reading, int, Columns]]]] = deque()
        try:
            while True:
                for piece in islice(work, options.num_ahead + 1 - len(pending)):
                    pending.append(self._threads.submit(self._gather, piece))
                if not pending:
                    return
                future = pending.popleft()
                try:
                    batches = future.result(options.timeout)
                except FutureTimeout as error:
                    if future.done():  # a TimeoutError of the work itself
                        raise
                    raise SmaltiError(
                        f"the next batch was not ready after {options.timeout:g} s: reading or transforming it takes "
                        "longer. Give the reader a longer `timeout`, or check for a transform or store that hangs.",
                        timeout=options.timeout,
                    ) from error
                yield from batches
        finally:
            for future in pending:
                future.cancel()

    def _gather(self, work: tuple[Reading, list[Planned]]) -> list[tuple[Reading, int, Columns]]:
        reading, steps = work
        ids = [ids for _, ids in steps]
        columns = self._rows.rows(np.concatenate(ids))
        if self._options.include_ids:
            positions = np.concatenate([step.positions for step, _ in steps])
            columns |= dict(zip(_ID_COLUMNS, (np.concatenate(ids), positions), strict=True))
        ends = np.cumsum([each.size for each in ids])
        begins = ends - [each.size for each in ids]
        return [
            (reading, step.step, taken(columns, slice(begin, end)))
            for (step, _), begin, end in zip(steps, begins.tolist(), ends.tolist(), strict=True)
        ]

    # ------------------------------------------------------------------ end

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()  # type: ignore[attr-defined]  # a generator
        self._stream, self._taken, self.last_row_consumed = None, None, False

    def stop(self) -> None:
        """Stop reading; a thread finishes its current row group first."""
        self.stopped = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait until no thread reads, for at most the reader's timeout, and free the row groups in memory."""
        if self._threads is not None:
            try:
                call_within(self._options.timeout, partial(self._threads.shutdown, cancel_futures=True))
            except StoreTimeout:
                _log.warning("%s: a thread still reads or transforms after %g s", self.where, self._options.timeout)
        self._rows.held.clear()

    def cleanup_cache(self) -> None:
        """Remove the cache on disk if `cache_extra_settings` requests it."""
        if self._options.cache is not None:
            self._options.cache.cleanup()

    def __enter__(self) -> "BatchReader":
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()
        self.join()
        self.cleanup_cache()


LOCAL_DISK_CACHE = "local-disk"
NULL_CACHE = "null"
Reader = BatchReader
"""Petastorm's name, for annotations and `isinstance`; `make_batch_reader` makes one."""
_HELD_BYTES = 1 << 30
_TIMEOUT_SECONDS = 600.0


def make_batch_reader(  # noqa: PLR0913, PLR0917 -- Petastorm's signature
    dataset_url_or_urls: str | Sequence[str],
    schema_fields: Sequence[str | UnischemaField] | None = None,
    reader_pool_type: str = "thread",
    workers_count: int = 4,
    results_queue_size: int | None = None,
    seed: int | None = None,
    shuffle_rows: bool | None = None,  # noqa: FBT001 -- Petastorm's signature, here and below
    shuffle_row_groups: bool = True,  # noqa: FBT001, FBT002
    shuffle_row_drop_partitions: int = 1,
    predicate: Any = None,
    rowgroup_selector: Any = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: int | None = None,
    cache_type: str | None = NULL_CACHE,
    cache_location: str | os.PathLike[str] | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: Mapping[str, Any] | None = None,
    hdfs_driver: str = "libhdfs",  # noqa: ARG001 -- accepted and ignored
    transform_spec: TransformSpec | None = None,
    filters: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    zmq_copy_buffers: bool = True,  # noqa: ARG001, FBT001, FBT002
    filesystem: Any = None,
    convert_early_to_numpy: bool = False,  # noqa: ARG001, FBT001, FBT002
    *,
    batch_size: int = 1024,
    tail: str | None = None,
    epoch: int | None = None,
    num_canonical_nodes: int | None = None,
    shuffle_block_size: int | None = None,
    transform_per: str = "batch",
    held_bytes: int = _HELD_BYTES,
    world: World | None = None,
    include_ids: bool = False,
    timeout: float = _TIMEOUT_SECONDS,
    file_wait_seconds: float = 0.0,
) -> BatchReader:
    """Return a reader of Parquet files in Smalti's `window` order, with row groups as shards.

    Petastorm's arguments come first, Smalti's from `batch_size` on. Footers, and the columns that `predicate` and
    `filters` use, are read at once; rows are read on demand.

    Args:
        dataset_url_or_urls: a folder, a file, or a list of files of one scheme.
        schema_fields: regular expressions, of which one must match the full name of a column, or UnischemaFields.
        reader_pool_type: `thread`, or `dummy` for the caller's own thread; `process` is treated as `thread`.
        workers_count: threads that read and transform.
        results_queue_size: pieces of work (a batch, or about a thousand small rows) to read ahead; by default
            twice the number of threads.
        seed: with one, each reader starts at epoch 0. Without one, the seed is a constant, and each reader of the same
            data in a process continues with the next epoch.
        shuffle_rows: whether to shuffle rows as well; by default if row groups are shuffled. False keeps the order of
            the rows within a row group.
        shuffle_row_groups: False reads in stored order.
        shuffle_row_drop_partitions: ignored: rows of many row groups are mixed anyway.
        predicate: a selection of rows, such as `in_lambda`; evaluated now, so that steps are counted exactly.
        rowgroup_selector: refused.
        num_epochs: None repeats without end.
        cur_shard: rank of this reader among `shard_count`; without both, all rows are read.
        shard_count: number of ranks that divide an epoch.
        shard_seed: ignored.
        cache_type: `local-disk` caches row groups as Arrow files.
        cache_location: folder of that cache.
        cache_size_limit: maximal bytes of that cache.
        cache_row_size_estimate: bytes of a row, to reject a limit that is too low.
        cache_extra_settings: `{"cleanup": True}` removes the folder when the reader's context is left.
        hdfs_driver: ignored: pyarrow uses libhdfs.
        transform_spec: a function on a pandas DataFrame of rows, and the columns of its result.
        filters: pyarrow's (column, operator, value), in a list, or a list of lists; applied exactly, to each row.
        storage_options: credentials and endpoint, as for `open_store`.
        zmq_copy_buffers: ignored.
        filesystem: a pyarrow file system, instead of `storage_options`.
        convert_early_to_numpy: ignored: threads make arrays anyway.
        batch_size: rows of a batch, per rank; a loader made from the reader sets its own.
        tail: an incomplete last step is left `short`, filled with repeats (`pad`) or left out (`drop`); by default
            `short`, and `pad` with `num_epochs=None`.
        epoch: the first epoch, from 0.
        num_canonical_nodes: number of runs that are interleaved; fewer keep fewer row groups open.
        shuffle_block_size: rows of a run that are mixed.
        transform_per: whether the transform gets a `batch`, or a `row_group`, whose result is cached.
        held_bytes: limit in bytes for row groups in memory.
        world: ranks and hosts, instead of `cur_shard` and `shard_count`.
        include_ids: add the columns `_sample_id`, the number of the row, and `_position`, its position in the order, -1
            for padding.
        timeout: seconds to wait for a batch.
        file_wait_seconds: how long to wait for listed files to appear.

    Raises:
        ValueError: an argument is out of range, or is not supported.
        WorldMismatch: `cur_shard` is not the rank that the launcher gave this process.
        StoreNotFound: there are no files.
        FormatError: a file is not a Parquet file, or is damaged.
        SchemaError: files have different columns, or a requested column does not exist.
        NoDataAvailableError: there are no rows.

    Examples:
        >>> with make_batch_reader("file:///data/rows.parquet", num_epochs=1, batch_size=5) as reader:
        ...     sum(len(batch.id) for batch in reader)
        10
    """
    check_choice("reader_pool_type", reader_pool_type, ("thread", "process", "dummy"))
    check_choice("cache_type", cache_type or NULL_CACHE, (NULL_CACHE, LOCAL_DISK_CACHE))
    if shuffle_rows and not shuffle_row_groups:
        raise ValueError(
            "shuffle_rows=True with shuffle_row_groups=False is not supported: give shuffle_row_groups=True, which "
            "shuffles both, or False for both."
        )
    if rowgroup_selector is not None:
        raise ValueError(
            "`rowgroup_selector` is not supported: its indexes are pickles. Use `filters`, which are exact and need "
            "no index."
        )
    workers_count = whole_number("workers_count", workers_count, 1, 1024)
    results_queue_size = whole_or_none("results_queue_size", results_queue_size, 1)
    seed = whole_or_none("seed", seed, 0, MAX_SEED)
    whole_or_none("shuffle_row_drop_partitions", shuffle_row_drop_partitions, 1)
    num_epochs = whole_or_none("num_epochs", num_epochs, 1)
    batch_size = whole_number("batch_size", batch_size, 1)
    epoch = whole_or_none("epoch", epoch, 0, 1 << 62)
    num_canonical_nodes = whole_or_none("num_canonical_nodes", num_canonical_nodes, 1, MAX_CANONICAL_NODES)
    shuffle_block_size = whole_or_none("shuffle_block_size", shuffle_block_size, 1, MAX_BLOCK)
    held_bytes = whole_number("held_bytes", held_bytes, 1)
    check_choice("tail", tail or "pad", TAILS)
    check_choice("transform_per", transform_per, ("batch", "row_group"))
    transform = None if transform_spec is None else transform_of(transform_spec)
    if world is not None and (cur_shard is not None or shard_count is not None):
        raise ValueError("give `cur_shard` and `shard_count`, or `world`, not both.")
    chosen = world or _chosen_world(cur_shard, shard_count)
    cache = None
    if cache_type == LOCAL_DISK_CACHE:
        removes_folder = bool((cache_extra_settings or {}).get("cleanup", False))
        cache = DiskCache(cache_location, cache_size_limit, cache_row_size_estimate, removes_folder=removes_folder)
    for name, is_used in (("shard_seed", shard_seed), ("reader_pool_type='process'", reader_pool_type == "process")):
        if is_used:
            _log.info("%s is ignored: see docs/petastorm.md", name)
    found = open_set(dataset_url_or_urls, storage_options, filesystem, wait_seconds=file_wait_seconds)
    _warn_about_codecs(found)
    columns = chosen_columns(found.schema.names, schema_fields)
    kept = kept_rows(found, predicate=predicate, filters=filters, num_threads=workers_count)
    threads = 0 if reader_pool_type == "dummy" else workers_count
    options = ReaderOptions(
        columns=tuple(columns),
        cache=cache,
        transform=transform,
        per_row_group=transform_per == "row_group",
        held_bytes=held_bytes,
        order=RunOrder(
            shuffle=shuffle_row_groups,
            seed=DEFAULT_SEED if seed is None else seed,
            num_canonical_nodes=num_canonical_nodes,
            shuffle_block_size=1 if shuffle_rows is False and shuffle_row_groups else shuffle_block_size,
            tail=tail or ("pad" if num_epochs is None else "short"),
        ),
        world=chosen,
        batch_size=batch_size,
        num_epochs=num_epochs,
        first_epoch=0 if epoch is None and seed is not None else epoch,
        num_threads=threads,
        num_ahead=results_queue_size or 2 * max(1, threads),
        timeout=timeout,
        include_ids=include_ids,
    )
    return BatchReader(RowReader(found, kept, options))


def _chosen_world(cur_shard: int | None, shard_count: int | None) -> World:
    """Return the world of a reader; a world of one rank without `cur_shard` and `shard_count`."""
    launched = detect_ranks()
    if cur_shard is None and shard_count is None:
        if launched is not None and launched[1] > 1:
            warnings.warn(
                f"the launcher started {launched[1]} ranks, but this reader has no `cur_shard` and `shard_count`: "
                f"each rank reads all rows. Give cur_shard={launched[0]}, shard_count={launched[1]} to divide it.",
                stacklevel=4,
            )
        return World()
    try:
        numbers = whole_number("cur_shard", cur_shard, 0), whole_number("shard_count", shard_count, 1)
        world = World.flat(*numbers)
    except ValueError as error:
        raise ValueError(
            f"`cur_shard` and `shard_count` must be given together, as integers with 0 <= cur_shard < shard_count; "
            f"found {cur_shard!r} and {shard_count!r}."
        ) from error
    if launched is not None and launched != numbers:
        rank, num_ranks = launched
        both = f"cur_shard={cur_shard}, shard_count={shard_count}, and the launcher says rank {rank} of {num_ranks}"
        if num_ranks == shard_count:
            raise WorldMismatch(
                f"{both}: some rows would be read twice and others not at all. Give the rank, or give `world` if "
                "another assignment of shards is intended.",
                rank=rank,
                num_ranks=num_ranks,
            )
        warnings.warn(f"{both}: correct only if several ranks read the same rows.", stacklevel=4)
    return world


def make_reader(dataset_url: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError, always.

    Raises:
        NotImplementedError: Petastorm stores its Unischema as a pickle, and unpickling can run arbitrary code.
    """
    raise NotImplementedError(
        f"{redact_address(str(dataset_url))}: make_reader is not supported. A data set of Petastorm's "
        "materialize_dataset has its schema in a pickle, which Smalti never loads, because unpickling can run "
        "arbitrary code. The rows are plain Parquet: read them with make_batch_reader, and decode columns in a "
        "TransformSpec: columns of CompressedImageCodec contain PNG or JPEG, those of NdarrayCodec .npy bytes "
        "(numpy.load(io.BytesIO(value), allow_pickle=False)). docs/petastorm.md has an example, and the replacement "
        "for NGram."
    )


def _warn_about_codecs(found: ParquetSet) -> None:
    """Warn if Petastorm wrote the files: columns may hold encoded arrays or images."""
    name = "_common_metadata"
    try:
        footer = read_footer(found.source, name, found.source.size(name))
    except (StoreNotFound, FormatError):
        return
    if UNISCHEMA_KEY in (footer.metadata.metadata or {}):
        warnings.warn(
            f"{found.source.url} was written by Petastorm's materialize_dataset. Its schema is a pickle and is not "
            "loaded: columns are returned as they are stored, arrays and images as encoded bytes; decode them in a "
            "TransformSpec (docs/petastorm.md).",
            stacklevel=3,
        )
