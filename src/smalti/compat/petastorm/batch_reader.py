"""BatchReader: the rows of Parquet files as batches, in Smalti's order, with its resume and elasticity.

Which order a reader takes by default: from the sizes of row groups alone, so that few of them are open at once.

Work done by threads some pieces ahead of its consumer, delivered in order; every wait has a deadline.
"""

import logging
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitedTooLong
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from smalti.compat.petastorm.parquet import NoDataAvailableError
from smalti.compat.petastorm.rows import RowReader
from smalti.compat.petastorm.unischema import Columns, Field, Schema, taken
from smalti.cursor import Cursor, MixedStream
from smalti.cursor.fields import mapping
from smalti.dataset.order import OrderOptions, Pass, Planned, Reading
from smalti.dataset.resume import at_epoch, first_cursor, saved_cursor
from smalti.errors import CursorError, SchemaError, SmaltiError
from smalti.order import EpochPlan, default_block_size, default_canonical_nodes, plan_epoch
from smalti.world import World

_OPEN_BYTES = 1 << 29
"""Row groups that one reader of everything has open in the default order, bytes as footers say. A constant, as the
order must not depend on the machine."""


def default_order(rows: RowReader, asked: OrderOptions) -> OrderOptions:
    """What was asked for, and for the rest: as many runs and as large windows as keep few row groups open.

    A run has the row groups of its window open, and those that it is cut from: so each of C runs takes about two row
    groups, and its window as much again as is left.
    """
    num_rows, num_groups = len(rows), int(np.count_nonzero(rows.sizes))
    nodes = asked.canonical_nodes
    if nodes is None:
        most = min(default_canonical_nodes(num_rows), num_groups, _OPEN_BYTES // (2 * rows.group_bytes))
        nodes = 1 << (max(1, most).bit_length() - 1)
    block = asked.block_size
    if block is None:
        row_bytes = max(1, rows.group_bytes * num_groups // max(1, num_rows))
        left = max(rows.group_bytes * nodes, _OPEN_BYTES - 2 * nodes * rows.group_bytes)
        block = min(max(1, left // nodes // row_bytes), default_block_size(nodes))
    return replace(asked, canonical_nodes=nodes, block_size=block)


def warn_of_reading_again(rows: RowReader, world: World, *, seed: int, nodes: int, block: int) -> None:
    """Says so where the order keeps more row groups open than may be held: they would be read again and again."""
    plan: EpochPlan = plan_epoch(rows.sizes, seed=seed, epoch=0, canonical_nodes=nodes, shuffle_block_size=block)
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


def done_ahead(
    work: Iterator[Any], do: Callable[[Any], Any], pool: Executor | None, *, ahead: int, timeout: float
) -> Iterator[Any]:
    """`do(piece)` for each piece of the work, in order; `ahead` pieces are begun before they are asked for.

    What doing a piece raised is raised when its turn comes. Without a pool, all is done in the caller's thread.

    Raises:
        SmaltiError: a piece was not done within `timeout` seconds.
    """
    if pool is None:
        yield from map(do, work)
        return
    begun: deque[Future[Any]] = deque()
    try:
        for piece in work:
            begun.append(pool.submit(do, piece))
            if len(begun) > ahead:
                yield _result(begun.popleft(), timeout)
        while begun:
            yield _result(begun.popleft(), timeout)
    finally:
        for future in begun:
            future.cancel()


def _result(future: "Future[Any]", timeout: float) -> Any:
    try:
        return future.result(timeout)
    except WaitedTooLong as error:
        if future.done():  # the work itself raised it
            raise
        raise SmaltiError(
            f"the next batch was not ready after {timeout:g} s: reading or transforming it takes longer. Give the "
            "reader a longer `timeout`, or find what hangs.",
            timeout=timeout,
        ) from error


_log = logging.getLogger(__name__)
_OURS = "petastorm"
_MARKS = ("_sample_id", "_position")
_ROWS_AT_ONCE = 1024
"""Rows that are gathered together where nothing is done with them: a gather costs the same for few and for many."""
_BYTES_AT_ONCE = 1 << 23

_begun: Counter[tuple[str, int, int]] = Counter()
"""Epochs that readers without a seed have begun in this process, by data set and rank: the next reader goes on."""
_begun_lock = threading.Lock()


@dataclass(frozen=True)
class ReaderOptions:
    """How rows are put in order, divided and read."""

    order: OrderOptions
    """What the user asked for; `tail` None for the default."""
    world: World
    batch_size: int
    num_epochs: int | None
    """None: without an end."""
    first_epoch: int | None
    """None: after those that earlier readers of this process began."""
    num_threads: int
    """0: in the consumer's thread."""
    num_ahead: int
    timeout: float
    include_ids: bool = False
    """Whether batches say which row each is, and where in the order."""


@dataclass(frozen=True)
class _Work:
    """Steps that are gathered together."""

    reading: Reading
    steps: list[Planned]


class BatchReader:
    """Batches of rows, as namedtuples of numpy arrays; iterate it once for all its epochs, or again after `reset`.

    The order depends only on the files, the rows that are chosen, seed, epoch, runs and window: not on the world,
    threads or batch size. All ranks take equally many steps. `state_dict` is where the consumer stands.

    Args:
        rows: the rows.
        options: order, division, epochs, threads.
        cleanup: called by `cleanup_cache`.

    Raises:
        NoDataAvailableError: there is not one row.
        SchemaError: `include_ids` would overwrite a column.
    """

    batched_output = True
    """Batches, not rows, come out of it."""

    def __init__(self, rows: RowReader, options: ReaderOptions, cleanup: Callable[[], None] = lambda: None) -> None:
        if not len(rows):
            raise NoDataAvailableError(
                f"{rows.found.source.url}: no row to read in {len(rows.found.row_groups)} row groups; check the files, "
                "`predicate` and `filters`."
            )
        taken = [name for name in _MARKS if options.include_ids and name in rows.schema.fields]
        if taken:
            raise SchemaError(
                f"{rows.found.source.url} has a column {taken[0]!r}, and `include_ids=True` adds one of that name: one "
                "would overwrite the other. Leave `include_ids` out, or leave the column out with `schema_fields`.",
                column=taken[0],
            )
        self._rows, self._options, self._cleanup = rows, options, cleanup
        self.num_epochs = options.num_epochs
        self.stopped = False
        self.last_row_consumed = False
        """Whether all epochs were read to their end."""
        self._fresh = first_cursor(
            default_order(rows, options.order), options.world, [MixedStream(rows.digest, None, len(rows))], [rows.sizes]
        )
        self._adopted: Cursor | None = None
        self._base = options.first_epoch
        self._stream: Iterator[tuple[Reading, int, Columns]] | None = None
        self._taken: tuple[Reading, int] | None = None
        self._next: Cursor | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._working, self._idle = 0, threading.Condition()
        if options.order.shuffle:
            told = {"seed": self._fresh.seed, "nodes": self._fresh.canonical_nodes, "block": self._fresh.block_size}
            warn_of_reading_again(rows, options.world, **told)

    # ------------------------------------------------------------------ what there is

    @cached_property
    def schema(self) -> Schema:
        """Columns, after the transform."""
        marks = [Field(name, np.int64, (), nullable=False) for name in _MARKS if self._options.include_ids]
        return Schema([*self._rows.schema.fields.values(), *marks])

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, over all ranks."""
        return len(self._rows)

    @property
    def num_rows_stored(self) -> int:
        """Rows of the files, those counted that a predicate leaves out."""
        return self._rows.found.num_rows

    @property
    def batch_size(self) -> int:
        """Rows per rank and step."""
        return self._options.batch_size

    @property
    def world(self) -> World:
        """Who divides an epoch."""
        return self._options.world

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch, equal on all ranks."""
        return self._reading(at_epoch(self._fresh, 0, [self._rows.sizes])).division.num_steps

    @property
    def diagnostics(self) -> dict[str, int]:
        """What reading cost so far: row groups read, bytes of them held now and at most."""
        held = self._rows.held
        return {"row_groups_read": held.loads, "bytes_held": held.bytes_held, "most_bytes_held": held.most_held}

    @property
    def where(self) -> str:
        """Address of the data set, free of secrets."""
        return self._rows.found.source.url

    def configure(self, *, batch_size: int | None = None, shuffle_rows_within: int = 0) -> None:
        """What a loader asks of its reader, before the first batch.

        Args:
            batch_size: rows per rank and step.
            shuffle_rows_within: rows that are mixed at least; 0 leaves the order as it is.

        Raises:
            RuntimeError: a batch was read already.
            ValueError: rows are to be mixed, and the reader shuffles nothing.
        """
        if self._stream is not None:
            raise RuntimeError("this reader was begun already: make the loader before the first batch is read.")
        order = self._options.order
        if shuffle_rows_within > 0 and not order.shuffle:
            raise ValueError(
                "`shuffling_queue_capacity` shuffles rows, and `shuffle_row_groups` is False: give "
                "shuffle_row_groups=True, which shuffles both, or leave the capacity at 0."
            )
        if shuffle_rows_within > 0:
            block = max(order.block_size or 0, self._fresh.block_size, shuffle_rows_within)
            order = replace(order, block_size=block)
            self._fresh = replace(self._fresh, block_size=block)
        self._options = replace(self._options, batch_size=batch_size or self.batch_size, order=order)

    # ------------------------------------------------------------------ iteration

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch, as a namedtuple.

        Raises:
            RuntimeError: the reader was stopped.
            SmaltiError: a file is gone, changed or damaged.
        """
        return self.schema.namedtuple(**self.next_batch())

    def batches(self) -> Iterator[Columns]:
        """The same batches as dicts, column to array."""
        while True:
            try:
                batch = self.next_batch()
            except StopIteration:
                return
            yield batch

    def next_batch(self) -> Columns:
        """The next batch as a dict; StopIteration after the last epoch."""
        if self.stopped:
            raise RuntimeError("this reader was stopped, or its context has ended: make a new one to read on.")
        if self._stream is None:
            self._stream = self._read()
        try:
            reading, step, batch = next(self._stream)
        except StopIteration:
            self.last_row_consumed = True
            raise
        self._taken = (reading, step)
        self._note(reading.this_pass.start.epoch)
        return batch

    @property
    def has_begun(self) -> bool:
        """Whether a batch was asked for since the reader was made or reset, or a state loaded."""
        return self._stream is not None

    def current_reading(self) -> Reading:
        """What this rank reads of the epoch at hand, from where its iteration begins."""
        return self._taken[0] if self._taken else self._reading(self._start())

    def reset(self) -> None:
        """Makes the reader begin anew, with the epochs after those that it read.

        Raises:
            NotImplementedError: it stands in the middle; `load_state_dict` goes anywhere.
        """
        if not self.last_row_consumed:
            raise NotImplementedError(
                "a reader can be reset after its last row only; to go elsewhere in the middle, use `load_state_dict`, "
                "or make a new reader."
            )
        start = self._place()
        self._end_stream()
        self._next, self._base = start, start.epoch

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch taken, small and JSON-able, equal on all ranks."""
        place = self._place()
        return place.to_state() | {_OURS: {"first_epoch": place.epoch if self._base is None else self._base}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the reader go on where `state` was saved, on any world, with any batch size or number of threads.

        Raises:
            CursorError: the state is damaged, or was saved for other files, another choice of rows, or another order.
        """
        ours = mapping(state).get(_OURS)
        first = ours.get("first_epoch") if isinstance(ours, Mapping) else None
        if type(first) is not int or first < 0:
            raise CursorError(
                "saved state: no 'first_epoch' of a Parquet reader in it; give what `state_dict()` of a reader or "
                "loader of smalti.compat.petastorm returned."
            )
        saved = Cursor.from_state(state)
        if saved.digest != self._fresh.digest:
            raise CursorError(
                f"cannot resume from this state: it was saved for Parquet files and rows with digest "
                f"{saved.digest[:12]}, and {self.where} has {self._fresh.digest[:12]}. Give the same files, predicate "
                "and filters; to begin anew, make a reader and load nothing.",
                saved=saved.digest,
                found=self._fresh.digest,
            )
        cursor = saved_cursor(
            state, self._fresh, self._options.order, num_ranks=self.world.num_ranks, sizes=[self._rows.sizes]
        )
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
            with _begun_lock:
                self._base = _begun[self._key]
        return at_epoch(self._adopted or self._fresh, self._base, [self._rows.sizes])

    def _note(self, epoch: int) -> None:
        with _begun_lock:
            _begun[self._key] = max(_begun[self._key], epoch + 1)

    @property
    def _key(self) -> tuple[str, int, int]:
        return self._rows.digest, self.world.rank, self.world.num_ranks

    # ------------------------------------------------------------------ reading

    def _reading(self, start: Cursor) -> Reading:
        options = self._options
        tail = options.order.tail or ("pad" if options.num_epochs is None else "short")
        order = replace(options.order, tail=tail)
        return Reading(Pass(start, self.world), [self._rows.sizes], self.batch_size, order)

    def _planned(self) -> Iterator[_Work]:
        start = self._start()
        base = start.epoch if self._base is None else self._base
        each = self._steps_at_once()
        while self.num_epochs is None or start.epoch < base + self.num_epochs:
            reading = self._reading(start)
            for first in range(0, reading.division.num_steps, each):
                yield _Work(reading, reading.steps(first, first + each))
            start = start.next_epoch()
            if not reading.division.num_steps and self.num_epochs is None and not reading.division.start:
                raise NoDataAvailableError(
                    f"{self.where}: an epoch of {self.num_rows} rows has no whole step of {self.batch_size} rows for "
                    f"each of {self.world.num_ranks} ranks, and tail='drop' leaves it out: it would never end."
                )

    def _steps_at_once(self) -> int:
        if self._rows.options.transform is not None and not self._rows.options.per_row_group:
            return 1
        row_bytes = max(1, sum(group.num_bytes for group in self._rows.found.row_groups) // max(1, self.num_rows))
        return max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // row_bytes) // self.batch_size)

    def _read(self) -> Iterator[tuple[Reading, int, Columns]]:
        options = self._options
        if options.num_threads and self._threads is None:
            self._threads = ThreadPoolExecutor(options.num_threads, "smalti-parquet")
        work = self._planned()
        timing = {"ahead": options.num_ahead, "timeout": options.timeout}
        for done in done_ahead(work, self._gather, self._threads, **timing):  # type: ignore[arg-type]
            yield from done

    def _gather(self, work: _Work) -> list[tuple[Reading, int, Columns]]:
        with self._idle:
            self._working += 1
        try:
            return self._gathered(work)
        finally:
            with self._idle:
                self._working -= 1
                self._idle.notify_all()

    def _gathered(self, work: _Work) -> list[tuple[Reading, int, Columns]]:
        ids = [ids for _, ids in work.steps]
        columns = self._rows.rows(np.concatenate(ids))
        if self._options.include_ids:
            positions = np.concatenate([step.positions for step, _ in work.steps])
            columns |= dict(zip(_MARKS, (np.concatenate(ids), positions), strict=True))
        ends = np.cumsum([each.size for each in ids])
        begins = ends - [each.size for each in ids]
        return [
            (work.reading, step.step, taken(columns, slice(begin, end)))
            for (step, _), begin, end in zip(work.steps, begins.tolist(), ends.tolist(), strict=True)
        ]

    # ------------------------------------------------------------------ ending

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()  # type: ignore[attr-defined]  # a generator
        self._stream, self._taken, self.last_row_consumed = None, None, False

    def stop(self) -> None:
        """Ends reading; a thread in the middle of a row group ends after it."""
        self.stopped = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Waits until no thread reads any more, for the reader's timeout at most, and lets go of what is held."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        with self._idle:
            if not self._idle.wait_for(lambda: not self._working, self._options.timeout):
                _log.warning("%s: a thread still reads or transforms after %g s", self.where, self._options.timeout)
        self._rows.held.clear()

    def cleanup_cache(self) -> None:
        """Removes the cache on disk, if `cache_extra_settings` asked for that."""
        self._cleanup()

    def __enter__(self) -> "BatchReader":
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()
        self.join()
        self.cleanup_cache()
