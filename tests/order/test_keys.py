"""Keyed permutations."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from smalti.order.keys import stable_order, stable_order_at


def test_equal_keys_keep_their_order():
    """2^16 keys of only two values: an unstable sort would reorder equal ones."""
    keys = np.arange(1 << 16, dtype=np.uint64) % np.uint64(2)
    evens, odds = list(range(0, 1 << 16, 2)), list(range(1, 1 << 16, 2))
    assert stable_order(keys).tolist() == evens + odds


def test_distinct_keys_are_ranked():
    assert stable_order(np.array([30, 10, 1 << 63, 20], dtype=np.uint64)).tolist() == [1, 3, 0, 2]


def test_few_keys_are_ordered_like_many():
    assert stable_order(np.array([], dtype=np.uint64)).tolist() == []
    assert stable_order(np.array([7], dtype=np.uint64)).tolist() == [0]


def test_keys_that_differ_in_their_lowest_bits_only_are_ranked_by_them():
    keys = (np.arange(5000, dtype=np.uint64)[::-1] % np.uint64(3)) | np.uint64(1 << 60)
    by_hand = sorted(range(5000), key=lambda place: (4999 - place) % 3)
    assert stable_order(keys).tolist() == by_hand


@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 8, 9, 1 << 62, (1 << 62) + 1, (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1))
)
def test_any_keys_are_ordered_as_python_orders_them(keys):
    by_hand = sorted(range(len(keys)), key=keys.__getitem__)
    assert stable_order(np.array(keys, dtype=np.uint64)).tolist() == by_hand


@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 8, 9, (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1), min_size=1), st.data()
)
def test_a_few_places_are_those_of_the_whole_order(keys, data):
    places = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=5))
    by_hand = sorted(range(len(keys)), key=keys.__getitem__)
    found = stable_order_at(np.array(keys, dtype=np.uint64), np.array(places, dtype=np.int64))
    assert found.tolist() == [by_hand[place] for place in places]


def test_a_few_places_among_keys_with_equal_upper_bits_are_ranked_by_the_whole_keys():
    keys = np.array([3, 1, 2, 1 << 40, 0, 3], dtype=np.uint64)
    assert stable_order_at(keys, np.array([5, 0, 3, 4])).tolist() == [3, 4, 0, 5]
