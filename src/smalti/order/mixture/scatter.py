"""Permutations that are evaluated at single places, without a table: a drawn part of a shard takes no memory.

A Feistel network permutes numbers of as many bits as the size has; a result beyond the size is permuted again until it
is inside. Integer arithmetic only, so that all platforms and numpy versions agree.
"""

import numpy as np
from numpy.typing import NDArray

from smalti.order.window import Ids

Words = NDArray[np.uint64]

_ROUNDS = 6  # even, so that the halves are back in place; with fewer than four the result is not close to random
_ROUND_STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: round keys far apart
_WORD = (1 << 64) - 1


def mixed(words: Words) -> Words:
    """Return each word mixed so that every bit depends on all its bits (the finalizer of SplitMix64); a bijection."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def scattered(places: Ids, sizes: Ids, keys: Words) -> Ids:
    """Return the image of places[i] under the permutation of range(sizes[i]) chosen by keys[i]; int64, shape (n,).

    Every place is below its size, every size below 2^53. For one size and key this is a bijection.
    """
    bits = np.frexp((sizes - 1).astype(np.float64))[1].astype(np.uint64)
    limits = sizes.astype(np.uint64)
    found = places.astype(np.uint64)
    todo = np.arange(found.size)
    while todo.size:
        found[todo] = _permuted(found[todo], bits[todo], keys[todo])
        todo = todo[found[todo] >= limits[todo]]
    return found.astype(np.int64)


def _permuted(words: Words, bits: Words, keys: Words) -> Words:
    one = np.uint64(1)
    left = bits >> one
    right = bits - left
    for number in range(_ROUNDS):
        low = words & ((one << right) - one)
        high = words >> right
        stirred = mixed((low + np.uint64(number * _ROUND_STEP & _WORD)) ^ keys)
        words = (low << left) | (high ^ (stirred & ((one << left) - one)))
        left, right = right, left
    return words
