"""What an affinity costs and saves: `python -m benchmarks.affinity [HOSTS] [EPOCHS]` prints a table in Markdown.

A set of 512 shards lies in a store in memory. Each host reads its part of every epoch through the real cache, in a
folder of its own, with space for a part of what it reads. Counted are the bytes that all hosts fetch in an epoch after
the first two, as a part of the set: exact counts, not times. Beside them:

- the formula: (1 - affinity) * (1 - 1 / hosts), or what the cache has no space for, if that is more;
- the least that any eviction could fetch of this order from an empty cache (Belady's algorithm), as `dataset.stats()`
  has it;
- the same order in a cache that evicts the shard that was used longest ago, as MosaicML's reader does: computed from
  the order.
"""

import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smalti.cache import CacheOptions
from smalti.dataset import OrderOptions, StreamingDataset
from smalti.world import World
from smalti.writer import MDSWriter

_SHARDS, _PER_SHARD, _BATCH = 512, 32, 32
_NODES, _BLOCK = 16, 64  # runs of 32 shards, windows of 2
_SET = "memory://affinity"
_WARM_UP = 2
_RESERVE = 0.05
"""Space beyond the part that is to be kept, for shards on their way."""


@dataclass(frozen=True)
class Case:
    """One order, and the cache of each host as a part of what it reads."""

    affinity: float
    room: float

    @property
    def name(self) -> str:
        """The order's name."""
        return f"affinity {self.affinity:g}"


CASES = (
    *(Case(affinity, 1.0) for affinity in (1.0, 0.9, 0.8, 0.5, 0.0)),
    *(Case(affinity, 0.5) for affinity in (1.0, 0.8, 0.5, 0.2)),
)


def write_set() -> None:
    """Write the set."""
    row = np.zeros(240, np.uint8).tobytes()
    with MDSWriter(out=_SET, columns={"id": "int64", "data": "bytes"}, size_limit=_PER_SHARD * 264) as writer:
        for number in range(_SHARDS * _PER_SHARD):
            writer.write({"id": number, "data": row})


def read(case: Case, hosts: int, epochs: int, folder: Path) -> tuple[float, float, float]:
    """Read epochs on every host; return the part of the set that an epoch fetches, all fetches as a multiple of the
    least, and the part of the set that a cache would fetch that removes the shard that was used longest ago."""
    fetched = lru = total = 0
    of_least = []
    for host in range(hosts):
        probe = StreamingDataset(remote=_SET, cache=CacheOptions(local=str(folder / "probe")))
        sizes = np.array([shard.raw.num_bytes for shard in probe.stream.shards])
        probe.close()
        total = int(sizes.sum())
        limit = int((case.room + _RESERVE) * total / hosts)
        dataset = StreamingDataset(
            remote=_SET,
            cache=CacheOptions(local=str(folder / f"{host}"), cache_limit=limit),
            shuffle=True,
            batch_size=_BATCH,
            order=OrderOptions(
                num_canonical_nodes=_NODES, shuffle_block_size=_BLOCK, affinity=case.affinity, tail="drop"
            ),
            world=World.of_blocks(host, hosts, hosts),
        )
        counts, order = [], []
        for _ in range(epochs):
            order.append([np.unique(dataset.stream.shards_of(ids)) for ids in read_epoch(dataset)])
            counts.append(dataset.stats(least=False).bytes_fetched)
        fetched += counts[-1] - counts[_WARM_UP - 1]
        of_least.append(counts[-1] / (dataset.stats().least_bytes or 1))
        lru += least_recently_used(order, sizes, limit)
        dataset.close()
    part = total * (epochs - _WARM_UP)
    return fetched / part, float(np.mean(of_least)), lru / part


def read_epoch(dataset: StreamingDataset) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the ids of each batch of an epoch."""
    for batch in dataset.batches():
        yield np.array(batch["id"])


def least_recently_used(epochs: list[list[np.ndarray[Any, Any]]], sizes: np.ndarray[Any, Any], limit: int) -> int:
    """Return the bytes fetched after the first epochs by a cache that evicts the shard used longest ago."""
    held: OrderedDict[int, int] = OrderedDict()
    fetched = 0
    for number, steps in enumerate(epochs):
        for shard in (int(shard) for shards in steps for shard in shards):
            if shard in held:
                held.move_to_end(shard)
                continue
            fetched += int(sizes[shard]) * (number >= _WARM_UP)
            held[shard] = int(sizes[shard])
            while sum(held.values()) > limit:
                held.popitem(last=False)
    return fetched


def formula(case: Case, hosts: int) -> float:
    """Return the part of the set that an epoch fetches by the formula."""
    return max((1 - case.affinity) * (1 - 1 / hosts), 1 - case.room - _RESERVE, 0.0)


def main() -> None:
    """Print the table."""
    hosts, epochs = (int(text) for text in (*sys.argv[1:], *("4", "6")[len(sys.argv) - 1 :]))
    write_set()
    warnings.filterwarnings("ignore", "`cache_limit` is")
    print(
        "| order | cache of a host / its part | fetched / set | formula | fetched / formula | fetched / least "
        "| longest ago evicted |"
    )
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            fetched, of_least, lru = read(case, hosts, epochs, Path(folder))
        expected = formula(case, hosts)
        of_formula = f"{fetched / expected:.2f}" if expected else "-"
        cells = (case.name, f"{case.room:g}", f"{fetched:.3f}", f"{expected:.3f}", of_formula, f"{of_least:.2f}")
        print("| " + " | ".join((*cells, f"{lru:.3f}")) + " |", flush=True)


if __name__ == "__main__":
    main()
