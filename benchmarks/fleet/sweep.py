"""The simulations that docs/scale.md shows: fleets of 1 to 1,024 hosts, sizes of caches, lookahead, and their check."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.fleet.setting import DataSet, Fleet, Order, Outcome, Store
from benchmarks.fleet.simulation import simulate
from smalti.order import default_canonical_nodes, fitted_canonical_nodes, hosts_of_run

TB = 10**12
SETS = (
    DataSet("photos, 10^8", 10**8, 41_000, 1_600),
    DataSet("photos, 10^9", 10**9, 41_000, 1_600),
    DataSet("tokens, 10^10", 10**10, 8_192, 8_192),
)
"""Photos of 41 KB, and 2,048 tokens as int32; in shards of 64 MB."""
RATES = {"photos": 1_000.0, "tokens": 200.0}
"""Samples that a rank trains on in a second."""
HOSTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
_DEFAULT_NODES = default_canonical_nodes(SETS[0].samples)
FEWEST_HOSTS = {SETS[0]: 1, SETS[1]: 8, SETS[2]: 32}
"""With fewer, an epoch takes days, and its simulation minutes: left out unless `every` is asked for."""
CACHE_BYTES = 2 * TB
CACHE_HOSTS = 16
CACHES = (10, 50, 100, 150, 200, 250, 270)
"""GB of each of `CACHE_HOSTS` hosts, which share 4.1 TB."""
AFFINITIES = (1.0, 0.9, 0.75, 0.5, 0.0)
AFFINE = 0.75
"""The affinity that is compared for all fleets."""
LOOKAHEADS = (None, 4_096, 8_192, 16_384, 32_768)
LOOKAHEAD_LINKS = (25, 10, 5)
"""Gbit/s of one host alone."""
CHECKED = DataSet("photos, 2 million", 2_000_000, 41_000, 1_600)
CHECKED_HOSTS = 8


@dataclass(frozen=True)
class Entry:
    """One simulated run and where it belongs."""

    part: str
    label: str
    found: Outcome

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON holds them."""
        return {"part": self.part, "label": self.label} | self.found.to_dict()


def fleet_of(data: DataSet, hosts: int, **options: Any) -> Fleet:
    """Return the fleet that the sweep gives a set, with caches of `CACHE_BYTES`."""
    given = {"cache_bytes": CACHE_BYTES, "samples_per_s": RATES[data.name.split(",")[0]]} | options
    return Fleet(hosts, **given)


def orders_of(hosts: int) -> dict[str, Order]:
    """Return the orders that are compared, by label."""
    nodes = fitted_canonical_nodes(hosts)
    orders = {"default": Order("window"), "MosaicML": Order("mosaicml")}
    if hosts_of_run(_DEFAULT_NODES, hosts) > 1:
        orders["fitted"] = Order("window", nodes)
    return orders | {f"affinity {AFFINE:g}": Order("window", nodes, affinity=AFFINE)}


def all_entries(*, small: bool = False, every: bool = False) -> Iterator[Entry]:
    """Yield every run of the sweep; `small` for one that only proves that it works."""
    yield from _check(max_hosts=3, hosts=4 if small else CHECKED_HOSTS)
    for data in SETS[:1] if small else SETS:
        for hosts in (96,) if small else HOSTS:
            if every or hosts >= FEWEST_HOSTS[data]:
                for label, order in orders_of(hosts).items():
                    most = 1 if data.num_bytes > hosts * CACHE_BYTES else 3  # evicting takes long to simulate
                    yield Entry("hosts", label, simulate(data, fleet_of(data, hosts), order, max_hosts=most))
    if not small:
        yield from _caches()
        yield from _lookaheads()


def _check(*, max_hosts: int, hosts: int) -> Iterator[Entry]:
    """Yield a small fleet by shards, of which some hosts are simulated, and by samples, with all of its hosts."""
    for order in (Order("window"), Order("mosaicml")):
        for cache in (None, 2 * 10**9 * 16 // hosts):
            fleet = Fleet(hosts, cache_bytes=cache, samples_per_s=500.0, batch_size=64)
            blocks = replace(order, block_size=4_096) if not order.is_mosaic else replace(order, block_size=32_768)
            for label, by_sample, most in (("by shard", False, max_hosts), ("by sample", True, hosts)):
                found = simulate(CHECKED, fleet, blocks, Store(), max_hosts=most, by_sample=by_sample)
                yield Entry("check", label, found)


def _caches() -> Iterator[Entry]:
    data = SETS[0]
    for cache in CACHES:
        fleet = fleet_of(data, CACHE_HOSTS, cache_bytes=cache * 10**9)
        for affinity in AFFINITIES:
            order = Order("window", affinity=affinity)
            yield Entry("caches", f"affinity {affinity:g}", simulate(data, fleet, order, epochs=3, max_hosts=1))
        yield Entry("caches", "MosaicML", simulate(data, fleet, Order("mosaicml"), epochs=3, max_hosts=1))


def _lookaheads() -> Iterator[Entry]:
    data = SETS[0]
    for link in LOOKAHEAD_LINKS:
        for ahead in LOOKAHEADS:
            fleet = fleet_of(data, 1, cache_bytes=None, predownload=ahead)
            store = Store(host_bytes_per_s=link * 1e9 / 8)
            yield Entry("lookahead", "default", simulate(data, fleet, Order("window"), store, epochs=1))
