"""Which passes a dataset has begun and how far they came: what it read, and what that had to cost at the least."""

from dataclasses import dataclass, field, replace

import numpy as np

from smalti.cache import CacheStats, least_bytes
from smalti.dataset.foresight import check_window, shards_needed
from smalti.dataset.reading import Reading
from smalti.stream import OpenStreams

_MOST_COUNTED = 1 << 22  # shards asked for; seconds


@dataclass
class History:
    """The passes so far; those of loader workers are their program's."""

    begun: list[Reading] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Of all but the last one, the steps that were read."""

    def begin(self, reading: Reading, stream: OpenStreams) -> None:
        """Another pass begins; warns before the first one if the cache is too small for it."""
        counters = stream.cache.counters
        if self.begun:
            self.steps.append(counters.get("reached"))
        else:
            check_window(reading, stream)
        counters.restart()
        self.begun.append(reading)

    def stats(self, stream: OpenStreams) -> CacheStats:
        """What reading has cost, and the least that it can."""
        cache = stream.cache
        cache.settle()
        steps = [*self.steps, cache.counters.get("reached")]
        needed = [  # of a copy of each: what is begun would keep its epoch's plan otherwise, for as long as the dataset
            shards_needed(replace(reading), stream, num_steps)
            for reading, num_steps in zip(self.begun, steps, strict=False)
            if num_steps
        ]
        if not needed or sum(each.size for each in needed) > _MOST_COUNTED:
            return cache.counters.stats()
        return cache.counters.stats(least_bytes(np.concatenate(needed).tolist(), *cache.costs(), cache.limit))
