"""`MosaicRun`: from the samples that an epoch takes of each stream to MosaicML's order of them, a `MosaicPlan`.

Planning is O(N) in time and memory, as the shuffles are: 4 bytes per sample, 8 from 2^31 samples on (none without a
shuffle if every sample is taken once). The ids of one rank or worker are then arithmetic and one gather; no array of
the whole cluster is made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice
from smalti.compat.streaming.order.partition import (
    Partition,
    WorldShape,
    device_per_stream_rows,
    in_position_order,
    make_partition,
    per_stream_places,
    stratified_rows,
)
from smalti.compat.streaming.order.sampling import MosaicStream, Resampled, get_sampling, resample
from smalti.compat.streaming.order.shuffles import MIN_BLOCK_SIZES, Ids, Ints, check_at_least, shuffled_ids
from smalti.errors import CursorError, WorldMismatch
from smalti.order.mixture.planning import BATCHINGS
from smalti.order.window import GlobalOrder

_MIXED_SAMPLES = 4_000_000  # MosaicML's default: samples in the blocks of all canonical nodes together
_MIN_BLOCK = 1 << 18


@dataclass(frozen=True)
class MosaicOptions:
    """The options of a run, with the names and defaults of MosaicML's `StreamingDataset`.

    MosaicML's `state_dict` holds only the first two. To continue a run, give the others as that run had them.
    """

    canonical_nodes: int
    """`num_canonical_nodes`, from 1."""
    seed: int = 9176
    """`shuffle_seed`, from 0."""
    shuffle: bool = False
    """Shuffle the samples."""
    shuffle_algo: str = "py1e"
    """Name of the shuffle; used only with `shuffle`."""
    block_size: int | None = None
    """`shuffle_block_size`; None for MosaicML's default: 4,000,000 over all canonical nodes, at least 2^18 in each."""
    partition_algo: str = "relaxed"
    """Algorithm that partitions ids over hosts."""
    initial_hosts: int | None = None
    """`initial_physical_nodes`: hosts that the run began with; None in a first run."""
    sampling_method: str = "balanced"
    """For a stream of which an epoch takes a part: `balanced` takes another part each epoch, `fixed` the same one."""
    sampling_granularity: int = 1
    """Samples that are drawn together from one shard."""
    batching_method: str = "random"
    """Method that makes batches from several streams."""

    def __post_init__(self) -> None:
        check_choice("batching_method", self.batching_method, BATCHINGS)

    @property
    def shuffle_block(self) -> int:
        """`block_size`, or MosaicML's default."""
        if self.block_size is not None:
            return self.block_size
        return max(_MIXED_SAMPLES // self.canonical_nodes, _MIN_BLOCK)

    @property
    def changes_with_epoch(self) -> bool:
        """True if the samples that an epoch takes, and the order of its streams, are drawn anew each epoch."""
        return self.shuffle and self.sampling_method == "balanced"


def default_mosaic_nodes(shuffle_algo: str, hosts: int) -> int:
    """Return MosaicML's canonical nodes for a first run: 64 per host with `py1s` and `py2s`, else one per host."""
    return 64 * hosts if shuffle_algo in {"py1s", "py2s"} else hosts


@dataclass(frozen=True, eq=False)
class MosaicPlan(GlobalOrder):
    """The order of one epoch for one world, from `start` on; any part of its positions can be looked up alone.

    `Division(len(plan), plan.start, batch_size, world, tail="short")` gives every rank, at every step, exactly the ids
    that MosaicML gives it. What that means for the invariants:

    * I3. Step s is the span [start + s*B, start + (s+1)*B) of positions, and the canonical order behind them does not
      depend on the world, nor on B. So prefix + rest = the uninterrupted order holds for every position below
      C * (N // C), on any world that the partition accepts and, with `orig`, any batch size. There are three
      exceptions, which follow from MosaicML's order: `start` is rounded down to a multiple of the hosts, so that up to
      H - 1 samples are read again; the last C positions and those added after them are padded differently in each
      world; and with `relaxed` on a world that does not divide, the global batch must remain the same.
    * I1. Every sample that the epoch takes is at one position, and again where it pads. The methods `stratified`,
      `per_stream` and `device_per_stream` leave samples out, resume at whole steps only, and fix their order for one
      global batch: prefix + rest holds while that remains the same.
    * I4. No position goes to two ranks, but a repeat may be in the same step as its sample. Ranks take equally many
      steps, but with `relaxed` on a world that does not divide and with `device_per_stream` some positions of the last
      steps are empty (id -1), and a rank may get an empty step.

    For replica groups, give the shape of the groups (`World.replicate`). Pure and thread-safe.
    """

    lookup: Callable[[Ints], Ids]
    """Returns the sample ids at positions in [0, size); -1 for empty positions."""
    size: int
    """Positions of the epoch."""
    shape: WorldShape
    start: int
    """The first position that is read."""
    all_steps: int
    """Steps from the start, with those that hold no sample."""

    @classmethod
    def of(cls, partition: Partition, lookup: Callable[[Ints], Ids]) -> "MosaicPlan":
        """Return the plan of a whole partition, whose positions `lookup` takes."""
        return cls(lookup, len(partition), partition.shape, partition.start, partition.num_steps)

    def __len__(self) -> int:
        return max(self.start, self.size)

    @property
    def num_steps(self) -> int:
        """Steps from the start that hold at least one sample."""
        return -(-(len(self) - self.start) // self.shape.global_batch)

    def ids_at(self, positions: Ints) -> Ints:
        """Return sample ids at positions from 0; int64, in their shape; -1 for empty positions and from `size` on."""
        inside: NDArray[np.bool_] = positions < self.size
        if inside.all():
            return self.lookup(positions).astype(np.int64, copy=False)
        ids = np.full(positions.shape, -1, dtype=np.int64)
        ids[inside] = self.lookup(positions[inside])
        return ids

    def all_ids(self) -> Ints:
        """Return MosaicML's whole array; int64, shape (hosts, ranks of a host, workers of a rank, batches, batch_size).

        Takes more than 8 bytes per sample while it is computed; -1 is padding.
        """
        shape = self.shape
        host, rank, worker, batch = np.ix_(
            np.arange(shape.hosts),
            np.arange(shape.ranks_on_host),
            np.arange(shape.workers),
            np.arange(-(-self.all_steps // shape.workers)),
        )
        sample = np.arange(shape.batch_size, dtype=np.int64)
        turn = ((worker + shape.workers * batch)[..., None] * shape.batch_size + sample) * shape.ranks_on_host
        host_first = self.start + (host - self.start) % shape.hosts
        return self.ids_at(host_first[..., None] + (turn + rank[..., None]) * shape.hosts)


def _sample_ids_at(partition: Partition, taken: Resampled, positions: Ints) -> Ids:
    """Return the sample ids at positions of a partition; -1 for empty positions."""
    ids = partition.ids_at(positions)
    held = ids >= 0
    return taken.sample_ids(ids) if held.all() else np.where(held, taken.sample_ids(np.maximum(ids, 0)), -1)


@dataclass(frozen=True, eq=False)
class MosaicRun:
    """A run in MosaicML's order, bit for bit, in one world. Pure."""

    streams: Sequence[MosaicStream]
    shape: WorldShape
    options: MosaicOptions

    def plan(self, epoch: int, start: int = 0) -> MosaicPlan:
        """Return one epoch, counted from 0, from sample `start` on (`sample_in_epoch`). O(N).

        Raises:
            ValueError: an argument is out of range.
            CursorError: the epoch ends before `start`.
            WorldMismatch: hosts, canonical nodes, batches and samples do not divide as MosaicML requires.
        """
        check_at_least(0, epoch=epoch)
        options, batch = self.options, self.shape.global_batch
        if options.batching_method == "random":
            partition, taken = self._shuffled(epoch, start=start)
            lookup = partial(_sample_ids_at, partition, taken)
            return MosaicPlan.of(partition, lookup)
        total = sum(stream.choose for stream in self.streams)
        # Each stream is partitioned and padded by itself, and the last step may be padded with empty positions.
        padding = len(self.streams) * (options.canonical_nodes + 1) * (self.shape.num_ranks + 1)
        if not 0 <= start <= total + padding + batch:
            raise CursorError(
                f"Resuming further into the dataset ({start}) than it has samples ({total}): the state was saved with "
                "another data set, weights or epoch size. Open those again, or begin a new epoch.",
                start=start,
                num_samples=total,
            )
        sources = [self._shuffled(epoch, stream, self._checked_block(stream)) for stream in range(len(self.streams))]
        # Position by position, places in the streams' sequences, laid end to end; -1 for empty positions.
        lengths = [len(partition) for partition, _ in sources]
        rng = np.random.default_rng(options.seed + epoch if options.changes_with_epoch else options.seed)
        if options.batching_method == "per_stream":
            steps = per_stream_places(lengths, [partition.full_steps for partition, _ in sources], batch, rng)
        elif options.batching_method == "stratified":
            steps = stratified_rows(lengths, [stream.proportion for stream in self.streams], batch)
        else:
            steps = device_per_stream_rows(lengths, options.canonical_nodes, self.shape, rng)
        if options.batching_method != "per_stream":
            steps = in_position_order(steps, self.shape)
        steps = steps.reshape(-1, batch)
        read = steps[: int(np.count_nonzero((steps >= 0).any(axis=1)))].reshape(-1)
        ids = np.concatenate([_sample_ids_at(*each, np.arange(len(each[0]), dtype=np.int64)) for each in sources])
        listed = np.where(read < 0, -1, ids[read])
        first = start // batch
        return MosaicPlan(listed.__getitem__, listed.size, self.shape, first * batch, max(0, len(steps) - first))

    @cached_property
    def _first_ids(self) -> list[int]:
        """The sample id of the first sample of each stream."""
        return [0, *accumulate(int(stream.shard_sizes.sum()) for stream in self.streams[:-1])]

    def resampled(self, epoch: int, stream: int | None = None) -> Resampled:
        """Return the samples that an epoch takes of all streams, or of the one with a number."""
        options, streams = self.options, self.streams if stream is None else [self.streams[stream]]
        granularity, use_epoch = options.sampling_granularity, options.changes_with_epoch
        return resample(
            np.concatenate([each.shard_sizes for each in streams]),
            np.concatenate(
                [
                    get_sampling(each.shard_sizes, each.choose, granularity, options.seed, epoch, use_epoch)
                    for each in streams
                ]
            ),
            self._first_ids[stream or 0],
            seed=options.seed,
            epoch=epoch,
            sampling=options.sampling_method,
        )

    def partition(self, num_samples: int, start: int = 0) -> Partition:
        """Return the partition of the samples of all streams with batches of all, else of those of one stream.

        Batches by stream are assembled from steps of worlds of their own.
        """
        options, shape = self.options, self.shape
        if options.batching_method == "stratified":
            shape = replace(shape, hosts=1, batch_size=1)
        elif options.batching_method == "device_per_stream":
            shape = replace(shape, hosts=options.canonical_nodes, batch_size=1)
        return make_partition(
            options.partition_algo,
            num_samples,
            shape,
            canonical_nodes=options.canonical_nodes,
            start=start,
            initial_hosts=options.initial_hosts,
        )

    def _shuffled(
        self, epoch: int, stream: int | None = None, block: int | None = None, start: int = 0
    ) -> tuple[Partition, Resampled]:
        """Return the partition of an epoch of all streams or one, and the sample ids of its ids, shuffled."""
        options, taken = self.options, self.resampled(epoch, stream)
        partition = self.partition(len(taken), start)
        if not options.shuffle:
            return partition, taken
        order = shuffled_ids(
            options.shuffle_algo,
            taken.units,
            canonical_nodes=options.canonical_nodes,
            seed=options.seed,
            epoch=epoch,
            block_size=options.shuffle_block if block is None else block,
        )
        return partition, replace(taken, ids=taken.sample_ids(order))

    def _checked_block(self, stream: int) -> int:
        """Return a stream's share of the shuffle block.

        Raises:
            WorldMismatch: the stream gives no samples, or its share is too small.
        """
        options, taken = self.options, self.streams[stream].choose
        block = int(options.shuffle_block * self.streams[stream].proportion)
        least = MIN_BLOCK_SIZES.get(options.shuffle_algo, 0) if options.shuffle else 0
        if not taken or block < least:
            raise WorldMismatch(
                f"Samples from stream {stream} are not being used. It gives {taken} samples to the epoch and has "
                f"{block} of a shuffle block of {options.shuffle_block}, which is too few for batching "
                f"{options.batching_method!r}: take more of the stream, leave it out, or enlarge the shuffle block.",
                stream=stream,
                choose=taken,
                block_size=block,
            )
        return block
