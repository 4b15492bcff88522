"""The choice between reading parts of a shard and fetching it whole.

Parts are read of shards with block lists: for the first batch of each thread of a pass; for single samples by id; and
for all samples with `mode="none"`, those of later batches ahead (`dataset/lookahead.py`). Everything else is
fetched whole. How blocks are fetched and verified: `blocks.py`.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from smalti.cache.blocks import MAX_KEPT_BYTES, BlockReader, Rows
from smalti.cache.mapping import OpenShards
from smalti.cache.sources import NONE, ShardSources
from smalti.cache.stats import Counters
from smalti.catalog.table.shard_table import block_files_of
from smalti.format.reading.shard import PartialShard
from smalti.process import PerProcess

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
        self._budget, self._is_in_pass = BlockBudget(), False
        self._first_read, self._lock = threading.Lock(), threading.Lock()
        self._held_prefetches: list[int] | None = None

    def begin_pass(self) -> None:
        """Begin a pass: prefetches wait from now on for its first read."""
        self._budget.begin()
        self._is_in_pass = True
        self._held_prefetches = [] if self.is_possible else None

    def end_pass(self) -> None:
        """End a pass; prefetches that still wait are dropped."""
        self._is_in_pass, self._held_prefetches = False, None

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
        if self._is_in_pass:
            part, whole = (sum(each[place] for each in costs.values()) for place in (0, 1))
            return list(costs) if costs and self._budget.allows(part, whole) else []
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
        self.begin()

    def begin(self) -> None:
        """Begin a pass."""
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
