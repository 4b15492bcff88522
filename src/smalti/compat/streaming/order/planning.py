"""`plan_mosaic_epoch`: from the samples that an epoch takes of each stream to MosaicML's order of them, a `MosaicPlan`.

Planning is O(N) in time and memory, as the shuffles are: 4 bytes per sample, 8 from 2^31 samples on (none without a
shuffle if every sample is taken once). The ids of one rank or worker are then arithmetic and one gather; no array of
the whole cluster is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smalti.compat.streaming.order.batching import (
    device_per_stream_rows,
    in_position_order,
    per_stream_places,
    stratified_rows,
)
from smalti.compat.streaming.order.partition import (
    Partition,
    WorldShape,
    all_ids,
    make_partition,
)
from smalti.compat.streaming.order.sampling import MosaicStream, Resampled, StreamCounts, resample, sample_counts
from smalti.compat.streaming.order.shuffles import MIN_BLOCK_SIZES, Ids, Ints, shuffled_ids
from smalti.errors import ArgumentError, CursorError, WorldMismatch
from smalti.order.mixture import BATCHINGS
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
        if self.batching_method not in BATCHINGS:
            raise ArgumentError(
                f"`batching_method` must be one of {', '.join(BATCHINGS)}, found {self.batching_method!r}."
            )

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
class PartitionedIds:
    """Sample ids of a partition, resampled and shuffled: a table of at most N ids."""

    partition: Partition
    """The id of the partition at each position."""
    taken: Resampled
    """The samples that the epoch takes."""
    order: Ids | None
    """The sample id of every id of the partition; None without a shuffle."""

    def __len__(self) -> int:
        return len(self.partition)

    def ids_at(self, positions: Ints) -> Ids:
        """Return the sample ids at the given positions; -1 for empty positions."""
        ids = self.partition.ids_at(positions)
        held = ids >= 0
        if held.all():
            return self._sample_ids(ids)
        return np.where(held, self._sample_ids(np.maximum(ids, 0)), -1)

    def _sample_ids(self, ids: Ints) -> Ids:
        return self.taken.sample_ids(ids) if self.order is None else self.order[ids]


@dataclass(frozen=True, eq=False)
class ListedIds:
    """Sample ids in a table, position by position."""

    ids: Ids
    """The sample id of every position; -1 for empty positions."""

    def __len__(self) -> int:
        return int(self.ids.size)

    def ids_at(self, positions: Ints) -> Ids:
        """Return the sample ids at the given positions; -1 for empty positions."""
        return self.ids[positions]


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

    def __init__(self, source: PartitionedIds | ListedIds, shape: WorldShape, start: int, num_steps: int) -> None:
        self._source = source
        self._all_steps = num_steps  # including steps without any sample
        self.shape = shape
        self.start = start

    def __len__(self) -> int:
        return max(self.start, len(self._source))

    @property
    def num_steps(self) -> int:
        """Steps from the start that hold at least one sample."""
        return -(-(len(self) - self.start) // self.shape.global_batch)

    def ids_at(self, positions: Ints) -> Ints:
        """Return sample ids at positions in [0, len(plan)); int64, the shape of `positions`; -1 for empty positions."""
        if int(positions.max(initial=-1)) < len(self._source):
            return self._source.ids_at(positions).astype(np.int64, copy=False)
        ids = np.full(positions.shape, -1, dtype=np.int64)
        inside = positions < len(self._source)
        ids[inside] = self._source.ids_at(positions[inside])
        return ids

    def all_ids(self) -> Ints:
        """Return MosaicML's whole array; int64, shape (hosts, ranks of a host, workers of a rank, batches, batch_size).

        Takes more than 8 bytes per sample while it is computed; -1 is padding.
        """
        return all_ids(self._source, self.shape, self.start, self._all_steps)


def plan_mosaic_epoch(
    streams: Sequence[MosaicStream],
    shape: WorldShape,
    *,
    options: MosaicOptions,
    epoch: int,
    start: int = 0,
) -> MosaicPlan:
    """Return one epoch in MosaicML's order, bit for bit, for one world. Pure; O(N).

    `epoch` counts from 0; `start` samples of the epoch were consumed before (`sample_in_epoch`).

    Raises:
        ValueError: an argument is out of range.
        CursorError: the epoch ends before `start`.
        WorldMismatch: hosts, canonical nodes, batches and samples do not divide as MosaicML requires.
    """
    if epoch < 0:
        raise ArgumentError(f"`epoch` must be at least 0, found {epoch}.")
    counts = stream_counts(streams, options, epoch)
    if options.batching_method == "random":
        return _plan_random(counts, shape, options, epoch, start)
    total = sum(stream.choose for stream in streams)
    # Each stream is partitioned and padded by itself, and the last step may be padded with empty positions.
    padding = len(streams) * (options.canonical_nodes + 1) * (shape.num_ranks + 1)
    if not 0 <= start <= total + padding + shape.global_batch:
        raise CursorError(
            f"Resuming further into the dataset ({start}) than it has samples ({total}): the state was saved with "
            "another data set, weights or epoch size. Open those again, or begin a new epoch.",
            start=start,
            num_samples=total,
        )
    listed, num_steps = _Batches(streams, counts, shape, options, epoch).listed()
    first_step = start // shape.global_batch
    return MosaicPlan(listed, shape, first_step * shape.global_batch, max(0, num_steps - first_step))


def stream_counts(streams: Sequence[MosaicStream], options: MosaicOptions, epoch: int) -> list[StreamCounts]:
    """Return how many samples of each shard an epoch takes, for every stream."""
    found, first_id = [], 0
    for stream in streams:
        counts = sample_counts(
            stream.shard_sizes,
            stream.choose,
            granularity=options.sampling_granularity,
            seed=options.seed,
            epoch=epoch,
            use_epoch=options.changes_with_epoch,
        )
        found.append(StreamCounts(stream.shard_sizes, counts, first_id))
        first_id += int(stream.shard_sizes.sum())
    return found


def _plan_random(
    counts: list[StreamCounts], shape: WorldShape, options: MosaicOptions, epoch: int, start: int
) -> MosaicPlan:
    taken = resample(counts, seed=options.seed, epoch=epoch, sampling=options.sampling_method)
    partition = make_partition(
        options.partition_algo,
        len(taken),
        shape,
        canonical_nodes=options.canonical_nodes,
        start=start,
        initial_hosts=options.initial_hosts,
    )
    source = PartitionedIds(partition, taken, shuffled_order(taken, options, epoch, options.shuffle_block))
    return MosaicPlan(source, shape, partition.start, partition.num_steps)


def shuffled_order(taken: Resampled, options: MosaicOptions, epoch: int, block_size: int) -> Ids | None:
    """Return the sample id of every id of the partition; None without a shuffle."""
    if not options.shuffle:
        return None
    order = shuffled_ids(
        options.shuffle_algo,
        taken.units,
        canonical_nodes=options.canonical_nodes,
        seed=options.seed,
        epoch=epoch,
        block_size=block_size,
    )
    return taken.sample_ids(order)


def stream_shape(shape: WorldShape, options: MosaicOptions) -> WorldShape:
    """Return the world that every stream is partitioned for, from which steps of `shape` are assembled."""
    if options.batching_method == "stratified":
        return replace(shape, hosts=1, batch_size=1)
    if options.batching_method == "device_per_stream":
        return replace(shape, hosts=options.canonical_nodes, batch_size=1)
    return shape


@dataclass(frozen=True, eq=False)
class _Batches:
    """Steps of the three batching methods by stream: each stream is resampled, partitioned and shuffled alone."""

    streams: Sequence[MosaicStream]
    counts: list[StreamCounts]
    shape: WorldShape
    options: MosaicOptions
    epoch: int

    def listed(self) -> tuple[ListedIds, int]:
        """Return the epoch position by position, and the number of steps, including steps without any sample."""
        sources = [self._partitioned(stream) for stream in range(len(self.streams))]
        places = self._places(sources)
        ids = np.concatenate([source.ids_at(np.arange(len(source), dtype=np.int64)) for source in sources])
        steps = places.reshape(-1, self.shape.global_batch)
        read = steps[: int(np.count_nonzero((steps >= 0).any(axis=1)))].reshape(-1)
        return ListedIds(np.where(read < 0, -1, ids[read])), len(steps)

    def _partitioned(self, stream: int) -> PartitionedIds:
        options = self.options
        block = int(options.shuffle_block * self.streams[stream].proportion)
        self._check(stream, block)
        taken = resample([self.counts[stream]], seed=options.seed, epoch=self.epoch, sampling=options.sampling_method)
        partition = make_partition(
            options.partition_algo,
            len(taken),
            stream_shape(self.shape, self.options),
            canonical_nodes=options.canonical_nodes,
            initial_hosts=options.initial_hosts,
        )
        return PartitionedIds(partition, taken, shuffled_order(taken, options, self.epoch, block))

    def _check(self, stream: int, block: int) -> None:
        options, taken = self.options, self.streams[stream].choose
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

    def _places(self, sources: Sequence[PartitionedIds]) -> Ints:
        """Return, position by position, places in the streams' sequences, laid end to end; -1 for empty positions."""
        lengths = [len(source) for source in sources]
        options, shape = self.options, self.shape
        rng = np.random.default_rng(options.seed + self.epoch if options.changes_with_epoch else options.seed)
        if options.batching_method == "per_stream":
            full_steps = [source.partition.full_steps for source in sources]
            return per_stream_places(lengths, full_steps, shape.global_batch, rng)
        if options.batching_method == "stratified":
            proportions = [stream.proportion for stream in self.streams]
            return in_position_order(stratified_rows(lengths, proportions, shape.global_batch), shape)
        return in_position_order(device_per_stream_rows(lengths, options.canonical_nodes, shape, rng), shape)
