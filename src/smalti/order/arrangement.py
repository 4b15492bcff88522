"""Arrangement: the order in which shards are laid end to end before they are cut into runs, with an affinity.

The affinity is the part of its shards that a run keeps from each epoch to the next. With 1, shards are laid out by the
seed alone, and a run has the same shards in every epoch. With less, shards move between runs:

1. Shard i belongs to cohort i % K, with K = the shards of a run, rounded down to a power of two, 64 at most. The slots
   of a cohort are spread evenly over the layout: in every K slots there is one of each cohort.
2. In each epoch the cohort's shards fill its slots, permuted by a key of (seed, generation, cohort). The generation of
   cohort k in epoch e is floor(e * (1 - affinity) + k / K).

So in each epoch the same part of the cohorts begin a new generation, in turn: their shards are dealt to the runs anew,
all others stay where they are. With affinity 3/4, K = 4 and two runs of 4 slots:

    cohort of each slot   0  1  2  3 | 0  1  2  3
    epoch 0               s0 s1 s2 s3| s4 s5 s6 s7
    epoch 1               s0 s1 s2 s7| s4 s5 s6 s3     cohort 3 dealt anew
    epoch 2               s0 s1 s6 s7| s4 s5 s2 s3     cohort 2

Any epoch is computed by itself, in O(shards). A slot's width is its shard's share of its cohort's samples: where sizes
differ, each cohort is spread evenly by samples, and the cuts between runs stay within a few shards of their places.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import ArgumentError
from smalti.order.keys import Purpose, keyed_permutation

Ids = NDArray[np.int64]

MAX_COHORTS = 64
_UNIT = 10**6
"""An affinity is counted in millionths, so that 0.8 moves every fifth cohort exactly; a multiple of `MAX_COHORTS`."""


def check_affinity(affinity: Any) -> None:
    """Check that an affinity is a number in [0, 1].

    Raises:
        ValueError: it is not.
    """
    is_number = isinstance(affinity, int | float | np.number) and not isinstance(affinity, bool)
    if not (is_number and 0 <= affinity <= 1):
        raise ArgumentError(f"`affinity` must be a number in [0, 1], found {affinity!r}.")


def arranged(sizes: Ids, *, seed: int, epoch: int, runs: int, affinity: float) -> Ids:
    """Return the shards in the order in which they are laid end to end; int64, shape (shards,)."""
    moving = _UNIT - round(affinity * _UNIT)
    if not moving:
        return keyed_permutation(sizes.size, Purpose.SHARDS, seed=seed)
    cohorts = num_cohorts(sizes.size, runs)
    places = np.empty(sizes.size, dtype=np.float64)  # of each shard in the layout, from 0 to 1
    for cohort in range(cohorts):
        generation = (epoch * moving + cohort * _UNIT // cohorts) // _UNIT
        members = np.arange(cohort, sizes.size, cohorts)
        dealt = members[keyed_permutation(members.size, Purpose.COHORT, seed=seed, epoch=generation, run=cohort)]
        widths = sizes[dealt]
        ends = np.cumsum(widths)
        # Exact or correctly rounded operations only: all platforms agree.
        offset = (2 * cohort + 1) / (2 * cohorts)
        places[dealt] = (ends - widths + widths * offset) / max(1, int(ends[-1]) if ends.size else 0)
    return np.argsort(places, kind="stable")


def num_cohorts(shards: int, runs: int) -> int:
    """Return the number of cohorts: a power of two, as many as a run has shards, from 1 to `MAX_COHORTS`."""
    return 1 << (min(MAX_COHORTS, max(1, shards // runs)).bit_length() - 1)
