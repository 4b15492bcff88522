"""Several sequences woven into one, evenly, in an order that can be entered anywhere.

The j-th of a sequence's n elements stands at angle (j + u)/n of a circle, with a keyed u in [0, 1) of its own. So each
sequence keeps its order and is spread over the whole, and two of equal length do not merely take turns:

    sequence a, 4    a0    .  a1 .   a2   . a3
    sequence b, 2    .   b0   .  .   .   b1 .
    woven            a0  b0   a1     a2  b1 a3

How many elements of each stand before some rank is found by halving the circle: time and memory O(sequences).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from smalti.order.mixture.scatter import Words, mixed
from smalti.order.window import Ids

_ANGLE_BITS = 28  # an angle times a sequence's length stays below 2^63
_ANGLES = 1 << _ANGLE_BITS
MAX_LENGTH = 1 << 34
"""Elements that one sequence may have, inclusive."""


@dataclass(frozen=True, eq=False)
class Weave:
    """Sequences of the given lengths as one sequence. Pure."""

    lengths: Ids
    """Elements of each sequence, 0 to `MAX_LENGTH`; int64, shape (sequences,)."""
    keys: Words
    """What each sequence's angles are drawn from."""
    group: int = 1
    """Elements of one sequence that share an angle, and so follow each other; the last group may be smaller."""

    def __len__(self) -> int:
        return int(self.lengths.sum())

    @cached_property
    def _groups(self) -> Ids:
        return -(-self.lengths // self._group)

    @cached_property
    def _group(self) -> int:
        return min(self.group, MAX_LENGTH)

    def counts_before(self, ranks: Ids) -> Ids:
        """Elements of every sequence before each rank in [0, len(weave)]; int64, shape (ranks, sequences)."""
        counts, tied, lacking = self._halved(ranks)
        return _filled(counts, tied, lacking)

    def locate(self, ranks: Ids) -> tuple[Ids, Ids]:
        """Which sequence stands at each rank in [0, len(weave)), and which of its elements; int64, shape (ranks,)."""
        distinct, back = np.unique(ranks, return_inverse=True)
        counts, tied, lacking = self._halved(distinct)
        sequence = (np.cumsum(tied, axis=1) > lacking[:, None]).argmax(axis=1)
        element = np.take_along_axis(_filled(counts, tied, lacking), sequence[:, None], axis=1)[:, 0]
        return sequence[back], element[back]

    def _halved(self, ranks: Ids) -> tuple[Ids, Ids, Ids]:
        """Of each rank's angle: elements of every sequence before it and at it, and how many of the latter come first.

        Shapes (ranks, sequences), the same, and (ranks,).
        """
        angles = np.zeros(ranks.shape, dtype=np.int64)
        for bit in range(_ANGLE_BITS, -1, -1):
            further = np.minimum(angles + (1 << bit), _ANGLES)
            angles = np.where(self._below(further).sum(axis=1) <= ranks, further, angles)
        counts = self._below(angles)
        tied = self._below(np.minimum(angles + 1, _ANGLES)) - counts
        return counts, tied, ranks - counts.sum(axis=1)

    def _below(self, angles: Ids) -> Ids:
        """Elements of every sequence that stand before each angle; shape (angles, sequences)."""
        product = angles[:, None] * self._groups
        whole = product >> _ANGLE_BITS
        drawn = mixed(self.keys + whole.astype(np.uint64)) >> np.uint64(64 - _ANGLE_BITS)
        groups = whole + (drawn.astype(np.int64) < (product & (_ANGLES - 1)))
        counts: Ids = np.minimum(groups * self._group, self.lengths)
        return counts


def _filled(counts: Ids, tied: Ids, lacking: Ids) -> Ids:
    """The counts, and as many of those at the same angle as are lacking, sequence by sequence."""
    first = np.cumsum(tied, axis=1) - tied
    filled: Ids = counts + np.clip(lacking[:, None] - first, 0, tied)
    return filled
