"""Lookahead: the shards that a pass will need, step by step, prefetched ahead of reading and counted for `stats`."""

import hashlib
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheStats, Outline, Uses, least_bytes, stats_of
from smalti.dataset.order import Pass, Planned, Reading
from smalti.order import EpochPlan, fitted_canonical_nodes, hosts_of_run
from smalti.stream import OpenStreams

Ints = NDArray[np.int64]
AHEAD_BYTES = 1 << 25
"""Bytes of blocks that are fetched together; twice as many are in memory."""
_SAMPLES_PER_LOOKUP = 1 << 16  # sample ids that are mapped to shards together
_BATCHES_AHEAD = 8  # at first; then as many as `_SHARDS_AHEAD` need, if that is more
_MIN_LOOKAHEAD = 64  # samples; MosaicML Streaming's lookahead when the batch size is unknown
_SHARDS_AHEAD = 4  # average shards; with fewer the link is idle whenever one of them is late
_MAX_SAMPLES_AHEAD = 1 << 16  # planned at once, which takes some microseconds for a step
_MAX_STEPS_AHEAD = 1 << 10
_MAX_BLOCK_STEPS = 64  # whose blocks are fetched together, without copies
MAX_PASSES = 8  # passes that are remembered for `stats`
_MAX_USES = 1 << 22  # uses of shards that the least cost is computed from; more would take seconds
_MUCH_WASTED = 100 * 10**9  # bytes; less costs a few dollars at most
_SPREAD_BATCHINGS = ("stratified", "device_per_stream")  # every host reads all shards, whatever the canonical nodes
_MAX_WINDOW_CHECKED = 1 << 20  # samples of a shuffle window that are examined before the first one is read


def uses(reading: Reading, shard_ends: Ints) -> Iterator[Uses]:
    """Yield the shards that a pass and the epochs after it need, endlessly; steps are counted through.

    Includes the shards of all ranks of the host: they share a cache folder and take their steps together. The stream
    itself is not passed in: its cache keeps this iterator, which must not keep the stream alive.
    """
    before = 0
    while num_steps := reading.division.num_steps:
        stride = max(1, _SAMPLES_PER_LOOKUP // (reading.batch_size * reading.division.world.ranks_on_host))
        for first in range(0, num_steps, stride):
            ids, steps = _of_host(reading, first, first + stride)
            shards = np.searchsorted(shard_ends, ids, side="right")
            yield Uses(shards, before + steps, before + min(first + stride, num_steps))
        before += num_steps
        reading = replace(reading, this_pass=Pass(reading.this_pass.start.next_epoch(), reading.this_pass.world))


def _of_host(reading: Reading, first: int, stop: int) -> tuple[Ints, Ints]:
    """Return the sample ids that the ranks of this host need at steps [first, stop), and the step of each.

    Not part of `uses`, which would keep the batches, an object for each step, until it is asked for the next span.
    """
    division = reading.division
    ranks = [replace(division.world, host_rank=rank) for rank in range(division.world.ranks_on_host)]
    taken = [step for rank in ranks for step in replace(division, world=rank).steps(first, stop)]
    ids = reading.plan.ids_at(np.concatenate([step.lookup for step in taken]))
    steps = np.repeat([step.step for step in taken], [step.lookup.size for step in taken])
    is_sample = ids >= 0  # some positions of MosaicML's orders, which `smalti.compat` plans, hold no sample
    return ids[is_sample], steps[is_sample]


def outlines(reading: Reading, shard_ends: Ints) -> Iterator[Outline]:
    """Yield the outline of a pass and of the epochs after it, endlessly; nothing for orders without one.

    Time and memory are O(shards), so that it covers the next epoch where `uses` cannot look so far ahead.
    """
    before = 0
    while num_steps := reading.division.num_steps:
        division = reading.division
        spans = reading.plan.spans_of_host(division.world.host, division.world.num_hosts)
        if spans is None:
            return
        ids, begins, ends = spans
        first = np.maximum((begins - division.start) // division.global_batch, 0)
        end = np.minimum(-((division.start - ends) // division.global_batch), num_steps)
        is_ahead = end > first
        shards = np.searchsorted(shard_ends, ids[is_ahead], side="right")
        yield Outline(shards, before + first[is_ahead], before + end[is_ahead], before + num_steps)
        before += num_steps
        reading = replace(reading, this_pass=Pass(reading.this_pass.start.next_epoch(), reading.this_pass.world))


def planned_ahead(
    reading: Reading, stream: OpenStreams, *, worker: int, num_workers: int, num_readers: int, predownload: int | None
) -> Iterator[Planned]:
    """Yield the steps of one loader worker with their sample ids; shards or blocks of later steps are prefetched.

    Worker `worker` takes the steps worker, worker + num_workers, ... of the rank, and `num_readers` of its threads read
    them at once. `predownload` is the samples to look ahead; None for a number derived from batches and shards.
    """
    if not reading.division.num_steps:
        return
    num_all = num_readers * num_workers
    shard_samples = float(stream.shard_sizes.mean())
    first_span, later_span = lookahead_spans(reading.batch_size, shard_samples, num_all, predownload)
    cache, blocks = stream.cache, BlocksAhead(stream)
    world = reading.division.world
    # Equal for all ranks and workers that count the same steps of the same order.
    facts = (reading.this_pass.start, reading.batch_size, world.num_ranks, world.num_hosts, reading.options.tail)
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    cache.expect_stored_order(is_stored=not reading.this_pass.start.shuffle)
    stream.plan(
        uses(reading, stream.shard_ends),
        name,
        is_of_many=world.ranks_on_host > 1,
        outline=outlines(replace(reading), stream.shard_ends),  # a copy: its plan is made only if it is needed
    )

    def fetch(first: int, span: int) -> list[Planned]:
        """Return the worker's steps of a span, after their shards and blocks were requested."""
        planned = reading.steps(first, first + span, num_workers)
        if planned:
            stream.prefetch(np.concatenate([ids for _, ids in planned]))
            blocks.add(planned)
        return planned

    num_over = 0  # steps that are over
    try:
        current, following = fetch(worker, first_span), worker + first_span
        while current:
            upcoming: list[Planned] | None = None
            for place, (step, ids) in enumerate(current, start=1):
                cache.reached(max(0, step.step - num_all + 1))  # other readers may still be at the steps since
                num_over = step.step + 1
                blocks.reach(step.step)
                yield step, ids
                if upcoming is None and place >= num_readers:
                    # Each reader has its first step: only now may other shards compete for the link.
                    upcoming = fetch(following, later_span)
                    following += later_span
            cache.settle(num_over)
            current = upcoming or []
    finally:
        cache.settle(num_over)
        cache.rest()


class BlocksAhead:
    """The blocks of one pass's steps, fetched while earlier steps are read, from streams that are read without a cache.

    Whole shards are fetched ahead by the cache's own threads. Without copies there is nothing to fetch but the blocks
    of the samples, of which several steps come together: each has to wait for one or two round trips, whatever its
    size. Used by the one thread that goes through the steps.
    """

    def __init__(self, stream: OpenStreams) -> None:
        self._stream = stream
        self._is_needed = stream.cache.parts.reads_without_copies
        self._steps: deque[Planned] = deque()
        self._here = -1
        """The last step whose blocks were fetched."""
        self._running: tuple[threading.Thread, int] | None = None
        """The thread that fetches blocks, and the last step that they are of."""

    def add(self, planned: Sequence[Planned]) -> None:
        """Add steps that follow those added before."""
        if self._is_needed:
            self._steps.extend(planned)

    def reach(self, step: int) -> None:
        """Wait for the blocks of a step, and begin to fetch those of later ones. The first step is read by its reader.

        Errors are not raised here: the reader of a step requests what is missing, and raises them.
        """
        if not self._is_needed:
            return
        if self._here < 0:
            self._steps.popleft()
            self._here = step
            return
        if step > self._here:
            begin = time.perf_counter()
            self._begin()
            if self._running is not None:
                thread, self._here = self._running
                thread.join()
                self._running = None
            self._stream.cache.counters.add(wait_microseconds=int(1e6 * (time.perf_counter() - begin)))
        self._begin()

    def _begin(self) -> None:
        if self._running is not None or not self._steps:
            return
        ids = [ids for _, ids in islice(self._steps, _MAX_BLOCK_STEPS)]
        size = self._stream.num_bytes_ahead(np.concatenate(ids))
        count = len(ids) if size <= AHEAD_BYTES else max(1, len(ids) * AHEAD_BYTES // size)
        wanted = np.concatenate(ids[:count])
        thread = threading.Thread(
            target=self._stream.read_ahead, args=(wanted,), name="smalti-blocks-ahead", daemon=True
        )
        last = [self._steps.popleft()[0].step for _ in range(count)][-1]
        with suppress(RuntimeError):  # too many threads: the readers fetch what they need
            thread.start()
            self._running = thread, last


def lookahead_spans(
    batch_size: int, shard_samples: float, num_all: int, predownload: int | None = None
) -> tuple[int, int]:
    """Return how many steps are planned together, at first and later on; both are multiples of `num_all`.

    Args:
        batch_size: Samples per rank and step.
        shard_samples: Samples of a shard on average.
        num_all: Readers of the rank: workers times threads of each.
        predownload: Samples to look ahead; None for a number derived from batches and shards.
    """
    samples = max(_BATCHES_AHEAD * batch_size, _MIN_LOOKAHEAD) if predownload is None else predownload
    first = max(1, -(-samples // batch_size)) * num_all
    if predownload is not None:
        return first, first
    ahead = min(_MAX_SAMPLES_AHEAD, _SHARDS_AHEAD * int(shard_samples))
    later = min(_MAX_STEPS_AHEAD, ahead // batch_size)
    return first, max(first, later // num_all * num_all)


def check_hosts(reading: Reading, stream: OpenStreams) -> None:
    """Warn, on the first rank, if hosts fetch many bytes that other hosts fetch too, and need not."""
    start, world = reading.this_pass.start, reading.division.world
    if world.rank or not start.shuffle:
        return
    if start.mixture is not None and start.mixture.batching_method in _SPREAD_BATCHINGS:
        return
    readers = hosts_of_run(start.canonical_nodes, world.num_hosts)
    wasted = (readers - 1) * int(stream.costs()[1].sum()) if readers > 1 else 0
    if wasted >= _MUCH_WASTED:
        fitted = fitted_canonical_nodes(world.num_hosts, start.canonical_nodes)
        warnings.warn(
            f"each shard is fetched by {readers} of the {world.num_hosts} hosts, {wasted:,} bytes more than once: "
            f"{start.canonical_nodes} canonical nodes cannot be divided among them. Begin the run with "
            f"order=OrderOptions(num_canonical_nodes={fitted}); "
            "see docs/scale.md.",
            stacklevel=4,
        )


def check_window(reading: Reading, stream: OpenStreams) -> None:
    """Warn if the shards that one shuffle window mixes take more bytes than the cache may hold."""
    limit, start = stream.cache.limit, reading.this_pass.start
    if limit is None:
        return
    window = start.canonical_nodes * start.block_size if start.shuffle else start.canonical_nodes
    of_rank = min(window, _MAX_WINDOW_CHECKED) // reading.this_pass.world.num_ranks
    planned = reading.steps(0, max(1, of_rank // reading.batch_size))
    if not planned:
        return
    shard_bytes, _ = stream.costs()
    plan, world = reading.plan, reading.division.world
    if isinstance(plan, EpochPlan):
        needed = bytes_in_use(plan, stream.shard_sizes, shard_bytes, world.host, world.num_hosts)
    else:  # a mixture: this rank's part of the first window
        shards = np.unique(stream.shards_of(np.concatenate([ids for _, ids in planned])))
        needed = int(shard_bytes[shards].sum())
    if needed > limit:
        warnings.warn(
            f"`cache_limit` is {limit:,} bytes, and the shards that {window:,} shuffled samples lie in take "
            f"{needed:,}: many will be fetched more than once in an epoch. Raise the limit, or take a smaller "
            "`shuffle_block_size`; `dataset.stats()` shows the cost.",
            stacklevel=4,
        )


def rows_of_host(plan: EpochPlan, samples: Ints, host: int, num_hosts: int) -> tuple[Ints, Ints, Ints]:
    """Return in which rows of windows a host needs the pieces, shards or parts of one, that it reads.

    Row n is the n-th window of every run, which are read at the same time. `samples` are those of each shard.

    Returns:
        For every piece, as int64 arrays of shape (pieces,): its shard, the first row that needs it, and the first row
        after those.
    """
    spans = plan.spans_of_host(host, num_hosts)
    if spans is None:  # stored order: every host reads some of every shard, one after the other
        shards = np.flatnonzero(samples)
        return shards, shards, shards + 1
    ids, begins, ends = spans
    # In two divisions: the positions of a row of windows may be more than 64 bits hold.
    first_rows = begins // plan.canonical_nodes // plan.block_size
    end_rows = -(-(ends // plan.canonical_nodes) // plan.block_size)
    return np.searchsorted(np.cumsum(samples), ids, side="right"), first_rows, end_rows


def most_held(weights: Ints, begins: Ints, ends: Ints, *, ahead: int) -> int:
    """Return the most bytes of pieces held at any row, together with those of the `ahead` rows after it.

    `weights` are the bytes of each piece; the other arguments are from `rows_of_host`.
    """
    if not ends.size:
        return 0
    changes = np.zeros(int(ends.max()) + 1, dtype=np.int64)
    np.add.at(changes, np.maximum(begins - ahead, 0), weights)
    np.subtract.at(changes, ends, weights)
    return int(np.cumsum(changes).max())


def bytes_in_use(plan: EpochPlan, samples: Ints, raw: Ints, host: int, num_hosts: int) -> int:
    """Return the most unpacked bytes, at any time in an epoch, of the shards of the windows that a host reads."""
    shards, begins, ends = rows_of_host(plan, samples, host, num_hosts)
    return most_held(raw[shards], begins, ends, ahead=0)


def shards_needed(reading: Reading, stream: OpenStreams, num_steps: int) -> Ints:
    """Return the shards that the first steps of a pass need, step by step, in ascending order within each."""
    needed, num_steps = [], min(num_steps, reading.division.num_steps)
    for stretch in uses(reading, stream.shard_ends):
        pairs = np.unique(np.stack((stretch.steps, stretch.shards)), axis=1)
        needed.append(pairs[1][pairs[0] < num_steps])
        if stretch.end >= num_steps:
            break
    return np.concatenate(needed) if needed else np.zeros(0, np.int64)


@dataclass
class _BegunPass:
    reading: Reading
    bytes_before: int
    """Bytes fetched before the pass began."""
    is_first: bool
    steps: int = 0
    """Steps that were read; of the current pass, the cache's counters hold them."""


@dataclass
class PassHistory:
    """The latest passes, for `stats`: the passes of loader workers are recorded in the main process."""

    begun: deque[_BegunPass] = field(default_factory=lambda: deque(maxlen=MAX_PASSES))

    def begin(self, reading: Reading, stream: OpenStreams) -> None:
        """Record that a pass begins; before the first one, warn if it is empty or the cache too small for it."""
        counters = stream.cache.counters
        if self.begun:
            self.begun[-1].steps = counters.get("reached")
        elif len(stream):
            check_hosts(reading, stream)
            check_window(reading, stream)
        else:
            warnings.warn(
                f"{stream.root} has no samples: an epoch of it ends at once. Check the address, the version and the "
                "split",
                stacklevel=4,
            )
        counters.restart()
        self.begun.append(_BegunPass(reading, counters.get("bytes_fetched"), is_first=not self.begun))

    def stats(self, stream: OpenStreams, *, least: bool) -> CacheStats:
        """Return the cost of reading; with `least`, also the least that these passes could have cost."""
        cache = stream.cache
        cache.settle()
        if not (least and self.begun):
            return stats_of(cache.counters)
        self.begun[-1].steps = cache.counters.get("reached")
        passes = [each for each in self.begun if each.steps]
        # A copy of each reading: the recorded one would keep its cached plan as long as the dataset exists.
        needed = [shards_needed(replace(each.reading), stream, each.steps) for each in passes]
        # The latest passes with at most `_MAX_USES` uses in all.
        from_last = accumulate(each.size for each in reversed(needed))
        first = len(passes) - sum(size <= _MAX_USES for size in from_last)
        passes, needed = passes[first:], needed[first:]
        if not passes or (cache.limit is None and not passes[0].is_first):
            return stats_of(cache.counters)
        order = np.concatenate(needed).tolist()
        # The cache's contents before the first of these passes are unknown: the most favourable ones are assumed.
        held, fetched = (num_bytes.tolist() for num_bytes in stream.costs())
        least_cost = least_bytes(order, held, fetched, cache.limit, is_warm=not passes[0].is_first)
        ranks = passes[0].reading.division.world.ranks_on_host
        return stats_of(cache.counters, least_cost, passes[0].bytes_before, ranks)
