"""Which shard is needed when: the order that a reader is going through, as far as anybody has had to look. Pure.

Intended behaviour; anything else is a bug:
1. A place is a step and, within it, a shard: a batch asks for its shards by number, the lowest first.
2. Steps are looked up when somebody asks for a shard whose next use is not known yet, and `MOST_AHEAD` uses ahead at
   most; a shard that is not among them is needed last of all.
3. What was passed is forgotten. There is no clock in here: what is near and far is counted in steps.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NEVER = np.iinfo(np.int64).max
"""The step of a shard that is not needed again, as far as anybody knows."""
MOST_AHEAD = 1 << 22
"""Samples that are looked up ahead at most: 60 MB and about a second, spread over as many samples read."""
_STEP_BITS = 40  # 10^12 steps; 8 million shards


@dataclass(frozen=True)
class Uses:
    """A stretch of the order to come."""

    shards: Ints
    """Shards that are needed, in the order of their steps; any may come often."""
    steps: Ints
    """The step that needs each."""
    end: int
    """The first step after them."""


class Agenda:
    """The uses to come of one reader; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._floor = 0
        self.order = ""
        """Names what is read; readers of the same order count the same steps."""
        self.is_of_many = False
        """Whether several readers go through it side by side, each at a shard of its own within a step."""
        self._set(None)

    def plan(self, future: Iterator[Uses] | None, order: str = "", *, is_of_many: bool = False) -> None:
        """What will be read from now on, from step 0; None where nobody knows."""
        with self._lock:
            self._floor, self.order, self.is_of_many = 0, order, is_of_many
            self._set(future)

    @property
    def is_known(self) -> bool:
        """Whether there is an order."""
        return self._future is not None or bool(self._keys.size)

    def reached(self, step: int) -> None:
        """Every step before this one is over."""
        self._floor = step

    @property
    def floor(self) -> int:
        """The first step that is not over."""
        return self._floor

    def next_use(self, shards: Ints) -> Ints:
        """For each shard the first step that is not over and needs it, NEVER where none is known; int64."""
        return self.use_from(shards, self._floor, -1)

    def use_from(self, shards: Ints, step: int, shard: int) -> Ints:
        """For each shard its first use after that of `shard` at `step`; int64, the shape of `shards`."""
        with self._lock:
            begin = np.where(shards > shard, step, step + 1)
            found = self._lookup(shards, begin)
            while self._future is not None and (found == NEVER).any() and self._more():
                found = self._lookup(shards, begin)
            return found

    def _set(self, future: Iterator[Uses] | None) -> None:
        self._future, self._keys, self._num_ahead = future, np.zeros(0, np.int64), 0

    def _lookup(self, shards: Ints, begin: Ints) -> Ints:
        wanted = (shards << _STEP_BITS) + begin
        at = np.searchsorted(self._keys, wanted)
        found = self._keys[np.minimum(at, self._keys.size - 1)] if self._keys.size else np.full(shards.shape, -1)
        is_its = (at < self._keys.size) & (found >> _STEP_BITS == shards)
        return np.where(is_its, found & ((1 << _STEP_BITS) - 1), NEVER)

    def _more(self) -> bool:
        """Looks up another stretch; False where there is no more to know, or enough is known."""
        if self._num_ahead > MOST_AHEAD:
            passed = (self._keys & ((1 << _STEP_BITS) - 1)) < self._floor
            self._keys = self._keys[~passed]
            self._num_ahead = int(self._keys.size)
            if self._num_ahead > MOST_AHEAD:
                return False
        future = self._future
        uses = None if future is None else next(future, None)
        if uses is None:
            self._future = None
            return False
        new = np.unique((uses.shards << _STEP_BITS) + uses.steps)
        self._keys = np.concatenate((self._keys, new))
        self._keys.sort(kind="stable")
        self._num_ahead += int(new.size)
        return True
