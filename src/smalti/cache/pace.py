"""How many fetches a process has under way at once: as many as the link gains by, found by trying."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FEWEST = 4
"""At once from the start: enough for large shards, where a round trip is short beside the bytes."""
MOST = 32
"""At once, ever: each holds a thread, a temporary file and some chunks."""
SLICE_SECONDS = 0.5
"""How long a number is tried before it is judged."""
GAIN = 1.1
"""What more fetches at once must bring to be kept."""
HOLD_SLICES = 25
"""How long a number that is good is left alone: links change, but not every second."""


class Pace:
    """Counts what arrives while there is always more to fetch, and grows the number while that makes it faster.

    Many small shards far away need many requests in flight, a few large ones need few, and nobody knows the link
    beforehand. Thread-safe; belongs to one process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.at_once = FEWEST
        """Fetches ahead that may be under way at once."""
        self._clock, self._lock = clock, threading.Lock()
        self._under_way, self._has_begun = 0, False
        self._bytes, self._begin = 0, clock()
        self._before: tuple[int, float] | None = None
        self._hold = 0

    @contextmanager
    def fetch(self) -> Iterator[int]:
        """Around a fetch: in how many parts at once it may come, so that a first shard has the link to itself.

        Later ones come whole: parts wait in memory, which costs half as much time again as reading them.
        """
        with self._lock:
            self._under_way += 1
            parts = 1 if self._has_begun else FEWEST // self._under_way
        try:
            yield max(1, parts)
        finally:
            with self._lock:
                self._under_way -= 1
                self._has_begun = True

    def arrived(self, num_bytes: int) -> None:
        """So many bytes have come."""
        with self._lock:
            self._bytes += num_bytes

    def judge(self, *, is_full: bool) -> None:
        """After a fetch: is the number good? A stretch tells in which all places were taken, and more was wanted."""
        with self._lock:
            now = self._clock()
            if not is_full:
                self._bytes, self._begin = 0, now
                return
            seconds = now - self._begin
            if seconds < SLICE_SECONDS:
                return
            self._decide(self._bytes / seconds)
            self._bytes, self._begin = 0, now

    def _decide(self, rate: float) -> None:
        if self._before is not None and rate < self._before[1] * GAIN:
            self.at_once, self._before, self._hold = self._before[0], None, HOLD_SLICES
        elif self._before is None and self._hold:
            self._hold -= 1
        elif self.at_once < MOST:
            self._before = self.at_once, rate
            self.at_once = min(MOST, self.at_once + self.at_once // 2)
        else:
            self._before, self._hold = None, HOLD_SLICES
