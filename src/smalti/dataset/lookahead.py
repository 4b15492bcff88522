"""What a pass will ask the cache for: its shards step by step, through the epochs to come; and the look ahead of it.

Which passes a dataset has begun and how far they came: what it read, and what that had to cost at the least.
"""

import hashlib
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheStats, Uses, least_bytes, stats_of
from smalti.dataset.forecast import bytes_in_use
from smalti.dataset.order import Pass, Planned, Reading
from smalti.order import EpochPlan
from smalti.stream import OpenStreams

Ints = NDArray[np.int64]
_AT_ONCE = 1 << 16  # samples that are looked up together
_MIN_LOOKAHEAD = 64  # samples; what MosaicML Streaming looks ahead when the batch size is unknown
_SHARDS_AHEAD = 4  # average shards; fewer leave the link idle whenever one of them is late
_MOST_AHEAD = 1 << 16, 1 << 10  # samples and steps: they are planned at once, some microseconds a step
_MOST_WINDOW = 1 << 20  # samples of a shuffle window that are looked at before the first one is read


def uses(reading: Reading, shard_ends: Ints) -> Iterator[Uses]:
    """The shards that a pass needs, and the epochs after it, without an end; steps count on.

    Those of all ranks of the host: they share a folder, and take their steps together. `shard_ends` is that of the
    stream, which this must not refer to: the stream's cache keeps it.
    """
    before = 0
    while num_steps := reading.division.num_steps:
        stride = max(1, _AT_ONCE // (reading.batch_size * reading.division.world.ranks_on_host))
        for first in range(0, num_steps, stride):
            ids, steps = _of_host(reading, first, first + stride)
            shards = np.searchsorted(shard_ends, ids, side="right")
            yield Uses(shards, before + steps, before + min(first + stride, num_steps))
        before += num_steps
        reading = replace(reading, this_pass=Pass(reading.this_pass.start.next_epoch(), reading.this_pass.world))


def _of_host(reading: Reading, first: int, stop: int) -> tuple[Ints, Ints]:
    """The samples that the ranks of the host need at these steps, and the step of each."""
    division = reading.division
    ranks = [replace(division.world, host_rank=rank) for rank in range(division.world.ranks_on_host)]
    taken = [step for rank in ranks for step in replace(division, world=rank).steps(first, stop)]
    ids = reading.plan.ids_at(np.concatenate([step.lookup for step in taken]))
    steps = np.repeat([step.step for step in taken], [step.lookup.size for step in taken])
    is_sample = ids >= 0  # MosaicML's orders have places that are nobody's
    return ids[is_sample], steps[is_sample]


def order_name(reading: Reading) -> str:
    """Equal for readers that count the same steps of the same order: ranks and workers of a job."""
    world = reading.division.world
    facts = (reading.this_pass.start, reading.batch_size, world.num_ranks, world.num_hosts, reading.options.last_step)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def planned_ahead(
    reading: Reading, stream: OpenStreams, *, worker: int, num_workers: int, num_readers: int, predownload: int | None
) -> Iterator[Planned]:
    """The steps of one loader worker with their sample ids; the shards of those that follow are fetched meanwhile."""
    if not reading.division.num_steps:
        return
    num_all = num_readers * num_workers
    span, later_span = _spans(reading, stream, num_all, predownload)
    cache = stream.cache
    side_by_side = reading.division.world.ranks_on_host > 1
    cache.plan(uses(reading, stream.shard_ends), order_name(reading), is_of_many=side_by_side)

    def looked_up(first: int, stop: int) -> list[Planned]:
        planned = reading.steps(first, stop, num_workers)
        if planned:
            stream.prefetch(np.concatenate([ids for _, ids in planned]))
        return planned

    over = 0
    try:
        current, following = looked_up(worker, worker + span), worker + span
        while current:
            upcoming: list[Planned] | None = None
            for place, (step, ids) in enumerate(current, start=1):
                cache.reached(max(0, step.step - num_all + 1))  # others may be at those since
                over = step.step + 1
                yield step, ids
                if upcoming is None and place >= num_readers:
                    # A first step is read: till then these shards have the link to themselves.
                    upcoming = looked_up(following, following + later_span)
                    following += later_span
            cache.settle(over)
            current = upcoming or []
    finally:
        cache.settle(over)
        cache.rest()


def _spans(reading: Reading, stream: OpenStreams, num_all: int, predownload: int | None) -> tuple[int, int]:
    """Steps of all workers that are looked up together: at first, and later on; multiples of the workers."""
    samples = max(8 * reading.batch_size, _MIN_LOOKAHEAD) if predownload is None else predownload
    first = max(1, -(-samples // reading.batch_size)) * num_all
    if predownload is not None:
        return first, first
    most_samples, most_steps = _MOST_AHEAD
    of_shards = _SHARDS_AHEAD * int(stream.shard_sizes.mean())
    later = min(most_steps, min(most_samples, of_shards) // reading.batch_size)
    return first, max(first, later // num_all * num_all)


def check_window(reading: Reading, stream: OpenStreams) -> None:
    """Warns if the samples that one shuffle window mixes lie in more bytes of shards than the cache may hold."""
    limit, start = stream.cache.limit, reading.this_pass.start
    if limit is None:
        return
    window = start.canonical_nodes * start.block_size if start.shuffle else start.canonical_nodes
    of_rank = min(window, _MOST_WINDOW) // reading.this_pass.world.num_ranks
    planned = reading.steps(0, max(1, of_rank // reading.batch_size))
    if not planned:
        return
    held = np.array(stream.cache.costs()[0], np.int64)
    plan, world = reading.plan, reading.division.world
    if isinstance(plan, EpochPlan):
        needed = bytes_in_use(plan, stream.shard_sizes, held, world.host, world.num_hosts)
    else:  # a mixture, or one of MosaicML's orders: a rank's own part of the first window
        needed = int(held[np.unique(stream.shards_of(np.concatenate([ids for _, ids in planned])))].sum())
    if needed > limit:
        warnings.warn(
            f"`cache_limit` is {limit:,} bytes, and the shards that {window:,} shuffled samples lie in take "
            f"{needed:,}: many will be fetched more than once in an epoch. Raise the limit, or take a smaller "
            "`shuffle_block_size`; `dataset.stats()` tells what it costs.",
            stacklevel=4,
        )


def shards_needed(reading: Reading, stream: OpenStreams, num_steps: int) -> Ints:
    """The shards that the first steps of a pass need, step by step and in each the lowest first."""
    needed, num_steps = [], min(num_steps, reading.division.num_steps)
    for stretch in uses(reading, stream.shard_ends):
        pairs = np.unique(np.stack((stretch.steps, stretch.shards)), axis=1)
        needed.append(pairs[1][pairs[0] < num_steps])
        if stretch.end >= num_steps:
            break
    return np.concatenate(needed) if needed else np.zeros(0, np.int64)


MOST_PASSES = 8
_MOST_COUNTED = 1 << 22  # shards asked for; seconds


@dataclass
class _Begun:
    """A pass, and what had been fetched when it began."""

    reading: Reading
    bytes_before: int
    is_first: bool
    steps: int = 0
    """That were read; of the pass at hand the counters know."""


@dataclass
class History:
    """The latest passes; those of loader workers are their program's."""

    begun: deque[_Begun] = field(default_factory=lambda: deque(maxlen=MOST_PASSES))

    def begin(self, reading: Reading, stream: OpenStreams) -> None:
        """Another pass begins; warns before the first one if the cache is too small for it."""
        counters = stream.cache.counters
        if self.begun:
            self.begun[-1].steps = counters.get("reached")
        elif len(stream):
            check_window(reading, stream)
        else:
            warnings.warn(
                f"{stream.root} has no samples: an epoch of it ends at once. Check the address, the version and the "
                "split",
                stacklevel=4,
            )
        counters.restart()
        self.begun.append(_Begun(reading, counters.get("bytes_fetched"), is_first=not self.begun))

    def stats(self, stream: OpenStreams, *, least: bool) -> CacheStats:
        """What reading has cost, and the least that it can if `least` is asked for."""
        cache = stream.cache
        cache.settle()
        if not (least and self.begun):
            return stats_of(cache.counters)
        self.begun[-1].steps = cache.counters.get("reached")
        passes, needed = self._needed(stream)
        if not passes or (cache.limit is None and not passes[0].is_first):
            return stats_of(cache.counters)
        order = np.concatenate(needed).tolist()
        # What lay there when the first of them began is not known: the best that could.
        found = least_bytes(order, *cache.costs(), cache.limit, is_warm=not passes[0].is_first)
        ranks = passes[0].reading.division.world.ranks_on_host
        return stats_of(cache.counters, found, passes[0].bytes_before, ranks)

    def _needed(self, stream: OpenStreams) -> tuple[list[_Begun], list[NDArray[np.int64]]]:
        """The latest passes that can be counted, and what each needed."""
        passes = [each for each in self.begun if each.steps]
        # Of a copy of each: what is begun would keep its epoch's plan otherwise, for as long as the dataset.
        needed = [shards_needed(replace(each.reading), stream, each.steps) for each in passes]
        from_last = list(accumulate(each.size for each in reversed(needed)))
        count = sum(size <= _MOST_COUNTED for size in from_last)
        first = len(passes) - count
        return passes[first:], needed[first:]
