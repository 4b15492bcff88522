"""The samples that each stream gives to an epoch, worked out by hand."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.order.mixture.planning import StreamWeight, samples_taken


def taken(totals, weights, epoch_size=None, seed=0):
    return samples_taken(totals, weights, epoch_size=epoch_size, seed=seed)


def proportions(*parts):
    return [StreamWeight(proportion=part) for part in parts]


def test_streams_without_weight_are_read_once():
    assert taken([5, 0, 3], [StreamWeight()] * 3) == [5, 0, 3]


def test_repeat_and_choose_are_absolute():
    weights = [StreamWeight(repeat=2.5), StreamWeight(choose=4), StreamWeight(), StreamWeight(repeat=0)]
    assert taken([11, 100, 7, 9], weights) == [27, 4, 7, 0]


def test_repeat_means_the_number_as_it_is_written():
    """The floats nearest to 0.7 and 2.3 lie below them, and 0.29 * 100 is 28.999999999999996."""
    weights = [StreamWeight(repeat=0.7), StreamWeight(repeat=2.3), StreamWeight(repeat=0.29)]
    assert taken([10, 10, 100], weights) == [7, 23, 29]


def test_proportions_divide_the_epoch():
    assert taken([10, 10], proportions(3, 1), epoch_size=100) == [75, 25]
    assert taken([10, 30], proportions(0.5, 0.5)) == [20, 20]


def test_an_epoch_size_alone_shares_by_size():
    assert taken([10, 30], [StreamWeight()] * 2, epoch_size=8) == [2, 6]


def test_a_shortfall_goes_to_streams_that_lost_by_rounding():
    """10 by 1 : 1 : 1 : 0 are 3, 3, 3, 0 and one more; in 300 seeds each of three gets it, the fourth never."""
    winners = Counter()
    for seed in range(300):
        counts = taken([9] * 4, proportions(1, 1, 1, 0), epoch_size=10, seed=seed)
        assert sorted(counts) == [0, 3, 3, 4]
        winners[counts.index(4)] += 1
    assert set(winners) == {0, 1, 2}
    assert min(winners.values()) > 60


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(lambda parts: sum(parts) > 0),
    st.integers(1, 2**61),
    st.integers(0, 2**62),
)
def test_the_sum_is_the_epoch_size_exactly(parts, epoch_size, seed):
    counts = taken([1] * len(parts), proportions(*parts), epoch_size=epoch_size, seed=seed)
    assert sum(counts) == epoch_size
    assert all(part > 0 for part, count in zip(parts, counts, strict=True) if count)


@pytest.mark.parametrize(
    ("totals", "weights", "epoch_size", "message"),
    [
        ([1, 1], [StreamWeight(proportion=1), StreamWeight()], None, "found it for 1 of 2 streams"),
        ([1, 1], [StreamWeight(repeat=1), StreamWeight()], 9, "`epoch_size` must not be given .* found 9"),
        ([1, 1], proportions(0, 0), None, "must sum to more than 0"),
        ([4, 0], proportions(1, 1), None, "stream 1 has no samples, and 2 are to be taken"),
        ([4], [StreamWeight(repeat=float("inf"))], None, "`repeat` must be finite"),
        ([4], proportions(float("inf")), None, "`proportion` must be finite"),
    ],
)
def test_weights_that_contradict_each_other_are_refused(totals, weights, epoch_size, message):
    with pytest.raises(ValueError, match=message):
        taken(totals, weights, epoch_size)


def test_an_epoch_of_more_samples_than_64_bits_can_count_is_refused():
    assert taken([10], [StreamWeight(choose=(1 << 62) - 1)]) == [(1 << 62) - 1]
    for weight in (StreamWeight(choose=1 << 62), StreamWeight(repeat=1e18)):
        with pytest.raises(ValueError, match=r"take \d{19,20} samples in an epoch, expected at most 46116\d{14}:"):
            taken([10], [weight])
