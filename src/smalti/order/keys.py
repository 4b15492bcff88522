"""Keyed permutations: the only source of randomness in the `window` order.

All keys are raw Philox output, whose stream numpy guarantees; a permutation is the stable argsort of raw 64-bit keys.
`Generator.shuffle` and `permutation` may change between numpy versions and are not used.
"""

from enum import IntEnum

import numpy as np
from numpy.random import Philox  # by name: numpy imports it at its first use, which delayed the first batch
from numpy.typing import NDArray


class Purpose(IntEnum):
    """The use of a stream of keys; no two purposes share a key. Changing a number changes the order."""

    SHARDS = 1
    PLACES = 2
    PIECES = 3
    WINDOW = 4
    SHORTFALL = 5
    DRAWS = 6
    STREAMS = 7
    BATCHES = 8
    CHANGES = 9
    COHORT = 10


def keyed_permutation(
    count: int, purpose: Purpose, *, seed: int, epoch: int = 0, run: int = 0, window: int = 0
) -> NDArray[np.int64]:
    """Return a permutation of range(count) that depends only on the arguments; int64, shape (count,)."""
    return stable_order(raw_keys(count, purpose, seed=seed, epoch=epoch, run=run, window=window))


def raw_keys(
    count: int, purpose: Purpose, *, seed: int, epoch: int = 0, run: int = 0, window: int = 0
) -> NDArray[np.uint64]:
    """Return random words; uint64, shape (count,). A larger `count` returns the same words and more.

    The Philox key is (seed, epoch); the upper three words of its counter are (window, run, purpose), and the lowest
    one counts, so that no two streams overlap. `seed` and `epoch` lie in [0, 2^64).
    """
    bits = Philox(
        counter=np.array([0, window, run, int(purpose)], dtype=np.uint64),
        key=np.array([seed, epoch], dtype=np.uint64),
    )
    return bits.random_raw(count)


def stable_order(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the stable argsort of the keys; int64, the same shape.

    Sorts words made of a key's upper bits and its place, which takes half the time of an argsort, and then sorts the
    few words with equal upper bits by their whole keys.
    """
    words, low = _words_of(keys)
    words.sort()
    order = (words & low).astype(np.int64)
    words &= ~low
    tied = words[1:] == words[:-1]
    if tied.any():
        places = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
        among = order[places]
        order[places] = among[np.lexsort((among, keys[among], words[places]))]
    return order


def stable_order_at(keys: NDArray[np.uint64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `stable_order(keys)[places]`; for a few places in a tenth of the time, because the rest is not sorted."""
    words, low = _words_of(keys)
    # With the words before and after each: equal upper bits stand side by side.
    beside = np.concatenate((np.maximum(places - 1, 0), np.minimum(places + 1, keys.size - 1)))
    words.partition(np.concatenate((places, beside)))
    differs = words[beside] ^ np.tile(words[places], 2)
    if ((differs <= low) & (differs > 0)).any():
        return stable_order(keys)[places]
    found: NDArray[np.int64] = (words[places] & low).astype(np.int64)
    return found


def _words_of(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], np.uint64]:
    """Return words made of each key's upper bits and its place, and the mask of the place."""
    low = np.uint64((1 << max(0, keys.size - 1).bit_length()) - 1)
    return (keys & ~low) | np.arange(keys.size, dtype=np.uint64), low
