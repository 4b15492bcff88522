"""BatchReader: the rows of Parquet files as batches, in Smalti's order, with its resume and elasticity.

Here: the default order, which depends only on the sizes of row groups and keeps few of them open at once; reading ahead
in threads; the reader itself. Not here: decoding of row groups and rows (`rows`, `parquet`), arguments (`reader`).
"""

import logging
import threading
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np

from smalti.compat.petastorm.errors import NoDataAvailableError
from smalti.compat.petastorm.reading.rows import Columns, RowReader, taken
from smalti.compat.petastorm.unischema import Unischema, UnischemaField
from smalti.cursor import Cursor, MixedStream, mapping
from smalti.dataset.order import Pass, Planned, Reading, RunOrder
from smalti.dataset.resume import at_epoch, first_cursor, own_cursor, saved_cursor
from smalti.errors import CursorError, SchemaError, SmaltiError, StoreTimeout
from smalti.order import default_block_size, default_canonical_nodes, plan_epoch
from smalti.storage.retry import call_within
from smalti.world import World

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
