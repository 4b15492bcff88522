"""Outlines of the order: between which steps a host needs a shard."""

import tracemalloc
from itertools import islice

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.cursor import MixedStream
from smalti.dataset.lookahead import outlines, uses
from smalti.dataset.order import Pass, Reading, RunOrder, with_batch_sizes
from smalti.dataset.resume import first_cursor
from smalti.order.mixture.planning import StreamWeight
from smalti.world import World


def reading_of(sizes, world, batch_size, **options):
    options = RunOrder(shuffle=True, tail="drop", **options)
    streams = [MixedStream("d", None, sum(stream)) for stream in sizes]
    cursor = with_batch_sizes(first_cursor(options, world, streams, sizes), world, batch_size)
    return Reading(Pass(cursor, world), sizes, batch_size, options)


parameters = {
    "nodes": st.integers(1, 5),
    "hosts": st.integers(1, 3),
    "block": st.sampled_from([3, 10, 1 << 10]),
    "affinity": st.sampled_from([1.0, 0.5, 0.0]),
    "batch_size": st.integers(1, 4),
}


def check_three_epochs(reading, ends):
    """Check that each use of a shard lies within its outline."""
    for epoch, stretch in zip(islice(outlines(reading, ends), 3), uses(reading, ends), strict=False):
        assert epoch.end == stretch.end
        spans = {}
        for shard, begin, end in zip(epoch.shards, epoch.begins, epoch.ends, strict=True):
            spans.setdefault(int(shard), []).append((begin, end))
        for shard, step in zip(stretch.shards.tolist(), stretch.steps.tolist(), strict=True):
            assert any(begin <= step < end for begin, end in spans[shard])


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 20), min_size=2, max_size=25).filter(lambda sizes: sum(sizes) > 60), **parameters)
def test_each_use_of_a_shard_lies_within_its_outline(sizes, nodes, hosts, block, affinity, batch_size):
    """Sets whose samples the runs divide evenly."""
    sizes = [*sizes, -sum(sizes) % nodes]
    world = World(hosts - 1, hosts, hosts - 1, hosts)
    options = {"num_canonical_nodes": nodes, "shuffle_block_size": block, "affinity": affinity}
    check_three_epochs(reading_of([sizes], world, batch_size, **options), np.cumsum(sizes))


@settings(max_examples=30)
@given(repeat=st.sampled_from([0.5, 1.0, 1.5, 2.0]), **parameters)
def test_each_use_of_a_shard_of_a_mixture_lies_within_its_outline(repeat, nodes, hosts, block, affinity, batch_size):
    """60 samples of one stream, and from half to twice those of the other."""
    sizes = [[20, 0, 16, 24], [10, 30, 20, 25, 35]]
    world = World(hosts - 1, hosts, hosts - 1, hosts)
    options = {"num_canonical_nodes": nodes, "shuffle_block_size": block, "affinity": affinity}
    weights = (StreamWeight(), StreamWeight(repeat=repeat))
    check_three_epochs(reading_of(sizes, world, batch_size, weights=weights, **options), np.cumsum(sizes[0] + sizes[1]))


def test_batches_of_streams_have_no_outline():
    reading = reading_of(
        [[20, 10], [30]], World(), 6, weights=(StreamWeight(), StreamWeight()), batching_method="stratified"
    )
    assert list(outlines(reading, np.cumsum([20, 10, 30]))) == []


def test_the_outline_of_a_case_computed_by_hand():
    """Two runs of two shards of 8; windows of 8 are one shard each, so a shard is needed in one half of the 8 steps.

    A step takes 4 samples: two rows of the two runs. The host reads one of the runs: two of the four shards.
    """
    reading = reading_of([[8] * 4], World(0, 2, 0, 2), 2, num_canonical_nodes=2, shuffle_block_size=8)
    first, second = islice(outlines(reading, np.cumsum([8] * 4)), 2)
    assert sorted(zip(first.begins.tolist(), first.ends.tolist(), strict=True)) == [(0, 4), (4, 8)]
    assert sorted(zip(second.begins.tolist(), second.ends.tolist(), strict=True)) == [(8, 12), (12, 16)]
    assert (first.end, second.end) == (8, 16)
    assert sorted(first.shards.tolist()) == sorted(second.shards.tolist())
    assert len(set(first.shards.tolist())) == 2


def test_orders_that_are_not_of_windows_have_no_outline():
    sizes = [8] * 4
    options = RunOrder(shuffle=False)
    cursor = first_cursor(options, World(), [MixedStream("d", None, 32)], [sizes])
    assert list(outlines(Reading(Pass(cursor, World()), [sizes], 2, options), np.cumsum(sizes))) == []


def test_uses_keep_no_batches_between_two_spans():
    """A span of batches of one sample is 65,536 of them, which would take 25 MB."""
    sizes = [[1000] * 200]
    found = uses(reading_of(sizes, World(), 1), np.cumsum(sizes[0]))
    next(found)
    tracemalloc.start()
    try:
        next(found)
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()
