"""Sequences woven into one, and permutations without a table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.order.mixture.weave import MAX_LENGTH, Weave, scattered
from smalti.splitmix import mixed
from tests.order import mixture_reference

words = st.integers(0, 2**64 - 1)


def weave(lengths, keys=None, group=1):
    keys = range(1, len(lengths) + 1) if keys is None else keys
    return Weave(np.array(lengths, dtype=np.int64), np.array(list(keys), dtype=np.uint64), group)


def test_words_are_mixed_as_by_splitmix64():
    """The first output of SplitMix64 with seed 0 is the mixed step, 0xE220A8397B1DCDAF: its published test vector."""
    assert int(mixed(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 65, 1000])
def test_scattering_is_a_bijection_for_every_size(size):
    places = np.arange(size)
    found = scattered(places, np.full(size, size), np.full(size, 77, dtype=np.uint64))
    assert sorted(found.tolist()) == list(range(size))


@given(st.lists(st.tuples(st.integers(1, 2**34), st.integers(0, 2**34), words), max_size=20))
def test_scattering_equals_the_reference_implementation(cases):
    cases = [(size, place % size, key) for size, place, key in cases]
    sizes, places, keys = (np.array([row[i] for row in cases], dtype=t) for i, t in enumerate([np.int64] * 2 + ["u8"]))
    expected = [mixture_reference.scattered(place, size, key) for size, place, key in cases]
    assert scattered(places, sizes, keys).tolist() == expected


def test_every_place_is_mapped_to_every_place_equally_often():
    """20,000 keys map each of 10 places to each of 10 about 2,000 times, with a standard deviation of 42."""
    keys = mixed(np.arange(20_000, dtype=np.uint64))
    for place in range(10):
        found = np.bincount(scattered(np.full(20_000, place), np.full(20_000, 10), keys), minlength=10)
        assert abs(found - 2000).max() < 5 * 42.5


def test_neighbours_are_mapped_far_apart():
    """The order of two places is kept as often as reversed: 10,000 of 20,000, with a standard deviation of 71."""
    keys, sizes = mixed(np.arange(20_000, dtype=np.uint64)), np.full(20_000, 1000)
    first, second = scattered(np.full(20_000, 4), sizes, keys), scattered(np.full(20_000, 5), sizes, keys)
    assert abs(np.count_nonzero(first < second) - 10_000) < 5 * 71
    assert abs(np.abs(first - second).mean() - 1000 / 3) < 10


@given(st.lists(st.tuples(st.integers(0, 30), words), min_size=1, max_size=6), st.integers(1, 12))
def test_a_weave_is_the_sequences_sorted_by_angle(parts, group):
    lengths, keys = [length for length, _ in parts], [key for _, key in parts]
    sequences, elements = weave(lengths, keys, group).locate(np.arange(sum(lengths)))
    expected = mixture_reference.woven(lengths, keys, group)
    assert list(zip(sequences.tolist(), elements.tolist(), strict=True)) == expected


def test_places_are_found_in_any_order_and_more_than_once():
    whole = weave([5, 3]).locate(np.arange(8))
    sequences, elements = weave([5, 3]).locate(np.array([7, 0, 7, 3]))
    assert sequences.tolist() == whole[0][[7, 0, 7, 3]].tolist()
    assert elements.tolist() == whole[1][[7, 0, 7, 3]].tolist()


def test_a_sequence_is_spread_over_the_whole():
    """Of 9,000 and 1,000: each tenth of the weave holds 100 of the second, give or take two."""
    before = weave([9000, 1000]).counts_before(np.arange(0, 10_001, 1000))
    assert before.sum(axis=1).tolist() == list(range(0, 10_001, 1000))
    assert np.abs(np.diff(before[:, 1]) - 100).max() <= 2


def test_equal_sequences_do_not_simply_alternate():
    sequences, _ = weave([1000, 1000]).locate(np.arange(2000))
    same = np.count_nonzero(np.diff(sequences) == 0)
    assert 300 < same < 1000


def test_the_longest_sequences_are_counted_without_overflow():
    long = weave([MAX_LENGTH, MAX_LENGTH, 1], group=1)
    before = long.counts_before(np.array([0, MAX_LENGTH, 2 * MAX_LENGTH + 1]))
    assert before[0].tolist() == [0, 0, 0]
    assert before[1].sum() == MAX_LENGTH
    assert before[2].tolist() == [MAX_LENGTH, MAX_LENGTH, 1]


def test_many_elements_at_one_angle_keep_their_order():
    """2^30 elements on 2^28 angles: consecutive ranks still go through each sequence one by one."""
    sequences, elements = weave([1 << 30, 1 << 30]).locate(np.arange(10**9, 10**9 + 1000))
    for sequence in (0, 1):
        assert set(np.diff(elements[sequences == sequence])) == {1}
