"""Keyed permutations: the only source of randomness in an order.

All of it is raw Philox output, whose stream numpy guarantees; a permutation is the stable argsort of raw 64-bit keys.
`Generator.shuffle` and `permutation` may change between numpy versions and are not used.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """What a stream of keys is for; two purposes never share a key. The numbers are part of the order."""

    SHARDS = 1
    PLACES = 2
    PIECES = 3
    WINDOW = 4
    SHORTFALL = 5
    DRAWS = 6
    STREAMS = 7
    BATCHES = 8
    CHANGES = 9


def keyed_permutation(
    count: int, purpose: Purpose, *, seed: int, epoch: int = 0, run: int = 0, window: int = 0
) -> NDArray[np.int64]:
    """A permutation of range(count) that depends on nothing but its arguments; int64, shape (count,)."""
    return stable_order(raw_keys(count, purpose, seed=seed, epoch=epoch, run=run, window=window))


def raw_keys(
    count: int, purpose: Purpose, *, seed: int, epoch: int = 0, run: int = 0, window: int = 0
) -> NDArray[np.uint64]:
    """Random words that depend on nothing but the arguments, `count` apart; uint64, shape (count,).

    The Philox key is (seed, epoch); the upper three words of its counter are (window, run, purpose), and the lowest
    one counts, so that no two streams overlap. `seed` and `epoch` lie in [0, 2^64).
    """
    bits = np.random.Philox(
        counter=np.array([0, window, run, int(purpose)], dtype=np.uint64),
        key=np.array([seed, epoch], dtype=np.uint64),
    )
    return bits.random_raw(count)


def stable_order(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The stable argsort of these keys; int64, the same shape.

    Sorted are words of a key's upper bits and its place, in half the time of an argsort; the few whose upper bits are
    equal are then put in order by their whole keys.
    """
    low = np.uint64((1 << max(0, keys.size - 1).bit_length()) - 1)
    words = (keys & ~low) | np.arange(keys.size, dtype=np.uint64)
    words.sort()
    order = (words & low).astype(np.int64)
    words &= ~low
    tied = words[1:] == words[:-1]
    if tied.any():
        places = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
        among = order[places]
        order[places] = among[np.lexsort((among, keys[among], words[places]))]
    return order
