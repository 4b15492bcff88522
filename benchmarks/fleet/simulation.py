"""`simulate`: a fleet that reads epochs in step; all ranks begin a step when the last of them has its batch.

A rank reads up to `batches_ahead` batches before they are trained on. When the reader begins a stretch of steps, the
shards of the next one are queued, as in `smalti.dataset.lookahead`. Of many hosts some are simulated; the others are
taken to be like them, so that the slowest of all is not seen. What a step needs is known by shard. Not simulated:
unpacking and decoding, the disk of the cache (taken to be as fast as the link), retries, and, where the cache is
smaller than the shards in use, that a shard may be fetched several times within one stretch.
"""

from collections import deque

import numpy as np

from benchmarks.fleet.hosts import Host
from benchmarks.fleet.needs import PieceNeeds, Plan, SampleNeeds
from benchmarks.fleet.setting import DataSet, EpochFigures, Fleet, Order, Outcome, Store
from benchmarks.fleet.store import HostLink
from smalti.dataset.lookahead import bytes_in_use
from smalti.format.hashing import BLOCK_BYTES

OPENING_ROUNDS = 3
"""Round trips until a set is open: list of versions, header, table."""
TABLE_BYTES = 48
"""Of one shard in the table of a version."""
PLAN_S = {"mosaicml": 1.75e-7}
"""Seconds for each sample of an epoch to plan MosaicML's order: Smalti's `py1e` as measured in docs/order.md, which is
faster than MosaicML's own. The order `window` takes O(shards)."""
_BLOCK_ROUNDS = 5  # round trips of a batch that is read by blocks
_GB = 1e9
_NOTICED = 0.01  # of a step


def simulate(
    data: DataSet,
    fleet: Fleet,
    order: Order,
    store: Store | None = None,
    *,
    epochs: int = 2,
    max_hosts: int = 3,
    by_sample: bool = False,
) -> Outcome:
    """Return what `epochs` epochs cost, from empty caches on.

    At most `max_hosts` hosts are simulated, spread over the fleet. With `by_sample` each sample is looked up by the
    dataset's code, in place of the shards' layout.
    """
    store = store or Store()
    plan = Plan(data, fleet, order)
    chosen = sorted(set(np.linspace(0, fleet.hosts - 1, min(max_hosts, fleet.hosts)).astype(int).tolist()))
    pieces = [PieceNeeds(plan, host) for host in chosen]
    needs: list[SampleNeeds] | list[PieceNeeds] = [SampleNeeds(plan, host) for host in chosen] if by_sample else pieces
    hosts = [Host(each, fleet, HostLink(store, fleet, each.host)) for each in needs]
    rate = hosts[0].link.bytes_per_s
    opening = OPENING_ROUNDS * store.latency_s + data.shard_sizes.size * TABLE_BYTES / rate
    planning = data.samples * PLAN_S.get(order.name, 0.0)
    run = _Run(plan, store, hosts, opening + planning)
    figures = tuple(run.epoch(epoch) for epoch in range(epochs))
    block_bytes = fleet.host_batch * (BLOCK_BYTES + data.sample_bytes)
    by_blocks = opening + planning + _BLOCK_ROUNDS * store.latency_s + block_bytes / rate
    return Outcome(
        data=data,
        fleet=fleet,
        store=store,
        order=order,
        simulated_hosts=len(hosts),
        canonical_nodes=plan.canonical_nodes,
        block_size=plan.block_size,
        opening_s=opening,
        planning_s=planning,
        first_batch_by_blocks_s=min(by_blocks, figures[0].first_batch_s),
        in_use_bytes=max(map(_in_use, pieces)),
        share_bytes=max(map(_share, pieces)),
        epochs=figures,
    )


class _Run:
    """The epochs of one fleet, one after the other."""

    def __init__(self, plan: Plan, store: Store, hosts: list[Host], begin: float) -> None:
        self._plan, self._store, self._hosts = plan, store, hosts
        self._now = 0.0
        self._begin: float | None = begin

    def epoch(self, epoch: int) -> EpochFigures:
        """Return the figures of the next epoch."""
        plan, fleet = self._plan, self._plan.fleet
        start, step_s = self._now, fleet.step_s
        reading = start + (self._begin or 0.0)
        self._begin = None
        for host in self._hosts:
            host.begin_epoch(epoch)
            host.plan_next(reading, is_first=True)
        ends: deque[float] = deque(maxlen=fleet.batches_ahead)  # of the latest steps
        end, stall, stalls, first_batch = start, 0.0, 0, 0.0
        for first, stop in zip(plan.bounds[:-1].tolist(), plan.bounds[1:].tolist(), strict=True):
            for step in range(first, stop):
                if len(ends) == fleet.batches_ahead:
                    reading = max(reading, ends[0])
                reading = max(reading, *(host.ready(step, reading) for host in self._hosts), reading)
                if step == first:
                    for host in self._hosts:
                        host.plan_next(reading)
                waited = max(0.0, reading - end)
                if step == 0:
                    first_batch = waited
                else:
                    stall += waited
                    stalls += waited > _NOTICED * step_s
                end = max(end, reading) + step_s
                ends.append(end)
        self._now = end
        return self._figures(end - start, first_batch, stall, stalls)

    def _figures(self, seconds: float, first_batch: float, stall: float, stalls: int) -> EpochFigures:
        plan, store, count = self._plan, self._store, len(self._hosts)
        hosts = plan.fleet.hosts
        each = sum(host.bytes for host in self._hosts) / count
        fetches = round(sum(host.fetches for host in self._hosts) / count * hosts)
        return EpochFigures(
            bytes_per_host=each,
            amplification=each * hosts / plan.data.num_bytes,
            fetches=fetches,
            first_batch_s=first_batch,
            seconds=seconds,
            stall_s=stall,
            stalls=stalls,
            late=round(sum(host.late for host in self._hosts) / count * hosts),
            price=fetches / 1000 * store.per_thousand_requests + each * hosts / _GB * store.per_gb,
        )


def _in_use(needs: PieceNeeds) -> int:
    plan = needs.plan
    if plan.order.is_mosaic:
        return _most_at_once(needs)
    raw = plan.data.shard_sizes * plan.data.sample_bytes
    return bytes_in_use(plan.window(0), plan.data.shard_sizes, raw, needs.host, plan.fleet.hosts)


def _most_at_once(needs: PieceNeeds) -> int:
    """Return the bytes of the shards that are begun and not finished, at most."""
    visits = needs.visits(0)
    changes = np.zeros(needs.plan.num_steps + 1, np.int64)
    np.add.at(changes, visits.first, 1)
    np.subtract.at(changes, visits.last + 1, 1)
    return int(np.cumsum(changes).max()) * needs.plan.data.shard_bytes


def _share(needs: PieceNeeds) -> int:
    return int(np.unique(needs.visits(0).shards).size) * needs.plan.data.shard_bytes
