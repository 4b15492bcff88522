"""A model of the store and of one host's way to it.

A fetch waits for a free transfer, for its turn among the requests that the store answers in a second, for its latency,
and for the link, which sends one shard after the other. What all hosts share (the store's bandwidth and its requests)
each host has an equal part of. The number of transfers is that of the cache's own `ConcurrencyTuner`, under the
simulation's clock.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from benchmarks.fleet.setting import Fleet, Store
from smalti.cache.transfer import ConcurrencyTuner

_DRAWN = 1 << 14  # latencies that are drawn together


class HostLink:
    """The transfers of one host."""

    def __init__(self, store: Store, fleet: Fleet, host: int) -> None:
        self._now = 0.0
        self._tuner = ConcurrencyTuner(clock=lambda: self._now)
        self._ranks = fleet.ranks
        self.bytes_per_s = min(store.host_bytes_per_s, store.total_bytes_per_s / fleet.hosts)
        self._connection_bytes_per_s = store.connection_bytes_per_s
        self._request_s = fleet.hosts / (store.requests_per_s * store.prefixes)
        self._store, self._rng = store, np.random.default_rng(host)
        self._latencies: list[float] = []
        self._running: list[float] = []  # ends of transfers, the soonest first
        self._link_free = self._next_request = 0.0

    def fetch(self, queued: float, sizes: Sequence[int], *, is_ahead: bool) -> list[float]:
        """Return when each of these fetches is done, which are queued together; their order is kept.

        With `is_ahead`, all transfers of all ranks may run; otherwise each rank fetches one shard at a time.
        """
        arrivals = []
        for place, size in enumerate(sizes):
            limit = self._ranks * (self._tuner.max_transfers if is_ahead else 1)
            begin = queued
            while len(self._running) >= limit:
                begin = max(begin, heappop(self._running))
            begin = max(begin, self._next_request)
            self._next_request = begin + self._request_s
            done = self._transferred(begin, size)
            heappush(self._running, done)
            self._now = max(self._now, done)
            self._tuner.add_bytes(size // self._ranks)
            self._tuner.adjust(is_saturated=is_ahead and len(sizes) - place > limit)
            arrivals.append(done)
        return arrivals

    def _transferred(self, begin: float, size: int) -> float:
        own = size / self.bytes_per_s
        first_byte = begin + self._latency()
        at_least = first_byte + size / self._connection_bytes_per_s
        self._link_free = max(self._link_free, first_byte) + own
        return max(self._link_free, at_least)

    def _latency(self) -> float:
        store = self._store
        if not self._latencies:
            spread = np.exp(self._rng.normal(0.0, store.latency_spread, _DRAWN))
            self._latencies = (store.latency_s * spread).tolist()
        return self._latencies.pop()
