"""MosaicML's sampling: the samples that an epoch takes of its streams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.compat.streaming.order.sampling import get_sampling, resample, weigh_streams
from smalti.order.mixture.planning import StreamWeight

sizes = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def resampled(shard_sizes, counts, **options):
    return resample(np.array(shard_sizes), np.array(counts), **({"seed": 1, "epoch": 0} | options))


def sample_counts(shard_sizes, choose, *, granularity=1, seed, epoch=0, use_epoch=True):
    return get_sampling(shard_sizes, choose, granularity, seed, epoch, use_epoch)


def taken(shard_sizes, counts, **options):
    found = resampled(shard_sizes, counts, **options)
    return found.units.tolist(), found.sample_ids(np.arange(len(found))).tolist()


def test_whole_copies_need_no_draw():
    assert sample_counts([5, 7], 24, seed=1).tolist() == [10, 14]
    assert sample_counts([5, 7], 0, seed=1).tolist() == [0, 0]


@given(sizes, st.integers(0, 100), st.integers(1, 40), st.integers(0, 99))
def test_the_chosen_number_is_taken_and_copies_differ_by_at_most_one(shard_sizes, choose, granularity, seed):
    counts = sample_counts(shard_sizes, choose, granularity=granularity, seed=seed)
    assert counts.sum() == choose
    copies = choose // sum(shard_sizes)
    for size, count in zip(shard_sizes, counts.tolist(), strict=True):
        assert copies * size <= count <= (copies + 1) * size


def test_samples_are_taken_a_granule_at_a_time():
    """20 of 100 in granules of 10: two shards of 10 are taken whole."""
    assert sorted(sample_counts([10] * 10, 20, granularity=10, seed=4).tolist()) == [0] * 8 + [10] * 2


def test_epochs_draw_anew_only_with_use_epoch():
    def at(epoch, use_epoch):
        return sample_counts([30] * 10, 45, seed=4, epoch=epoch, use_epoch=use_epoch).tolist()

    assert at(0, use_epoch=False) == at(3, use_epoch=False) == at(0, use_epoch=True)
    assert at(0, use_epoch=True) != at(3, use_epoch=True)


def test_a_stream_without_samples_gives_none():
    assert sample_counts([0, 0], 0, seed=1).tolist() == [0, 0]
    with pytest.raises(ValueError, match="`choose` must be 0 for a stream without samples, found 3"):
        sample_counts([0, 0], 3, seed=1)


@pytest.mark.parametrize("name", ["choose", "granularity", "seed", "epoch"])
def test_an_argument_out_of_range_is_named(name):
    with pytest.raises(ValueError, match=f"`{name}` must be at least ., found -1"):
        sample_counts([5], **({"choose": 2, "seed": 1} | {name: -1}))


def test_every_copy_of_a_shard_is_a_unit_of_its_own():
    """The example in the module's docstring: a shard of 4 of which 10 are chosen, and one of 3 that is left out."""
    units, ids = taken([4, 3], [10, 0])
    assert units == [4, 4, 2]
    assert ids[:8] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert ids[8] < ids[9] <= 3


def test_streams_taken_once_need_no_table():
    """Two streams, of 2, 0 and 3 samples, and of 4."""
    assert resampled([2, 0, 3, 4], [2, 0, 3, 4]).ids is None
    assert taken([2, 0, 3, 4], [2, 0, 3, 4]) == ([2, 3, 4], list(range(9)))


def test_a_stream_alone_keeps_its_sample_ids():
    assert taken([2, 3], [2, 3], first_id=7) == ([2, 3], [7, 8, 9, 10, 11])
    assert taken([2, 3], [4, 0], first_id=7) == ([2, 2], [7, 8, 7, 8])


def test_sample_ids_beyond_31_bits_are_whole():
    alone = resampled([3], [3], first_id=1 << 31)
    assert alone.sample_ids(np.array([0, 2], np.int32)).tolist() == [1 << 31, (1 << 31) + 2]
    twice = resampled([3], [6], first_id=1 << 31)
    assert twice.sample_ids(np.array([0, 5], np.int32)).tolist() == [1 << 31, (1 << 31) + 2]


@given(sizes, st.integers(1, 80), st.sampled_from(["balanced", "fixed"]))
def test_samples_of_a_shard_are_taken_equally_often_or_once_more(shard_sizes, choose, sampling):
    counts = sample_counts(shard_sizes, choose, seed=3)
    units, ids = taken(shard_sizes, counts, sampling=sampling, epoch=2)
    assert sum(units) == len(ids) == choose
    ends = np.cumsum(shard_sizes).tolist()
    for end, size, count in zip(ends, shard_sizes, counts.tolist(), strict=True):
        often = np.bincount(ids, minlength=ends[-1])[end - size : end]
        assert set(often.tolist()) <= {count // size, -(-count // size)}


def test_another_sampling_is_refused():
    with pytest.raises(ValueError, match="`sampling_method` must be one of balanced, fixed, found 'even'"):
        resampled([1], [1], sampling="even")


def weighed(shard_sizes, weights=None, **options):
    return [(s.choose, s.proportion) for s in weigh_streams(shard_sizes, weights, **options)]


def test_streams_without_weights_are_read_once():
    assert weighed([[5, 3], [2]]) == [(8, 0.8), (2, 0.2)]


def test_repeat_and_choose_are_absolute():
    """2.5 times 8, and 5 of 2, and all of 15."""
    weights = [StreamWeight(repeat=2.5), StreamWeight(choose=5), StreamWeight()]
    assert weighed([[5, 3], [2], [15]], weights) == [(20, 0.5), (5, 0.125), (15, 0.375)]


def test_proportions_divide_the_epoch():
    weights = [StreamWeight(proportion=3), StreamWeight(proportion=1)]
    assert weighed([[5], [3]], weights) == [(6, 0.75), (2, 0.25)]
    assert weighed([[5], [3]], weights, epoch_size=100) == [(75, 0.75), (25, 0.25)]


def test_an_epoch_size_without_weights_is_shared_by_size():
    assert weighed([[6], [2]], epoch_size=40) == [(30, 0.75), (10, 0.25)]


def test_rounding_gives_a_sample_to_streams_that_the_seed_chooses():
    """10 over three equal streams: 3 each, and one of them gets one more."""
    weights = [StreamWeight(proportion=1)] * 3
    found = [tuple(c for c, _ in weighed([[5]] * 3, weights, epoch_size=10, seed=seed)) for seed in range(20)]
    assert set(found) == {(4, 3, 3), (3, 4, 3), (3, 3, 4)}


@pytest.mark.parametrize(
    ("weights", "epoch_size", "message"),
    [
        ([StreamWeight(proportion=1), StreamWeight()], None, "for all streams or for none.*1 of 2"),
        ([StreamWeight(repeat=1), StreamWeight()], 10, "`epoch_size` must not be given with"),
        ([StreamWeight()], None, "must be as many as the streams, found 1 for 2"),
        ([StreamWeight(choose=0), StreamWeight(repeat=0)], None, "must take at least one sample"),
        ([StreamWeight(proportion=0), StreamWeight(proportion=0)], None, "must sum to more than 0"),
    ],
)
def test_weights_that_contradict_each_other_are_refused(weights, epoch_size, message):
    with pytest.raises(ValueError, match=message):
        weigh_streams([[5], [3]], weights, epoch_size=epoch_size)


def test_two_weights_for_one_stream_are_refused():
    with pytest.raises(ValueError, match=r"at most one of .* found proportion, choose"):
        StreamWeight(proportion=1, choose=3)


@pytest.mark.parametrize(("name", "value"), [("proportion", -0.5), ("repeat", float("nan")), ("choose", -1)])
def test_a_weight_below_0_is_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 0, found {value}"):
        StreamWeight(**{name: value})
