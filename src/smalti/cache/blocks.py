"""Reading parts of shards: verified blocks in memory, fetched by ranged requests.

Used where few samples of a shard are needed now: for the first batch of each thread of a pass, whose shards come
behind; for single samples by id; and for all samples with `mode="none"`, those of later batches ahead
(`dataset/lookahead.py`). Everything else is fetched whole. Intended behaviour; anything else is a bug:
1. No byte of a shard is used before the hash of its block was compared with the block list, and no list before it was
   compared with the digest that the version names.
2. Reading takes two round trips of a shard that is new here (its list beside its header, then blocks of samples), and
   one afterwards. Blocks are kept in memory up to a limit, shards used last the longest; nothing is written to disk.
3. Every request is repeated as often as that of a whole shard, also one that is not answered: after the same time
   without a byte a second request is made beside it, and the first answer counts. The wait for all has a deadline.
4. A list that is missing or damaged is no error: its shards are then fetched whole, with one warning for each file.
   If the store fails, the shards are fetched whole this time, and the list is requested again for the next read.
   A damaged block is an error, which the caller raises or answers by fetching the whole shard.
"""

import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from smalti.cache.mapping import OpenShards
from smalti.cache.sources import NONE, ShardSource, ShardSources
from smalti.cache.stats import Counters
from smalti.catalog.table.shard_table import block_files_of
from smalti.errors import (
    ChecksumMismatch,
    FormatError,
    SmaltiError,
    StoreAuthError,
    StoreError,
    StoreNotFound,
    StoreTimeout,
)
from smalti.format import BlockHashes, ShardInfo
from smalti.format.hashing import BLOCK_BYTES, has_block_hash, is_one_block
from smalti.format.reading.shard import PartialFile, PartialShard, header_bytes
from smalti.process import PerProcess
from smalti.storage.retry import Deadline, jitter, most_seconds

Rows = NDArray[np.int64]
MAX_REQUESTS = 32
"""Ranged requests at once: each holds a thread and a connection."""
MAX_RANGE_BYTES = 1 << 20
"""Longest range of one request: longer ones come in parts, over several connections."""
MAX_KEPT_BYTES = 256 << 20
"""Bytes of blocks that a process keeps in memory beyond those of the present request."""
MAX_KEPT_SHARDS = 4096
"""Shards of which a process keeps blocks: each takes one of the 65,530 maps that Linux allows a process."""
MAX_LIST_BYTES = 1 << 20
"""Lists of several shards in one file come in one request if they span no more than this."""
FIRST_PAUSE_SECONDS = 0.1
MAX_SHARE_OF_SHARDS = 0.5
"""Share of the bytes of shards up to which reading their blocks is worth it."""
MIN_ALLOWANCE = 4 << 20
"""Bytes of blocks that every thread of a pass may read at least, for readers that take their samples one by one."""
MAX_SHARE_OF_SHARD = 0.25
"""Share of a shard's bytes that are read as blocks by sample id before the shard is fetched whole."""


class PartialReads:
    """The reads of one cache that take parts of shards; thread-safe.

    The prefetches of a pass wait for its first read. `fetch_ahead` starts prefetches.
    """

    def __init__(
        self,
        sources: ShardSources,
        opened: OpenShards,
        counters: Counters,
        fetch_ahead: Callable[[Sequence[int]], None],
    ) -> None:
        self._sources, self._opened, self._counters, self._fetch_ahead = sources, opened, counters, fetch_ahead
        self.is_possible = any(
            source.options.mode == NONE or block_files_of(source.shards) for source in sources.sources
        )
        """True if some shards may be read in blocks."""
        self.reads_without_copies = any(source.options.mode == NONE for source in sources.sources)
        """True if some shards are read in blocks only."""
        self._reader: PerProcess[BlockReader] = PerProcess(partial(BlockReader, sources, counters))
        self._budget: BlockBudget | None = None
        """The bytes that the present pass may read as blocks; None outside a pass."""
        self._first_read, self._lock = threading.Lock(), threading.Lock()
        self._held_prefetches: list[int] | None = None

    def begin_pass(self) -> None:
        """Begin a pass: prefetches wait from now on for its first read."""
        self._budget = BlockBudget()
        self._held_prefetches = [] if self.is_possible else None

    def end_pass(self) -> None:
        """End a pass; prefetches that still wait are dropped."""
        self._budget = self._held_prefetches = None

    def prefetch(self, shard_ids: Iterable[int]) -> None:
        """Start prefetches of those of the shards that are fetched whole, or hold them until the first read."""
        found = list(shard_ids)
        if self.is_possible:
            found = [shard_id for shard_id in found if not self._is_read_in_blocks(shard_id)]
        with self._lock:
            held = self._held_prefetches
            if held is not None:
                held += found
        if found and held is None:
            self._fetch_ahead(found)

    def release_prefetches(self) -> None:
        """Start the prefetches that wait for the first read of a pass."""
        if self._held_prefetches is None:
            return
        with self._lock:
            held, self._held_prefetches = self._held_prefetches, None
        if held:
            self._fetch_ahead(self._opened.missing(held))

    def read(self, rows: Mapping[int, Rows | None]) -> dict[int, PartialShard]:
        """Return those of the shards that are better read in parts, good for these samples of each.

        Prefetches, and the first calls of other threads, wait for the first call of a pass.

        Raises:
            SmaltiError: the blocks of a shard that is read in parts only cannot be fetched, or are damaged.
        """
        if not self.is_possible:
            return {}
        if self._held_prefetches is None:
            return self._read(rows)
        timeout = max(source.options.download_timeout for source in self._sources.sources)
        is_locked = self._first_read.acquire(timeout=timeout)
        try:
            return self._read(rows)
        finally:
            self.release_prefetches()
            if is_locked:
                self._first_read.release()

    def load(self, rows: Mapping[int, Rows]) -> None:
        """Fetch the blocks of these samples of each shard together, for later reads, if they fit into memory.

        Does nothing for shards that are here, and for those that are fetched whole.

        Raises:
            SmaltiError: as for `read`.
        """
        reader = self._reader.get()
        if sum(map(reader.num_missing_bytes, rows, rows.values())) <= MAX_KEPT_BYTES // 2:
            self._read(rows)

    def num_bytes_ahead(self, rows: Mapping[int, Rows]) -> int:
        """Return about how many bytes `load_ahead` would fetch."""
        found = self._without_copies(rows)
        return sum(map(self._reader.get().num_missing_bytes, found, found.values()))

    def load_ahead(self, rows: Mapping[int, Rows]) -> None:
        """As `load`, of those of the shards that are read in blocks only. Errors are left to the later reads."""
        if self.num_bytes_ahead(rows) <= MAX_KEPT_BYTES // 2:
            self._reader.get().read(self._without_copies(rows))

    def _without_copies(self, rows: Mapping[int, Rows]) -> dict[int, Rows]:
        return {shard_id: needed for shard_id, needed in rows.items() if self._is_read_in_blocks(shard_id)}

    def _read(self, rows: Mapping[int, Rows | None]) -> dict[int, PartialShard]:
        reader = self._reader.get()
        missing = [shard_id for shard_id in self._opened.missing(rows) if 0 <= shard_id < len(self._sources)]
        only = [each for each in missing if self._is_read_in_blocks(each)]
        others = set(missing).difference(only)
        wanted = only + self._worth_reading_in_blocks({each: rows[each] for each in missing if each in others})
        if not wanted:
            return {}
        begin = time.perf_counter_ns()
        try:
            shards, errors = reader.read({shard_id: rows[shard_id] for shard_id in wanted})
        finally:
            self._counters.add(wait_microseconds=(time.perf_counter_ns() - begin) // 1000)
        for shard_id in only:
            if shard_id in errors:
                raise errors[shard_id]
        return shards  # the others are fetched whole, which reports what is wrong with them

    def _is_read_in_blocks(self, shard_id: int) -> bool:
        """Return whether no whole copy of a shard is wanted."""
        return (
            self._sources.source_of(shard_id).options.mode == NONE
            and not self._sources.shard(shard_id).in_place()
            and self._reader.get().has_list(shard_id)
        )

    def _worth_reading_in_blocks(self, rows: Mapping[int, Rows | None]) -> list[int]:
        """Return those of the shards of which the blocks of these samples are to be read before the whole arrives."""
        reader = self._reader.get()
        costs: dict[int, tuple[int, int]] = {}
        for shard_id, needed in rows.items():
            copies = self._sources.shard(shard_id).copies() if needed is not None and reader.has_list(shard_id) else ()
            if copies and not all(map(os.path.exists, copies)):
                whole = self._sources.info(shard_id).raw.num_bytes
                costs[shard_id] = reader.num_missing_bytes(shard_id, needed), whole
        budget = self._budget
        if budget is not None:
            part, whole = (sum(each[place] for each in costs.values()) for place in (0, 1))
            return list(costs) if costs and budget.allows(part, whole) else []
        return [
            shard_id
            for shard_id, (part, whole) in costs.items()
            if part + reader.num_loaded_bytes(shard_id) <= MAX_SHARE_OF_SHARD * whole
        ]


class BlockBudget:
    """The bytes that a pass may read as blocks of shards that it fetches whole as well; thread-safe.

    The first batch of each thread, and `MIN_ALLOWANCE` bytes if that is more: threads of a loader may begin in any
    order, and the first batch of the epoch must not wait for whole shards because another thread was faster. Later
    batches wait for the shards, because blocks would delay those.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_spent, self._allowance = 0, 0
        self._threads = set[int]()

    def allows(self, num_bytes: int, num_whole: int) -> bool:
        """Return whether so many bytes may be read as blocks, in place of shards of `num_whole` bytes; count them."""
        if num_bytes > MAX_SHARE_OF_SHARDS * num_whole:
            return False
        with self._lock:
            thread = threading.get_ident()
            if thread not in self._threads:
                self._threads.add(thread)
                self._allowance += max(num_bytes, MIN_ALLOWANCE)
            if self._num_spent + num_bytes > self._allowance:
                return False
            self._num_spent += num_bytes
            return True


@dataclass(frozen=True)
class _Range:
    """A range of an object, and what to do with its bytes."""

    source: ShardSource
    key: str
    begin: int
    end: int
    accept: Callable[[bytes], None]
    """Verifies and keeps the bytes; raises `FormatError`, after which they are requested again."""
    shard_ids: tuple[int, ...]
    """The shards that need it."""


class BlockReader:
    """The blocks of one process; thread-safe. Two threads that need one block at once may both fetch it."""

    def __init__(self, sources: ShardSources, counters: Counters) -> None:
        self._sources, self._counters = sources, counters
        self._lock = threading.Lock()
        self._shards: OrderedDict[int, PartialShard] = OrderedDict()
        self._unusable_lists: set[int] = set()
        """Shards whose lists are damaged."""
        self._unusable_files: set[tuple[str, str]] = set()
        """Store and name of files with lists that cannot be read."""
        self._warned: set[tuple[str, str]] = set()

    def has_list(self, shard_id: int) -> bool:
        """Return whether parts of a shard can be verified."""
        info = self._sources.info(shard_id)
        if info.zip is not None or info.meta is not None or not has_block_hash(info.raw.hashes):
            return False
        if info.blocks is None:
            return is_one_block(info.raw.num_bytes, info.raw.hashes)
        place = self._sources.source_of(shard_id).store.url, info.blocks.file
        return shard_id not in self._unusable_lists and place not in self._unusable_files

    def num_loaded_bytes(self, shard_id: int) -> int:
        """Return the bytes of a shard's blocks that are in memory."""
        found = self._shards.get(shard_id)
        return 0 if found is None else found.parts.num_loaded_bytes

    def num_missing_bytes(self, shard_id: int, rows: Rows | None) -> int:
        """Return about how many bytes reading these samples would fetch."""
        info, found = self._sources.info(shard_id), self._shards.get(shard_id)
        if found is not None:
            return sum(end - begin for begin, end in found.missing(rows, MAX_RANGE_BYTES))
        size = info.raw.num_bytes
        block_bytes = info.blocks.block_bytes if info.blocks is not None else size
        if rows is None:
            return size
        of_sample = (size - min(size, header_bytes(info))) // max(1, info.samples)
        return min(size, header_bytes(info) + block_bytes + len(np.unique(rows)) * (of_sample + block_bytes))

    def read(self, rows: Mapping[int, Rows | None]) -> tuple[dict[int, PartialShard], dict[int, SmaltiError]]:
        """Return the shards, good for these samples of each, by id; and the errors of those that cannot be read so.

        A shard that is in neither has no usable list.
        """
        size = sum(map(self.num_missing_bytes, rows, rows.values()))
        timeout = max((self._sources.source_of(each).options.download_timeout for each in rows), default=0.0)
        deadline = Deadline(most_seconds(timeout, size))
        shards: dict[int, PartialShard] = {}
        with self._lock:
            for shard_id in rows:
                known = self._shards.get(shard_id)
                if known is not None:
                    self._shards.move_to_end(shard_id)
                    shards[shard_id] = known
        opened, errors = self._open([shard_id for shard_id in rows if shard_id not in shards], deadline)
        shards |= opened
        ranges = [
            self._range_of(shard_id, begin, end, partial(shard.parts.add, begin=begin))
            for shard_id, shard in shards.items()
            for begin, end in shard.missing(rows[shard_id], MAX_RANGE_BYTES)
        ]
        errors |= self._fetch(deadline, ranges)[0]
        with self._lock:
            for shard_id, shard in shards.items():
                self._shards.setdefault(shard_id, shard)
                self._shards.move_to_end(shard_id)
            total = sum(shard.parts.num_loaded_bytes for shard in self._shards.values())
            for shard_id in list(self._shards):  # those that were not used for the longest time are dropped
                if shard_id in shards or (total <= MAX_KEPT_BYTES and len(self._shards) <= MAX_KEPT_SHARDS):
                    break
                total -= self._shards.pop(shard_id).parts.num_loaded_bytes
        return {shard_id: shard for shard_id, shard in shards.items() if shard_id not in errors}, errors

    def _open(
        self, shard_ids: Sequence[int], deadline: Deadline
    ) -> tuple[dict[int, PartialShard], dict[int, SmaltiError]]:
        """Fetch and verify the block lists and headers of shards that are new here, in one round trip."""
        headers: dict[int, bytes] = {}
        hashes: dict[int, BlockHashes] = {}
        ranges = []
        for shard_id in shard_ids:
            info = self._sources.info(shard_id)
            if info.blocks is None:  # a shard of one block
                (digest,) = info.raw.hashes.values()
                hashes[shard_id] = BlockHashes.of_small_file(digest, info.raw.num_bytes, what=info.raw.basename)
            accept = partial(headers.__setitem__, shard_id)  # verified when the list is there, too
            ranges.append(self._range_of(shard_id, 0, self._header_end(info), accept))
        lists = list(self._list_ranges(shard_ids, hashes))
        list_errors, errors = self._fetch(deadline, lists, ranges)
        shards: dict[int, PartialShard] = {}
        for shard_id in shard_ids:
            if shard_id not in hashes:  # the error may also be that of another list in the same range
                errors.pop(shard_id, None)
                self._give_up_list(shard_id, list_errors.get(shard_id))
            elif shard_id not in errors:
                shard = self._open_one(shard_id, hashes[shard_id], headers[shard_id], deadline)
                if isinstance(shard, SmaltiError):
                    errors[shard_id] = shard
                else:
                    shards[shard_id] = shard
        return shards, errors

    def _open_one(
        self, shard_id: int, hashes: BlockHashes, header: bytes, deadline: Deadline
    ) -> PartialShard | SmaltiError:
        """Return a shard, or its error: raised here, it would keep the blocks of all shards by its traceback."""
        info, source = self._sources.info(shard_id), self._sources.source_of(shard_id)
        try:
            parts = PartialFile(hashes, info.raw.basename)
        except OSError as error:  # no address space, or too many maps
            with self._lock:
                self._shards.clear()
            return self._explained(shard_id, error)
        try:
            parts.add(header, 0)
        except ChecksumMismatch as error:
            self._counters.failed(error)
            again = self._range_of(shard_id, 0, self._header_end(info), partial(parts.add, begin=0))
            (errors,) = self._fetch(deadline, [again])
            if errors:
                return errors[shard_id]
        try:
            return PartialShard.open_parts(parts, info, source.open_options(info))
        except SmaltiError as error:
            return error.with_traceback(None)

    def _list_ranges(self, shard_ids: Sequence[int], hashes: dict[int, BlockHashes]) -> Iterable[_Range]:
        """Yield the requests for block lists; lists of one file that lie close together come in one."""
        by_file: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
        for shard_id in shard_ids:
            number, _ = self._sources.locate(shard_id)
            info = self._sources.info(shard_id)
            if info.blocks is not None:
                span = (*info.blocks.span(info.raw.num_bytes), shard_id)
                by_file.setdefault((number, info.blocks.file), []).append(span)
        for (number, file), spans in by_file.items():
            groups: list[list[tuple[int, int, int]]] = []
            for span in sorted(spans):
                if groups and span[1] - groups[-1][0][0] <= MAX_LIST_BYTES:
                    groups[-1].append(span)
                else:
                    groups.append([span])
            for group in groups:
                begin, end = group[0][0], max(span[1] for span in group)
                ids, accept = tuple(span[2] for span in group), partial(self._add_lists, group, hashes)
                yield _Range(self._sources.sources[number], file, begin, end, accept, ids)

    def _add_lists(self, spans: Sequence[tuple[int, int, int]], hashes: dict[int, BlockHashes], data: bytes) -> None:
        """Keep those lists in one range that are right: each is verified by itself, and the others stay usable.

        Raises:
            ChecksumMismatch: one is not.
        """
        fault: ChecksumMismatch | None = None
        first = spans[0][0]
        for begin, end, shard_id in spans:
            info = self._sources.info(shard_id)
            if info.blocks is None:
                continue
            try:
                hashes[shard_id] = BlockHashes(
                    data[begin - first : end - first], info.blocks, info.raw.num_bytes, what=info.raw.basename
                )
            except ChecksumMismatch as error:
                fault = error
        if fault is not None:
            raise fault

    @staticmethod
    def _header_end(info: ShardInfo) -> int:
        """Return the end of the last block that the header reaches into."""
        block_bytes = BLOCK_BYTES if info.blocks is None else info.blocks.block_bytes
        return min(info.raw.num_bytes, -(-header_bytes(info) // block_bytes) * block_bytes)

    def _range_of(self, shard_id: int, begin: int, end: int, accept: Callable[[bytes], None]) -> _Range:
        shard = self._sources.shard(shard_id)
        return _Range(shard.source, shard.info.raw.basename, begin, end, accept, (shard_id,))

    def _fetch(self, deadline: Deadline, *groups: Sequence[_Range]) -> list[dict[int, SmaltiError]]:
        """Make the requests of all groups, several at once; return for each group the errors by shard."""
        ranges = list(chain.from_iterable(groups))
        outcomes = iter(_Requests(ranges, self._counters, deadline).run() if ranges else ())
        errors: list[dict[int, SmaltiError]] = [{} for _ in groups]
        for group, errors_of_group in zip(groups, errors, strict=True):
            for request in group:
                error = next(outcomes)
                if error is not None:
                    for shard_id in request.shard_ids:
                        errors_of_group.setdefault(shard_id, self._explained(shard_id, error))
        return errors

    def _explained(self, shard_id: int, error: BaseException) -> SmaltiError:
        """Return an error of its own for one shard, which names it."""
        shard = self._sources.shard(shard_id)
        file = shard.files[0]
        if isinstance(error, StoreNotFound) and error.facts.get("key") == file.raw.basename:
            return shard.not_found(file)
        message = error.message if isinstance(error, SmaltiError) else f"{type(error).__name__}: {error}"
        kinds = StoreAuthError, StoreTimeout, StoreNotFound, ChecksumMismatch, FormatError
        kind = next((kind for kind in kinds if isinstance(error, kind)), StoreError)
        return kind(f"{shard.name}: {message}", **shard.facts(file))

    def _give_up_list(self, shard_id: int, error: SmaltiError | None) -> None:
        info, store = self._sources.info(shard_id), self._sources.source_of(shard_id).store
        if info.blocks is None or (isinstance(error, StoreError) and not isinstance(error, StoreNotFound)):
            return  # the store failed, which says nothing about the list
        place = store.url, info.blocks.file
        with self._lock:
            if isinstance(error, ChecksumMismatch):  # the other lists of the file may be right
                self._unusable_lists.add(shard_id)
            else:
                self._unusable_files.add(place)
            is_new = place not in self._warned
            self._warned.add(place)
        if is_new:
            warnings.warn(
                f"the block hashes of shards in {store.locate(info.blocks.file)} cannot be used ({error}); these "
                "shards are fetched whole, which is slower. `smalti verify` shows what is damaged; restore the object",
                stacklevel=2,
            )


@dataclass
class _Waiting:
    """The requests for one range that has not arrived."""

    since: float
    """Time of the last one, monotonic seconds."""
    num_made: int = 1
    num_open: int = 1


class _Requests:
    """Ranged requests that run on some threads. A call that never returns is left behind at the deadline."""

    def __init__(self, ranges: Sequence[_Range], counters: Counters, deadline: Deadline) -> None:
        self._ranges, self._counters, self._deadline = ranges, counters, deadline
        self._changed = threading.Condition()
        late = StoreTimeout(f"its bytes did not arrive within {deadline.seconds:.0f} s")
        self._outcomes: list[BaseException | None] = [late] * len(ranges)
        self._stalls = [each.source.options.stall_seconds for each in ranges]
        self._waiting: dict[int, _Waiting] = {}
        """Ranges that were requested and have not arrived, by place."""
        self._num_begun, self._num_left = 0, len(ranges)
        self._is_over = False

    def run(self) -> list[BaseException | None]:
        """Make all requests; return the error of each, None where there was none."""
        num_threads = min(MAX_REQUESTS, len(self._ranges))
        if not sum(self._start() for _ in range(num_threads)):  # the first ones take all if there are too few
            self._serve()
        with self._changed:
            while self._num_left and not self._deadline.passed():
                self._changed.wait_for(lambda: not self._num_left, min(self._deadline.left(), *self._stalls))
                self._repeat_stalled()
            self._is_over = True
            return list(self._outcomes)

    def _repeat_stalled(self) -> None:
        """Start a second request for each range that was requested too long ago; the lock is held."""
        now = time.monotonic()
        for number, waiting in self._waiting.items():
            retries = self._ranges[number].source.options.download_retry
            if now - waiting.since < self._stalls[number] or waiting.num_made >= retries:
                continue
            waiting.since, waiting.num_made, waiting.num_open = now, waiting.num_made + 1, waiting.num_open + 1
            self._counters.add(retries=1)
            if not self._start(number):  # the first request may still be answered
                waiting.num_open -= 1
                return

    def _start(self, repeated: int | None = None) -> bool:
        """Start a thread; return False where there is no memory for it, or there are too many."""
        try:
            threading.Thread(target=self._serve, args=(repeated,), name="smalti-blocks", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _serve(self, repeated: int | None = None) -> None:
        """Request ranges until none is left, first the one that is repeated, if any."""
        with self._counters.receiving() as count_bytes:
            number = self._next() if repeated is None else repeated
            while number is not None:
                self._settle(number, self._request(self._ranges[number], count_bytes))
                number = self._next()

    def _settle(self, number: int, error: BaseException | None) -> None:
        """Record the outcome of a request: success at once, an error if no other request for the range is open."""
        with self._changed:
            waiting = self._waiting.get(number)
            if waiting is None:
                return  # another request was faster
            waiting.num_open -= 1
            if error is None or not waiting.num_open:
                del self._waiting[number]
                self._outcomes[number] = error
                self._num_left -= 1
                self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            if self._is_over or self._num_begun == len(self._ranges):
                return None
            self._num_begun += 1
            self._waiting[self._num_begun - 1] = _Waiting(time.monotonic())
            return self._num_begun - 1

    def _request(self, request: _Range, count_bytes: Callable[[int], None]) -> BaseException | None:
        attempts, pause = request.source.options.download_retry, FIRST_PAUSE_SECONDS
        for attempt in range(1, attempts + 1):
            try:
                data = request.source.store.get_range(request.key, request.begin, request.end)
                count_bytes(len(data))
                request.accept(data)
                self._counters.add(bytes_fetched=len(data), bytes_in_blocks=len(data))
            except (StoreAuthError, StoreNotFound) as error:
                self._counters.failed(error)
                return error
            except (StoreError, FormatError) as error:
                self._counters.failed(error)
                if attempt == attempts or self._deadline.left() <= pause or self._is_over:
                    return error
            except Exception as error:  # noqa: BLE001 -- handed to the reader, which raises it
                return error
            else:
                return None
            self._counters.add(retries=1)
            time.sleep(pause * jitter(1.0, 1.5))
            pause *= 2
        return None
