"""Which passes a dataset has begun and how far they came: what it read, and what that had to cost at the least."""

import warnings
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheStats, least_bytes, stats_of
from smalti.dataset.foresight import check_window, shards_needed
from smalti.dataset.reading import Reading
from smalti.stream import OpenStreams

MOST_PASSES = 8
_MOST_COUNTED = 1 << 22  # shards asked for; seconds


@dataclass
class _Begun:
    """A pass, and what had been fetched when it began."""

    reading: Reading
    bytes_before: int
    is_first: bool
    steps: int = 0
    """That were read; of the pass at hand the counters know."""


@dataclass
class History:
    """The latest passes; those of loader workers are their program's."""

    begun: deque[_Begun] = field(default_factory=lambda: deque(maxlen=MOST_PASSES))

    def begin(self, reading: Reading, stream: OpenStreams) -> None:
        """Another pass begins; warns before the first one if the cache is too small for it."""
        counters = stream.cache.counters
        if self.begun:
            self.begun[-1].steps = counters.get("reached")
        elif len(stream):
            check_window(reading, stream)
        else:
            warnings.warn(
                f"{stream.root} has no samples: an epoch of it ends at once. Check the address, the version and the "
                "split",
                stacklevel=4,
            )
        counters.restart()
        self.begun.append(_Begun(reading, counters.get("bytes_fetched"), is_first=not self.begun))

    def stats(self, stream: OpenStreams, *, least: bool) -> CacheStats:
        """What reading has cost, and the least that it can if `least` is asked for."""
        cache = stream.cache
        cache.settle()
        if not (least and self.begun):
            return stats_of(cache.counters)
        self.begun[-1].steps = cache.counters.get("reached")
        passes, needed = self._needed(stream)
        if not passes or (cache.limit is None and not passes[0].is_first):
            return stats_of(cache.counters)
        order = np.concatenate(needed).tolist()
        # What lay there when the first of them began is not known: the best that could.
        found = least_bytes(order, *cache.costs(), cache.limit, is_warm=not passes[0].is_first)
        ranks = passes[0].reading.division.world.ranks_on_host
        return stats_of(cache.counters, found, passes[0].bytes_before, ranks)

    def _needed(self, stream: OpenStreams) -> tuple[list[_Begun], list[NDArray[np.int64]]]:
        """The latest passes that can be counted, and what each needed."""
        passes = [each for each in self.begun if each.steps]
        # Of a copy of each: what is begun would keep its epoch's plan otherwise, for as long as the dataset.
        needed = [shards_needed(replace(each.reading), stream, each.steps) for each in passes]
        from_last = list(accumulate(each.size for each in reversed(needed)))
        count = sum(size <= _MOST_COUNTED for size in from_last)
        first = len(passes) - count
        return passes[first:], needed[first:]
