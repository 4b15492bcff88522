"""Batches of streams, as ranks read them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.compat.streaming.order.partition import WorldShape
from smalti.errors import WorldMismatch
from smalti.order import Division
from tests.compat.streaming.mosaic_worlds import rank_of
from tests.order.test_mixture import all_ids, mixture

A, B, C = [90, 60], [30], [7, 13]
"""Streams of 150, 30 and 20 samples: ids below 150, below 180, below 200."""


def stream_of(ids):
    return np.searchsorted([150, 180, 200], np.asarray(ids), side="right")


def read_by(plan, shape, rank, start=0):
    """Return the samples that one rank reads at each step from `start` on, without repeats."""
    division = Division(len(plan), start, shape.batch_size, rank_of(shape, rank), "short")
    steps = division.steps(0, division.num_steps)
    return [plan.ids_at(step.positions[step.positions >= 0]) for step in steps]


def test_stratified_gives_each_batch_the_same_number_of_each_stream():
    """20 of 150 + 30 + 20 are 15, 3 and 2."""
    plan = mixture([A, B, C], batching_method="stratified", global_batch=20)
    assert plan.num_batched == len(plan) == 200
    streams = stream_of(all_ids(plan)).reshape(10, 20)
    assert [np.bincount(batch).tolist() for batch in streams] == [[15, 3, 2]] * 10
    assert len({tuple(batch) for batch in streams.tolist()}) == 10  # each batch in an order of its own


def test_stratified_rounds_by_the_largest_remainder():
    """16 of them are 12, 2.4 and 1.6: 12, 2 and 2. The third stream lasts 10 batches, and 30 and 10 are left."""
    plan = mixture([A, B, C], batching_method="stratified", global_batch=16)
    assert plan.num_batched == 160
    streams = stream_of(all_ids(plan))
    assert [np.bincount(batch).tolist() for batch in streams[:160].reshape(10, 16)] == [[12, 2, 2]] * 10
    assert np.bincount(streams[160:]).tolist() == [30, 10]


def test_the_rest_after_stratified_batches_is_woven_evenly():
    """30 of one stream and 10 of another: in each quarter 7 or 8 of the first, give or take one or two."""
    rest = stream_of(all_ids(mixture([A, B, C], batching_method="stratified", global_batch=16))[160:])
    assert [abs(np.count_nonzero(part == 0) - 7.5) <= 2 for part in rest.reshape(4, 10)] == [True] * 4


def test_without_shuffle_a_stratified_batch_holds_stream_after_stream():
    """4 of 6 and 2 are 3 and 1."""
    plan = mixture([[6], [2]], shuffle=False, batching_method="stratified", global_batch=4)
    assert all_ids(plan) == [0, 1, 2, 6, 3, 4, 5, 7]


@pytest.mark.parametrize(
    ("method", "shards", "message"),
    [
        ("per_stream", [8, 2], "at most 17179869184 batches to an epoch, found 34359738368"),
        # 4 of 8 and 2 are 3.2 and 0.8: 3 and 1, so that 8 - 3 x 2 shards are left.
        ("stratified", [8, 2], "at most 17179869184 samples beyond whole batches, found 34359738368"),
    ],
)
def test_streams_of_too_many_samples_are_refused(method, shards, message):
    """Shards of 2^34 samples, the largest allowed, in batches of 4."""
    with pytest.raises(ValueError, match=message):
        mixture([[1 << 34] * count for count in shards], batching_method=method, global_batch=4)


def test_a_stream_too_small_for_every_batch_is_refused():
    """4 of 150 + 30 + 20 are 3, 0.6 and 0.4."""
    with pytest.raises(WorldMismatch, match="stream 2 would have no sample in a global batch of 4") as caught:
        mixture([A, B, C], batching_method="stratified", global_batch=4)
    assert (caught.value.stream, caught.value.global_batch) == (2, 4)


def test_per_stream_takes_each_batch_from_one_stream():
    """Batches of 16: 9, 1 and 1; 6, 14 and 4 samples remain."""
    plan = mixture([A, B, C], batching_method="per_stream", global_batch=16)
    assert plan.num_batched == 176
    streams = stream_of(all_ids(plan))
    batches = streams[:176].reshape(11, 16)
    assert (batches == batches[:, :1]).all()
    assert np.bincount(batches[:, 0]).tolist() == [9, 1, 1]
    assert np.bincount(streams[176:]).tolist() == [6, 14, 4]


def test_a_stream_smaller_than_a_batch_comes_last():
    plan = mixture([A, B], batching_method="per_stream", global_batch=40)
    assert plan.num_batched == 120
    assert np.bincount(stream_of(all_ids(plan)[120:])).tolist() == [30, 30]


def test_per_stream_batches_come_in_another_order_each_epoch():
    orders = set()
    for epoch in range(20):
        plan = mixture([A, B, C], epoch=epoch, batching_method="per_stream", global_batch=10)
        orders.add(tuple(stream_of(all_ids(plan)[::10]).tolist()))
    assert len(orders) == 20


@pytest.mark.parametrize("shape", [WorldShape(2, 2, batch_size=3), WorldShape(1, 4, batch_size=3)])
def test_device_per_stream_takes_each_ranks_batch_from_one_stream(shape):
    """Batches of 3: 50, 10 and 6 are 66; 4 ranks take 16 steps; two batches and the remaining samples come last."""
    plan = mixture([A, B, C], batching_method="device_per_stream", global_batch=12, local_batch=3)
    assert plan.num_batched == 192
    by_rank = [read_by(plan, shape, rank) for rank in range(4)]
    mixed_steps = 0
    for step in range(16):
        batches = [stream_of(batches[step]) for batches in by_rank]
        assert all(len(batch) == 3 and len(set(batch.tolist())) == 1 for batch in batches)
        mixed_steps += len({int(batch[0]) for batch in batches}) > 1
    assert mixed_steps > 5
    read = Counter(sample for batches in by_rank for batch in batches for sample in batch.tolist())
    assert read == Counter(range(200))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([{}, {"batching_method": "stratified"}, {"batching_method": "per_stream"},
                     {"batching_method": "device_per_stream", "local_batch": 4}]),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(0, 3)), max_size=5),
)  # fmt: skip
@pytest.mark.slow
def test_a_chain_of_worlds_reads_the_epoch_once_and_in_order(batching, segments):
    """Each segment reads some steps and is resumed by another world; the last one reads to the end."""
    plan = mixture([A, B, C], [75, 60, 20], global_batch=16, **batching)
    read, start = [], 0
    for hosts, ranks, batch, num_steps in [*segments, (2, 1, 5, 1000)]:
        shape = WorldShape(hosts, ranks, batch_size=batch)
        parts = [read_by(plan, shape, rank, start)[:num_steps] for rank in range(shape.num_ranks)]
        for step in range(len(parts[0])):
            taken = np.concatenate([part[step] for part in parts]).tolist()
            assert sorted(taken) == sorted(plan.sample_ids(start, start + len(taken)).tolist())
            read += taken
            start += len(taken)
    assert start == len(plan) == 155
    assert sorted(read) == sorted(all_ids(plan))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batching_method": "mixed"}, "`batching_method` must be one of random, .* found 'mixed'"),
        ({"sampling_method": "none"}, "`sampling_method` must be one of balanced, fixed, found 'none'"),
        ({"batching_method": "stratified"}, "`global_batch` must be given with batching 'stratified'"),
        ({"batching_method": "device_per_stream", "global_batch": 8}, "`local_batch` must be given"),
    ],
)
def test_invalid_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        mixture([A], **options)


def test_a_global_batch_is_a_multiple_of_the_local_one():
    with pytest.raises(WorldMismatch, match="global batch of 10 cannot be divided into batches of 4"):
        mixture([A], batching_method="device_per_stream", global_batch=10, local_batch=4)
