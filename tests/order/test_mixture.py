"""Orders of epochs over several streams."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.order import plan_epoch
from smalti.order.mixture.planning import BATCHINGS, StreamWeight
from tests.order.mixture_reference import reference_mixture
from tests.order.mixtures import constant

sizes = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(lambda s: sum(s) > 0)


def mixture(streams, taken=None, *, seed=7, epoch=0, nodes=2, block=5, shuffle=True, **options):
    """Return a plan over streams, given by their shard sizes, that takes the given samples of each, or each once."""
    weights = None if taken is None else [StreamWeight(choose=count) for count in taken]
    run = constant(streams, weights, seed=seed, **options)
    return run.plan(epoch, canonical_nodes=nodes, shuffle_block_size=block, shuffle=shuffle)


def all_ids(plan):
    return plan.sample_ids(0, len(plan)).tolist()


@st.composite
def cases(draw):
    """Draw streams, the samples taken of each, and a batching that fits them."""
    streams = draw(st.lists(sizes, min_size=1, max_size=4))
    taken = [draw(st.integers(0, 2 * sum(stream) + 3)) for stream in streams]
    method, ranks, local = draw(st.sampled_from(BATCHINGS)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch = ranks * local
    if method == "stratified":
        # Enough of every stream for one sample in each batch.
        taken = [max(count, 1) for count in taken]
        batch = draw(st.integers(-(-sum(taken) // min(taken)), sum(taken)))
    return streams, taken, (method, batch, local if method != "stratified" else 1)


@settings(max_examples=200, deadline=None)
@given(
    cases(), st.integers(0, 2**62), st.integers(0, 9), st.integers(1, 4), st.integers(1, 9), st.integers(1, 15),
    st.booleans(),
)  # fmt: skip
@pytest.mark.slow
def test_a_mixture_equals_the_reference_implementation(case, seed, epoch, nodes, block, granularity, fixed):
    streams, taken, (method, size, local) = case
    plan = mixture(
        streams, taken, seed=seed, epoch=epoch, nodes=nodes, block=block, batching_method=method, global_batch=size,
        local_batch=local, sampling_granularity=granularity, sampling_method="fixed" if fixed else "balanced",
    )  # fmt: skip
    expected = reference_mixture(
        streams, taken, seed=seed, epoch=epoch, nodes=nodes, block=block, granularity=granularity, fixed=fixed,
        batching=None if method == "random" else (method, size, local),
    )  # fmt: skip
    assert all_ids(plan) == expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("random", [18, 13, 15, 12, 14, 16, 16, 14, 13, 15, 8, 20, 7, 17, 10, 18, 9, 21, 11, 19, 2, 5, 1, 3, 0, 6, 4]),
        ("stratified", [
            7, 16, 13, 18, 1, 9, 8, 10, 12, 16, 13, 4, 0, 2, 5, 15, 14, 14, 20, 17, 11, 3, 6, 15, 18, 21, 19,
        ]),
        ("per_stream", [
            16, 18, 13, 16, 12, 13, 9, 7, 1, 8, 10, 4, 15, 14, 14, 15, 17, 20, 2, 5, 0, 3, 11, 6, 18, 21, 19,
        ]),
        ("device_per_stream", [
            16, 9, 18, 7, 13, 1, 16, 8, 12, 10, 13, 4, 15, 2, 14, 5, 14, 0, 15, 3, 17, 11, 20, 6, 18, 21, 19,
        ]),
    ],
)  # fmt: skip
def test_golden_order_of_version_1(method, expected):
    """Streams of 12 and 10 samples, the second one and a half times; batches of 6, or 3 for a rank."""
    plan = mixture(
        [[3, 4, 5], [10]], [12, 15], seed=9176, epoch=1, batching_method=method, global_batch=6, local_batch=3
    )
    assert all_ids(plan) == expected
    assert plan.stream_samples == (12, 15)


@pytest.mark.parametrize(
    ("granularity", "epochs"),
    [
        (1, [[2, 4, 5, 8, 9, 10], [1, 6, 7, 11, 14, 15], [0, 3, 4, 10, 12, 13], [2, 5, 7, 8, 9, 11]]),
        (4, [[2, 4, 5, 7, 9, 10], [8, 11, 12, 13, 14, 15], [0, 1, 3, 4, 5, 6], [2, 7, 8, 9, 10, 11]]),
    ],
)
def test_golden_draws_of_version_1(granularity, epochs):
    """6 of two shards of 8: after 8 epochs, 48 samples, each was taken three times."""
    drawn = [
        sorted(all_ids(mixture([[8, 8]], [6], seed=9176, epoch=epoch, sampling_granularity=granularity)))
        for epoch in range(8)
    ]
    assert drawn[:4] == epochs
    assert Counter(sample for samples in drawn for sample in samples) == dict.fromkeys(range(16), 3)


@given(sizes, st.integers(0, 2**62), st.integers(0, 9), st.integers(1, 5), st.sampled_from(BATCHINGS))
def test_one_stream_without_a_weight_is_in_the_order_of_plan_epoch(shards, seed, epoch, nodes, method):
    plan = mixture([shards], seed=seed, epoch=epoch, nodes=nodes, batching_method=method, global_batch=4, local_batch=2)
    alone = plan_epoch(shards, seed=seed, epoch=epoch, canonical_nodes=nodes, shuffle_block_size=5)
    assert all_ids(plan) == alone.sample_ids(0, len(alone)).tolist()


@given(cases(), st.integers(0, 20))
def test_each_stream_gives_its_share_and_counts_of_samples_differ_by_at_most_one(case, epoch):
    streams, taken, (method, size, local) = case
    plan = mixture(streams, taken, epoch=epoch, batching_method=method, global_batch=size, local_batch=local)
    times, first = Counter(all_ids(plan)), 0
    for stream, count in zip(streams, taken, strict=True):
        each = [times.pop(sample, 0) for sample in range(first, first + sum(stream))]
        assert sum(each) == count
        assert max(each) - min(each) <= 1
        first += sum(stream)
    assert not times


@given(cases(), st.data())
@pytest.mark.slow
def test_any_span_can_be_looked_up_alone(case, data):
    streams, taken, (method, size, local) = case
    options = {"batching_method": method, "global_batch": size, "local_batch": local}
    whole = all_ids(mixture(streams, taken, **options))
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    plan = mixture(streams, taken, **options)
    assert plan.sample_ids(begin, end).tolist() == whole[begin:end]
    backwards = np.arange(len(whole))[::-1]
    assert plan.ids_at(backwards).tolist() == whole[::-1]


@given(sizes, st.data(), st.integers(1, 15))
@pytest.mark.slow
def test_balanced_draws_take_all_samples_equally_often_at_every_epoch(shards, data, granularity):
    part = data.draw(st.integers(1, sum(shards)))
    times = Counter(range(sum(shards)))
    for epoch in range(12):
        times.update(all_ids(mixture([shards], [part], epoch=epoch, sampling_granularity=granularity)))
        assert max(times.values()) - min(times.values()) <= 1


def test_fixed_draws_take_the_same_samples_in_every_epoch_and_others_with_another_seed():
    first, later = (mixture([[50, 50]], [30], epoch=e, sampling_method="fixed") for e in (0, 5))
    other = mixture([[50, 50]], [30], epoch=0, seed=8, sampling_method="fixed")
    assert sorted(all_ids(first)) == sorted(all_ids(later))
    assert all_ids(first) != all_ids(later)
    assert sorted(all_ids(first)) != sorted(all_ids(other))


def test_a_tenth_of_a_stream_holds_a_tenth_of_each_shard():
    """40 shards of 1,000: 100 of each, give or take one or two, and of each tenth of a shard about 10."""
    ids = mixture([[1000] * 40], [4000], block=None)
    per_shard = np.bincount(np.array(all_ids(ids)) // 1000, minlength=40)
    assert abs(per_shard - 100).max() <= 2
    per_tenth = np.bincount(np.array(all_ids(ids)) % 1000 // 100, minlength=10)
    assert abs(per_tenth - 400).max() < 5 * 20


def test_a_granularity_of_whole_shards_opens_few_of_them():
    """4,000 samples of 40 shards of 1,000, drawn 1,000 at a time: four shards; in ten epochs each shard once."""
    opened = [
        {sample // 1000 for sample in all_ids(mixture([[1000] * 40], [4000], epoch=e, sampling_granularity=1000))}
        for e in range(10)
    ]
    assert [len(shards) for shards in opened] == [4] * 10
    assert set().union(*opened) == set(range(40))


def test_streams_of_one_shape_are_not_in_one_order():
    """Two streams with equal shards have different keys."""
    ids = np.array(all_ids(mixture([[40], [40]], batching_method="per_stream", global_batch=8)))
    first, second = ids[ids < 40], ids[ids >= 40] - 40
    assert sorted(first) == sorted(second) == list(range(40))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("method", ["random", "per_stream"])
@pytest.mark.parametrize("repeat", [1, 0.5])
def test_a_host_keeps_its_shards_in_every_epoch(method, repeat):
    """Two streams of 64 shards of 10 in 8 runs: the first of 2 hosts opens the same 64 of 128 shards."""
    opened = []
    for epoch in range(3):
        plan = mixture(
            [[10] * 64] * 2, [int(640 * repeat)] * 2, epoch=epoch, nodes=8, batching_method=method, global_batch=16
        )
        opened.append({int(sample) // 10 for sample in plan.sample_ids(0, len(plan))[::2]})
    assert opened[0] == opened[1] == opened[2]
    assert len(opened[0]) == 64


def test_without_shuffle_streams_copies_and_shards_come_as_they_are_stored():
    plan = mixture([[2, 1], [2]], [6, 2], shuffle=False)
    assert all_ids(plan) == [0, 1, 2, 0, 1, 2, 3, 4]


def test_a_billion_samples_of_five_streams_are_planned_without_touching_them():
    """10^5 shards of 10^4 samples, half of each stream; the ids at 90 % of the epoch are valid and distinct."""
    run = constant([np.full(20_000, 10_000)] * 5, [StreamWeight(repeat=0.5)] * 5, seed=1)
    plan = run.plan(3, canonical_nodes=64)
    assert len(plan) == 5 * 10**8
    ids = plan.sample_ids(45 * 10**7, 45 * 10**7 + 10**4)
    assert len(set(ids.tolist())) == 10**4
    assert 0 <= ids.min() <= ids.max() < 10**9
    assert set((ids // (2 * 10**8)).tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("argument", "value"), [("seed", -1), ("epoch", 1 << 63), ("canonical_nodes", 0)])
def test_an_argument_out_of_range_is_named(argument, value):
    arguments = {"seed": 0, "epoch": 0, "canonical_nodes": 1} | {argument: value}
    with pytest.raises(ValueError, match=f"`{argument}` must lie in"):
        mixture([[4]], seed=arguments["seed"], epoch=arguments["epoch"], nodes=arguments["canonical_nodes"])


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([4, -2], "`shard_sizes` of stream 1 must lie in .* found -2 for shard 1"),
        ([1 << 40], "found 1099511627776 for shard 0"),
        ([0.5], "stream 1 must be a row of whole numbers, found float64"),
    ],
)
def test_invalid_sizes_are_named(shards, message):
    with pytest.raises(ValueError, match=message):
        mixture([[4], shards])


def test_a_mixture_without_streams_is_refused():
    with pytest.raises(ValueError, match="at least one stream"):
        mixture([])


def test_a_span_outside_the_epoch_is_refused():
    with pytest.raises(IndexError, match=r"span \[0, 5\) is not inside"):
        mixture([[4]]).sample_ids(0, 5)
