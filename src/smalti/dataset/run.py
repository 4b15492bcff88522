"""The state of a run in this process: its place, the opened streams and the latest passes.

A dataset and the views that loaders make of it share one of each. `smalti.torch.workers` extends `RunTracker`, so that
copies in loader workers share the place too.
"""

import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from smalti.cache import CacheStats, least_bytes, stats_of
from smalti.cursor import Cursor
from smalti.dataset.lookahead import check_window, shards_needed
from smalti.dataset.order import Reading
from smalti.stream import OpenStreams, Version

MAX_PASSES = 8  # passes that are remembered for `stats`
_MAX_USES = 1 << 22  # uses of shards that the least cost is computed from; more would take seconds


@dataclass(frozen=True)
class RunPlace:
    """The place that the iterations of a dataset have reached. Immutable."""

    next_epoch: int = 0
    """Epoch of the next iteration, unless `resume` is given."""
    resume: Cursor | None = None
    """Start of the next iteration, after a state was loaded."""
    adopted: Cursor | None = None
    """The loaded state, whose seed, canonical nodes and block size apply to all following epochs."""
    begun: Cursor | None = None
    """Start of the latest iteration; None after a state was loaded or an epoch chosen."""
    versions: tuple[Version, ...] = ()
    """The version of each stream; empty before the first use."""

    def at_epoch(self, epoch: int) -> "RunPlace":
        """Return the place after the user chose an epoch."""
        return replace(self, next_epoch=epoch, resume=None, begun=None)

    def resumed(self, cursor: Cursor, versions: tuple[Version, ...]) -> "RunPlace":
        """Return the place after a state was loaded."""
        return replace(self, resume=cursor, adopted=cursor, begun=None, versions=versions)

    def after_begin(self, start: Cursor) -> "RunPlace":
        """Return the place after an iteration began at `start`."""
        return replace(self, next_epoch=start.epoch + 1, resume=None, begun=start)


class RunTracker:
    """The current place, shared by a dataset and the views that loaders make of it."""

    def __init__(self) -> None:
        self._place = RunPlace()

    def get(self) -> RunPlace:
        """Return the current place."""
        return self._place

    def set(self, place: RunPlace) -> None:
        """Replace the place, as the user asked."""
        self._place = place

    def enter(self) -> int | None:
        """Register an iteration that is about to begin; return its number, or None where no number is needed."""
        return None

    def begin(self, settle: Callable[[RunPlace], Cursor], number: int | None = None) -> tuple[Cursor, bool]:
        """Begin an iteration.

        Args:
            settle: returns where the iteration begins, given the place before it.
            number: what `enter` returned.

        Returns:
            Its start, and whether this call decided the start, rather than another worker of the same iteration.
        """
        del number
        start = settle(self._place)
        self._place = self._place.after_begin(start)
        return start, True

    def agree(self, versions: tuple[Version, ...]) -> tuple[Version, ...]:
        """Record the versions that were opened, and return those that were recorded first."""
        if not self._place.versions:
            self._place = replace(self._place, versions=versions)
        return self._place.versions


@dataclass
class OpenedOnce:
    """The opened streams, shared by a dataset and its views; the first use opens them."""

    stream: OpenStreams | None = None


@dataclass
class _BegunPass:
    reading: Reading
    bytes_before: int
    """Bytes fetched before the pass began."""
    is_first: bool
    steps: int = 0
    """Steps that were read; of the current pass, the cache's counters hold them."""


@dataclass
class PassHistory:
    """The latest passes, for `stats`: the passes of loader workers are recorded in the main process."""

    begun: deque[_BegunPass] = field(default_factory=lambda: deque(maxlen=MAX_PASSES))

    def begin(self, reading: Reading, stream: OpenStreams) -> None:
        """Record that a pass begins; before the first one, warn if it is empty or the cache too small for it."""
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
        self.begun.append(_BegunPass(reading, counters.get("bytes_fetched"), is_first=not self.begun))

    def stats(self, stream: OpenStreams, *, least: bool) -> CacheStats:
        """Return the cost of reading; with `least`, also the least that these passes could have cost."""
        cache = stream.cache
        cache.settle()
        if not (least and self.begun):
            return stats_of(cache.counters)
        self.begun[-1].steps = cache.counters.get("reached")
        passes, needed = self._needed(stream)
        if not passes or (cache.limit is None and not passes[0].is_first):
            return stats_of(cache.counters)
        order = np.concatenate(needed).tolist()
        # The cache's contents before the first of these passes are unknown: the most favourable ones are assumed.
        least_cost = least_bytes(order, *cache.costs(), cache.limit, is_warm=not passes[0].is_first)
        ranks = passes[0].reading.division.world.ranks_on_host
        return stats_of(cache.counters, least_cost, passes[0].bytes_before, ranks)

    def _needed(self, stream: OpenStreams) -> tuple[list[_BegunPass], list[NDArray[np.int64]]]:
        """Return the latest passes with at most `_MAX_USES` uses in all, and the shards that each needed."""
        passes = [each for each in self.begun if each.steps]
        # A copy of each reading: the recorded one would keep its cached plan as long as the dataset exists.
        needed = [shards_needed(replace(each.reading), stream, each.steps) for each in passes]
        from_last = list(accumulate(each.size for each in reversed(needed)))
        count = sum(size <= _MAX_USES for size in from_last)
        first = len(passes) - count
        return passes[first:], needed[first:]
