"""Sequences merged evenly into one, which can be entered at any rank, and permutations evaluated at single places.

Weave: the j-th of a sequence's n elements is at angle (j + u)/n of a circle, with a keyed u in [0, 1) of its own.
So each sequence keeps its order and is spread over the whole, and two of equal length do not simply alternate:

    sequence a, 4    a0    .  a1 .   a2   . a3
    sequence b, 2    .   b0   .  .   .   b1 .
    woven            a0  b0   a1     a2  b1 a3

The elements of each sequence before a rank are counted by bisecting the circle: time and memory are O(sequences).

Scatter: a Feistel network permutes numbers of as many bits as the size has; a result beyond the size is permuted again
until it is inside. So a drawn part of a shard takes no memory. Integer arithmetic only, so that all platforms and numpy
versions agree.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from smalti.order.window import Ids

Words = NDArray[np.uint64]
_ROUNDS = 6  # even, so that the halves are back in place; with fewer than four the result is not close to random
_ROUND_STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: round keys far apart
_WORD = (1 << 64) - 1
_ANGLE_BITS = 28  # an angle times a sequence's length stays below 2^63
_ANGLES = 1 << _ANGLE_BITS
MAX_LENGTH = 1 << 34
"""The most elements of one sequence, inclusive."""


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


@dataclass(frozen=True, eq=False)
class Weave:
    """Sequences of the given lengths as one sequence. Pure."""

    lengths: Ids
    """Elements of each sequence, 0 to `MAX_LENGTH`; int64, shape (sequences,)."""
    keys: Words
    """Keys that each sequence's angles are drawn from."""
    group: int = 1
    """Consecutive elements of a sequence that share an angle, and so stay together; the last group may be smaller."""

    def __len__(self) -> int:
        return int(self.lengths.sum())

    @cached_property
    def _groups(self) -> Ids:
        return -(-self.lengths // self._group)

    @cached_property
    def _group(self) -> int:
        return min(self.group, MAX_LENGTH)

    def counts_before(self, ranks: Ids) -> Ids:
        """Return each sequence's elements before each rank in [0, len(weave)]; int64, shape (ranks, sequences)."""
        counts, tied, lacking = self._bisected(ranks)
        return _filled(counts, tied, lacking)

    def locate(self, ranks: Ids) -> tuple[Ids, Ids]:
        """Return the sequence at each rank in [0, len(weave)), and the number of its element; int64, shape (ranks,)."""
        distinct, back = np.unique(ranks, return_inverse=True)
        counts, tied, lacking = self._bisected(distinct)
        sequence = (np.cumsum(tied, axis=1) > lacking[:, None]).argmax(axis=1)
        element = np.take_along_axis(_filled(counts, tied, lacking), sequence[:, None], axis=1)[:, 0]
        return sequence[back], element[back]

    def _bisected(self, ranks: Ids) -> tuple[Ids, Ids, Ids]:
        """Return, for each rank's angle, the elements before it and at it, and how many of the latter precede the rank.

        Shapes (ranks, sequences), (ranks, sequences) and (ranks,); the first two by sequence.
        """
        angles = np.zeros(ranks.shape, dtype=np.int64)
        for bit in range(_ANGLE_BITS, -1, -1):
            further = np.minimum(angles + (1 << bit), _ANGLES)
            angles = np.where(self._below(further).sum(axis=1) <= ranks, further, angles)
        counts = self._below(angles)
        tied = self._below(np.minimum(angles + 1, _ANGLES)) - counts
        return counts, tied, ranks - counts.sum(axis=1)

    def _below(self, angles: Ids) -> Ids:
        """Return the elements of every sequence before each angle; shape (angles, sequences)."""
        product = angles[:, None] * self._groups
        whole = product >> _ANGLE_BITS
        drawn = mixed(self.keys + whole.astype(np.uint64)) >> np.uint64(64 - _ANGLE_BITS)
        groups = whole + (drawn.astype(np.int64) < (product & (_ANGLES - 1)))
        counts: Ids = np.minimum(groups * self._group, self.lengths)
        return counts


def _filled(counts: Ids, tied: Ids, lacking: Ids) -> Ids:
    """Return the counts plus `lacking` of the elements at the same angle, taken sequence by sequence."""
    first = np.cumsum(tied, axis=1) - tied
    filled: Ids = counts + np.clip(lacking[:, None] - first, 0, tied)
    return filled
