"""MosaicML's partitions, `orig` and `relaxed`: the id at each position of an epoch, for one world (`WorldShape`).

`CanonicalOrder` is the order of ids before a world divides it: N ids are cut into C canonical nodes, and one id is
taken from each node in turn. N = 22, C = 4, one host:

    place        0   1   2   3 |  4   5   6   7 | ... | 16  17  18  19 | 20  21  22  23
    node         0   1   2   3 |  0   1   2   3 | ... |  0   1   2   3 |  0   1   2   3
    id           0   5  11  16 |  1   6  12  17 | ... |  4   9  15  20 |  4*  10  15* 21      * a repeat

A node with fewer ids than the longest repeats its last one. With more hosts than canonical nodes, rows are added so
that each node's ids can be shared evenly among its hosts; added rows repeat earlier ids.

Positions are counted as in `smalti.order.Division`, which therefore divides them as MosaicML does: position p goes to
host p % H, and a host's n-th position from the start on to its rank n % R. Step s is then the span
[start + s*B, start + (s+1)*B) of the canonical order for the global batch B, in every world. Only the tail depends on
the world: positions are added there that repeat earlier ids:

    canonical order   | step 0 | step 1 | ... | last step, incomplete |
    world of 3 ranks  | step 0 | step 1 | ... | last step .. + 0 to 2 repeats of each host |

`relaxed` also continues in a world whose hosts neither divide the canonical nodes nor are divided by them: every global
batch is then the one that the first world would have read, divided differently. Its last one may be uneven: positions
with id -1 are empty, and a rank may end with fewer samples than others or one step early, which MosaicML does not
prevent.

`MosaicPlan.all_ids` returns the ids of each host, rank and worker in the shapes of MosaicML's arrays. One host of two
ranks, two workers each, batches of 3; positions from the start:

    rank 0   worker 0   [0  2  4]            [12 14 16]
             worker 1              [6 8 10]              [18 20 22]
    rank 1   worker 0   [1  3  5]            [13 15 17]
             worker 1              [7 9 11]              [19 21 23]
               step         0          1         2           3

MosaicML's batches of several streams, as places in the streams' own sequences; bit for bit.

`random` uses nothing of this: it mixes all streams as one. The other methods each assemble steps, of global batch B,
from sequences that were partitioned and shuffled stream by stream. With streams a and b, 2 ranks and batches of 2:

    stratified            every step has the same number of each         [a0 a1 a2 b0] [a3 a4 a5 b1] ...
    per_stream            a step is of one stream                        [b0 b1 b2 b3] [a0 a1 a2 a3] ...
    device_per_stream     a rank's batch is of one stream                [a0 a1|b0 b1] [b2 b3|a2 a3] ...

Only complete batches are kept, and the remaining samples are not read in this epoch: as in MosaicML, these methods are
not permutations of the epoch's samples.

A row lists a step as MosaicML does, host by host, rank by rank, sample by sample; -1 is empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice
from smalti.compat.streaming.order.shuffles import Ints, check_at_least
from smalti.errors import CursorError, WorldMismatch

PARTITIONS = ("orig", "relaxed")


@dataclass(frozen=True)
class WorldShape:
    """Numbers of hosts, ranks and workers, and the batch size; not which of them this process is."""

    hosts: int = 1
    """Physical nodes."""
    ranks_on_host: int = 1
    """Ranks on every host."""
    workers: int = 1
    """Loader processes of every rank; 1 where the rank reads by itself."""
    batch_size: int = 1
    """Samples per rank and step."""

    def __post_init__(self) -> None:
        check_at_least(1, **vars(self))

    @property
    def num_ranks(self) -> int:
        """Ranks altogether."""
        return self.hosts * self.ranks_on_host

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return self.num_ranks * self.batch_size


@dataclass(frozen=True)
class CanonicalOrder:
    """The id at each of `len(order)` places; C divides the hosts, or the hosts divide C."""

    num_samples: int
    """Ids, N, from 1."""
    canonical_nodes: int
    """Nodes that the ids are cut into, C."""
    hosts: int
    """Physical nodes; they determine the number of added rows, and nothing else."""

    def __post_init__(self) -> None:
        check_at_least(1, **vars(self))
        if not divides(self.canonical_nodes, self.hosts):
            raise WorldMismatch(
                "Either canonical or physical nodes must be evenly divisible by the other: "
                f"{self.canonical_nodes} canonical nodes cannot be divided among {self.hosts} hosts. Use another "
                "number of hosts, or, when resuming, the partition 'relaxed'.",
                canonical_nodes=self.canonical_nodes,
                hosts=self.hosts,
            )
        if self.added_rows and not self.is_tiny and self.longest < self.repeat_distance:
            raise WorldMismatch(
                f"{self.num_samples} samples of {self.canonical_nodes} canonical nodes are too few to be shared by "
                f"{self.hosts} hosts; use fewer hosts, or as many canonical nodes as hosts.",
                num_samples=self.num_samples,
                canonical_nodes=self.canonical_nodes,
                hosts=self.hosts,
            )

    def __len__(self) -> int:
        return self.canonical_nodes * self.rows

    @cached_property
    def hosts_per_node(self) -> int:
        """Hosts that share one canonical node, if there are more hosts than nodes; else 1."""
        return max(1, self.hosts // self.canonical_nodes)

    @cached_property
    def longest(self) -> int:
        """Ids of the longest canonical node."""
        return -(-self.num_samples // self.canonical_nodes)

    @cached_property
    def added_rows(self) -> int:
        """Rows of repeats that make each node's ids divisible among its hosts."""
        return -self.longest % self.hosts_per_node

    @property
    def repeat_distance(self) -> int:
        """Rows between an added row and the earlier one that it repeats."""
        return self.added_rows + self.hosts_per_node - 1

    @cached_property
    def rows(self) -> int:
        """Places of one canonical node."""
        return self.longest + self.added_rows

    @cached_property
    def is_tiny(self) -> bool:
        """True if there are too few ids to be cut into nodes: the places then go round all ids repeatedly."""
        few = self.num_samples < self.canonical_nodes
        return few or (self.num_samples == self.canonical_nodes and self.canonical_nodes < self.hosts)

    def ids_at(self, places: Ints) -> Ints:
        """Return the ids at the given places, each in [0, len(order))."""
        row, node = np.divmod(places, self.canonical_nodes)
        if self.is_tiny:
            return (node * self.rows + row) % self.num_samples
        begin: Ints = node * self.num_samples // self.canonical_nodes
        size = (node + 1) * self.num_samples // self.canonical_nodes - begin
        if self.added_rows:
            row = np.where(row < self.longest, row, row - self.repeat_distance)
        return begin + np.minimum(row, size - 1)


def divides(one: int, other: int) -> bool:
    """Return whether one of two numbers is a multiple of the other."""
    return one % other == 0 or other % one == 0


@dataclass(frozen=True)
class Partition:
    """Ids by position, in [0, len(partition)); positions before `start` were read before."""

    order: CanonicalOrder
    """The order that is partitioned."""
    shape: WorldShape
    """The world that reads."""
    start: int
    """First position that is read: samples consumed before."""
    dealt_as: WorldShape
    """The world that the order is partitioned for: `shape`, or the first world of the run."""

    @cached_property
    def _host_samples(self) -> int:
        """Places of every host of `dealt_as` from the start on."""
        return max(0, len(self.order) - self.start) // self.dealt_as.hosts

    @cached_property
    def _rank_samples(self) -> int:
        """Places of every rank from the start on, including repeats that pad."""
        return -(-self._host_samples // self.dealt_as.ranks_on_host)

    @property
    def num_steps(self) -> int:
        """Steps from the start; the last one may be incomplete."""
        return -(-self._rank_samples // self.dealt_as.batch_size)

    @property
    def full_steps(self) -> int:
        """Steps from the start in which no rank lacks a sample."""
        return self._rank_samples // self.dealt_as.batch_size

    def __len__(self) -> int:
        if self.dealt_as != self.shape:
            return self.start + self.num_steps * self.shape.global_batch
        return self.start + self._rank_samples * self.shape.num_ranks

    def ids_at(self, positions: Ints) -> Ints:
        """Return the ids at the given positions; -1 for empty positions."""
        places = self._dealt(positions)  # of the canonical order; -1 for none
        late = places >= len(self.order)
        if late.any():
            places = places.copy()
            places[late] = self._repeated(places[late])
        if (places >= 0).all():
            return self.order.ids_at(places)
        return np.where(places >= 0, self.order.ids_at(np.maximum(places, 0)), -1)

    def _repeated(self, dealt: Ints) -> Ints:
        """Return the places that pad the ranks of a host: those just before the host's last full row."""
        world, count = self.dealt_as, self._host_samples
        lacking = -count % world.ranks_on_host
        if not lacking:
            return np.full(dealt.shape, -1, dtype=np.int64)
        turn, host = np.divmod(dealt - self.start, world.hosts)
        back = world.ranks_on_host + lacking - 1
        source = turn - back if back <= count else (turn - count) % count
        return np.where(turn < count + lacking, self.start + source * world.hosts + host, -1)

    def _dealt(self, positions: Ints) -> Ints:
        """Return the positions as `dealt_as` counts them: the same ones, or others of the same step.

        MosaicML lists a step host by host, rank by rank, sample by sample, and divides that list anew for `shape`.
        """
        if self.dealt_as == self.shape:
            return positions
        new, old = self.shape, self.dealt_as
        step, within = np.divmod(positions - self.start, new.global_batch)
        turn, offset = np.divmod(within, new.hosts)
        host = (self.start + offset) % new.hosts
        sample, rank = np.divmod(turn, new.ranks_on_host)
        listed = (host * new.ranks_on_host + rank) * new.batch_size + sample
        old_rank, old_sample = np.divmod(listed, old.batch_size)
        old_host, old_rank = np.divmod(old_rank, old.ranks_on_host)
        old_turn = (step * old.batch_size + old_sample) * old.ranks_on_host + old_rank
        return np.where(positions < self.start, positions, self.start + old_turn * old.hosts + old_host)


def make_partition(
    algorithm: str,
    num_samples: int,
    shape: WorldShape,
    *,
    canonical_nodes: int,
    start: int = 0,
    initial_hosts: int | None = None,
) -> Partition:
    """Return the partition of `num_samples` ids for one world, from sample `start` of the epoch on. O(1).

    Args:
        algorithm: One of `PARTITIONS`.
        num_samples: Ids of the epoch, from 1.
        shape: The world that reads.
        canonical_nodes: Nodes that the ids are cut into.
        start: Samples of the epoch that were consumed before; rounded down to a multiple of the hosts, as in MosaicML.
        initial_hosts: Hosts that the run began with; `relaxed` needs it where `shape` does not divide.

    Raises:
        ValueError: an argument is out of range.
        CursorError: the epoch ends before `start`.
        WorldMismatch: hosts and canonical nodes do not divide, or there are too few ids for them; with `relaxed`: the
            global batch does not divide among the first world's ranks.
    """
    check_choice("algorithm", algorithm, PARTITIONS)
    check_at_least(0, start=start)
    # MosaicML stops at the first of these limits, although samples may lie between it and the second.
    rows = -(-num_samples // max(1, canonical_nodes))
    if start > max(num_samples + shape.num_ranks - num_samples % shape.num_ranks, rows * canonical_nodes):
        raise CursorError(
            f"Resuming further into the dataset ({start}) than it has samples ({num_samples}): the state was saved "
            "with another data set or epoch size. Open those again, or begin a new epoch.",
            start=start,
            num_samples=num_samples,
        )
    dealt_as = shape
    if algorithm == "relaxed" and initial_hosts is not None and not divides(canonical_nodes, shape.hosts):
        ranks = initial_hosts * shape.ranks_on_host
        if initial_hosts < 1 or shape.global_batch % ranks:
            raise WorldMismatch(
                f"A global batch size of {shape.global_batch} is not evenly divisible by the initial total number of "
                f"devices of {ranks}, the ranks of the {initial_hosts} hosts with which the run began (partition "
                "'relaxed'); choose a `batch_size` that keeps the global batch of that run.",
                global_batch=shape.global_batch,
                initial_hosts=initial_hosts,
            )
        dealt_as = WorldShape(initial_hosts, shape.ranks_on_host, shape.workers, shape.global_batch // ranks)
    order = CanonicalOrder(num_samples, canonical_nodes, dealt_as.hosts)
    return Partition(order, shape, start - start % dealt_as.hosts, dealt_as)


def in_position_order(rows: Ints, shape: WorldShape) -> Ints:
    """Return rows of steps in position order: sample by sample, rank by rank, host by host; shape (rows.size,)."""
    cut = rows.reshape(-1, shape.hosts, shape.ranks_on_host, shape.batch_size)
    return cut.transpose(0, 3, 2, 1).reshape(-1)


def stratified_rows(lengths: Sequence[int], proportions: Sequence[float], global_batch: int) -> Ints:
    """Return steps that each hold every stream in the same numbers; int64, shape (steps, global_batch).

    Entries are places in the streams' sequences, laid end to end. The epoch ends when one stream is used up.

    Raises:
        WorldMismatch: a stream would have no sample in a step.
    """
    portions = stream_portions(proportions, global_batch)
    for stream, portion in enumerate(portions.tolist()):
        if portion < 1:
            raise WorldMismatch(
                f"Number of samples for stream {stream} is {portion} because the portion of this stream in the global "
                f"batch, which is of size {global_batch}, is too low (batching 'stratified'). Please increase the "
                "global batch size or increase the stream's proportion.",
                stream=stream,
                global_batch=global_batch,
            )
    steps = min(length // portion for length, portion in zip(lengths, portions.tolist(), strict=True))
    begins = np.cumsum(lengths) - lengths
    parts = [
        begin + np.arange(steps * portion, dtype=np.int64).reshape(steps, portion)
        for begin, portion in zip(begins.tolist(), portions.tolist(), strict=True)
    ]
    return np.concatenate(parts, axis=1)


def stream_portions(proportions: Sequence[float], global_batch: int) -> Ints:
    """Return how many samples of each stream a `stratified` step holds; int64, shape (streams,)."""
    parts = np.array(proportions)
    portions = np.array([int(part * global_batch) for part in proportions], dtype=np.int64)
    lacking = global_batch - int(portions.sum())
    if lacking:
        nearest_first = np.flip(np.argsort(global_batch * parts - portions))
        portions[nearest_first[:lacking]] += 1
    return portions


def per_stream_places(
    lengths: Sequence[int], full_steps: Sequence[int], global_batch: int, rng: np.random.Generator
) -> Ints:
    """Return steps that each hold one stream, in an order that `rng` draws; int64, shape (steps, global_batch).

    Entries are places in the streams' sequences, laid end to end, of the given lengths and numbers of full steps. Rows
    keep the sequences' own order: positions if the sequences hold positions.

    Raises:
        WorldMismatch: a stream has too few samples for one step.
    """
    for stream, steps in enumerate(full_steps):
        _check_batches(stream, steps, f"a complete global batch of size {global_batch}")
    begins = np.cumsum(lengths) - lengths
    starts = [begin + np.arange(steps) * global_batch for begin, steps in zip(begins, full_steps, strict=True)]
    return _mixed(starts, rng)[:, None] + np.arange(global_batch, dtype=np.int64)


def device_per_stream_rows(
    lengths: Sequence[int], canonical_nodes: int, shape: WorldShape, rng: np.random.Generator
) -> Ints:
    """Return steps in which every rank's batch holds one stream; int64, shape (steps, global_batch).

    Entries are places in the streams' sequences, laid end to end, each of them in the position order of a world with
    as many hosts as there are canonical nodes; -1 is padding. MosaicML lists the hosts' batches in turn and divides
    that list by host and rank, so that with several ranks a host also gets batches of other hosts' samples.

    Raises:
        WorldMismatch: the hosts do not divide the canonical nodes, or a host has too few samples of a stream for one
            batch.
    """
    if canonical_nodes % shape.hosts:
        raise WorldMismatch(
            "For `device_per_stream` batching, num_canonical_nodes must be divisible by physical nodes. Got "
            f"{canonical_nodes} canonical nodes and {shape.hosts} physical nodes (hosts); choose another number of "
            "either.",
            canonical_nodes=canonical_nodes,
            hosts=shape.hosts,
        )
    begins = (np.cumsum(lengths) - lengths).tolist()
    hosts, nodes = [], canonical_nodes // shape.hosts
    for number in range(shape.hosts):
        batches = []
        for stream, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
            # The stream's places in the host's canonical nodes: turn by turn, node by node, rank by rank.
            turns = np.arange(length, dtype=np.int64).reshape(-1, shape.ranks_on_host, canonical_nodes)
            of_host = turns[:, :, number * nodes : (number + 1) * nodes]
            places = begin + of_host.transpose(0, 2, 1).reshape(-1)
            full = places.size // shape.batch_size
            _check_batches(stream, full, f"even a single device batch of size {shape.batch_size} on every host")
            batches.append(places[: full * shape.batch_size].reshape(full, shape.batch_size))
        hosts.append(_mixed(batches, rng))
    longest = max(len(host) for host in hosts)
    # MosaicML pads to the next multiple of the ranks, even if the number is a multiple already.
    rows = longest + shape.num_ranks - longest % shape.num_ranks
    listed = np.full((rows, shape.hosts, shape.batch_size), -1, dtype=np.int64)
    for place, host in enumerate(hosts):
        listed[: len(host), place] = host
    return listed.reshape(-1, shape.global_batch)


def _mixed(parts: Sequence[Ints], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the streams' parts, joined in a random order that keeps each stream's own order."""
    origins = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rng.shuffle(origins)
    joined = np.concatenate(parts)
    mixed = np.empty_like(joined)
    mixed[np.argsort(origins, kind="stable")] = joined
    return mixed


def _check_batches(stream: int, count: int, batch: str) -> None:
    if not count:
        raise WorldMismatch(
            f"Stream with index {stream} does not have an adequate number of samples to construct {batch}. Choose a "
            "smaller batch, or take more of that stream.",
            stream=stream,
        )
