"""Permutations from keys."""

import numpy as np

from smalti.order.keys import stable_order


def test_equal_keys_keep_their_order():
    """2^16 keys of only two values: an unstable sort would mix equal ones up."""
    keys = np.arange(1 << 16, dtype=np.uint64) % np.uint64(2)
    evens, odds = list(range(0, 1 << 16, 2)), list(range(1, 1 << 16, 2))
    assert stable_order(keys).tolist() == evens + odds


def test_distinct_keys_are_ranked():
    assert stable_order(np.array([30, 10, 1 << 63, 20], dtype=np.uint64)).tolist() == [1, 3, 0, 2]


def test_few_keys_are_no_special_case():
    assert stable_order(np.array([], dtype=np.uint64)).tolist() == []
    assert stable_order(np.array([7], dtype=np.uint64)).tolist() == [0]
