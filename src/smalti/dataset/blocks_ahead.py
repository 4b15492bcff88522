"""Blocks of later steps, fetched while earlier ones are read: for streams that are read without a cache.

Whole shards are fetched ahead by the cache's own threads. Without copies there is nothing to fetch but the blocks of
the samples, of which several steps come together: each has to wait for one or two round trips, whatever its size.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

import numpy as np

from smalti.dataset.order import Planned
from smalti.stream import OpenStreams

AHEAD_BYTES = 1 << 25
"""Bytes of blocks that are fetched together; twice as many are in memory."""
_MAX_STEPS = 64


class BlocksAhead:
    """The blocks of one pass's steps; used by the one thread that goes through the steps."""

    def __init__(self, stream: OpenStreams) -> None:
        self._stream = stream
        self._is_needed = stream.cache.parts.reads_without_copies
        self._steps: deque[Planned] = deque()
        self._here = -1
        """The last step whose blocks were fetched."""
        self._running: tuple[threading.Thread, int] | None = None
        """The thread that fetches blocks, and the last step that they are of."""

    def add(self, planned: Sequence[Planned]) -> None:
        """Add steps that follow those added before."""
        if self._is_needed:
            self._steps.extend(planned)

    def reach(self, step: int) -> None:
        """Wait for the blocks of a step, and begin to fetch those of later ones. The first step is read by its reader.

        Errors are not raised here: the reader of a step requests what is missing, and raises them.
        """
        if not self._is_needed:
            return
        if self._here < 0:
            self._steps.popleft()
            self._here = step
            return
        if step > self._here:
            begin = time.perf_counter()
            self._begin()
            self._join()
            self._stream.cache.counters.add(wait_microseconds=int(1e6 * (time.perf_counter() - begin)))
        self._begin()

    def _begin(self) -> None:
        if self._running is not None or not self._steps:
            return
        ids = [ids for _, ids in islice(self._steps, _MAX_STEPS)]
        size = self._stream.num_bytes_ahead(np.concatenate(ids))
        count = len(ids) if size <= AHEAD_BYTES else max(1, len(ids) * AHEAD_BYTES // size)
        wanted = np.concatenate(ids[:count])
        thread = threading.Thread(
            target=self._stream.read_ahead, args=(wanted,), name="smalti-blocks-ahead", daemon=True
        )
        last = [self._steps.popleft()[0].step for _ in range(count)][-1]
        with suppress(RuntimeError):  # too many threads: the readers fetch what they need
            thread.start()
            self._running = thread, last

    def _join(self) -> None:
        if self._running is not None:
            thread, self._here = self._running
            thread.join()
            self._running = None
