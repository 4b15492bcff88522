"""What a pass will ask the cache for: its shards step by step, through the epochs to come; and the look ahead of it."""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from smalti.cache import Uses
from smalti.dataset.passes import Pass
from smalti.dataset.reading import Planned, Reading
from smalti.stream import OpenStreams

_AT_ONCE = 1 << 16  # samples that are looked up together
_MIN_LOOKAHEAD = 64  # samples; what MosaicML Streaming looks ahead when the batch size is unknown
_MOST_WINDOW = 1 << 20  # samples of a shuffle window that are looked at before the first one is read


def uses(reading: Reading, stream: OpenStreams) -> Iterator[Uses]:
    """The shards that a pass needs, and the epochs after it, without an end; steps count on."""
    before = 0
    while num_steps := reading.division.num_steps:
        stride = max(1, _AT_ONCE // reading.batch_size)
        for first in range(0, num_steps, stride):
            planned = reading.steps(first, first + stride)
            ids = np.concatenate([ids for _, ids in planned])
            steps = np.repeat([before + step.step for step, _ in planned], [ids.size for _, ids in planned])
            yield Uses(stream.shards_of(ids), steps.astype(np.int64), before + min(first + stride, num_steps))
        before += num_steps
        reading = replace(reading, this_pass=Pass(reading.this_pass.start.next_epoch(), reading.this_pass.world))


def planned_ahead(
    reading: Reading, stream: OpenStreams, *, worker: int, num_workers: int, num_readers: int, predownload: int | None
) -> Iterator[Planned]:
    """The steps of one loader worker with their sample ids; the shards of those that follow are fetched meanwhile."""
    num_steps = reading.division.num_steps
    samples = max(8 * reading.batch_size, _MIN_LOOKAHEAD) if predownload is None else predownload
    span = max(1, -(-samples // reading.batch_size)) * num_readers * num_workers
    at_once = num_readers * num_workers - 1  # steps that others may be at
    cache = stream.cache
    cache.plan(uses(reading, stream))

    def looked_up(first: int, stop: int) -> list[Planned]:
        planned = reading.steps(first, stop, num_workers)
        if planned:
            stream.prefetch(np.concatenate([ids for _, ids in planned]))
        return planned

    over = 0
    try:
        upcoming = looked_up(worker, span)
        for first in range(worker, num_steps, span):
            current = upcoming
            # The next span's shards are on their way while this one is read.
            upcoming = looked_up(first + span, first + 2 * span)
            cache.settle(over)
            for step, ids in current:
                cache.reached(max(0, step.step - at_once))
                over = step.step + 1
                yield step, ids
    finally:
        cache.settle(over)


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
    shards = np.unique(stream.shards_of(np.concatenate([ids for _, ids in planned])))
    held, _ = stream.cache.costs()
    needed = sum(held[shard] for shard in shards.tolist())
    if needed > limit:
        warnings.warn(
            f"`cache_limit` is {limit:,} bytes, and the shards that {window:,} shuffled samples lie in take "
            f"{needed:,}: many will be fetched more than once in an epoch. Raise the limit, or take a smaller "
            "`shuffle_block_size`; `dataset.stats()` tells what it costs.",
            stacklevel=4,
        )


def shards_needed(reading: Reading, stream: OpenStreams, num_steps: int) -> NDArray[np.int64]:
    """The shards that the first steps of a pass need, step by step and in each the lowest first."""
    needed, num_steps = [], min(num_steps, reading.division.num_steps)
    for stretch in uses(reading, stream):
        pairs = np.unique(np.stack((stretch.steps, stretch.shards)), axis=1)
        needed.append(pairs[1][pairs[0] < num_steps])
        if stretch.end >= num_steps:
            break
    return np.concatenate(needed) if needed else np.zeros(0, np.int64)
