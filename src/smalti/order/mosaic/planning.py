"""`plan_mosaic_epoch`: from the samples that an epoch takes of each stream to MosaicML's order of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smalti.errors import CursorError, WorldMismatch
from smalti.order.mosaic.batching import (
    device_per_stream_rows,
    in_position_order,
    per_stream_places,
    stratified_rows,
)
from smalti.order.mosaic.options import MosaicOptions
from smalti.order.mosaic.partition import make_partition
from smalti.order.mosaic.plan import ListedIds, MosaicPlan, PartitionedIds
from smalti.order.mosaic.sampling import Resampled, StreamCounts, resample, sample_counts
from smalti.order.mosaic.shape import WorldShape
from smalti.order.mosaic.shuffles import LEAST_BLOCKS, shuffled_ids
from smalti.order.mosaic.spans import Ids, Ints
from smalti.order.mosaic.weights import MosaicStream


def plan_mosaic_epoch(
    streams: Sequence[MosaicStream],
    shape: WorldShape,
    *,
    options: MosaicOptions,
    epoch: int,
    start: int = 0,
) -> MosaicPlan:
    """Return one epoch in MosaicML's order, bit for bit, for one world. Pure; O(N).

    Args:
        streams: The samples that the epoch takes of each stream; see `weigh_streams`.
        shape: The world that reads.
        options: Options of the order.
        epoch: Epoch, from 0.
        start: Samples of the epoch that were consumed before (`sample_in_epoch`).

    Raises:
        ValueError: an argument is out of range.
        CursorError: the epoch ends before `start`.
        WorldMismatch: hosts, canonical nodes, batches and samples do not divide as MosaicML requires.
    """
    if epoch < 0:
        raise ValueError(f"`epoch` must be at least 0, found {epoch}.")
    counts = _stream_counts(streams, options, epoch)
    if options.batching_method == "random":
        return _plan_random(counts, shape, options, epoch, start)
    total = sum(stream.choose for stream in streams)
    # Each stream is partitioned and padded by itself, and the last step may be padded with empty positions.
    padding = len(streams) * (options.canonical_nodes + 1) * (shape.num_ranks + 1)
    if not 0 <= start <= total + padding + shape.global_batch:
        raise CursorError(
            f"cannot resume at sample {start}: the epoch has {total}. The state was saved with another data set, "
            "weights or epoch size: open those again, or begin a new epoch.",
            start=start,
            num_samples=total,
        )
    listed, num_steps = _Batches(streams, counts, shape, options, epoch).listed()
    first_step = start // shape.global_batch
    return MosaicPlan(listed, shape, first_step * shape.global_batch, max(0, num_steps - first_step))


def _stream_counts(streams: Sequence[MosaicStream], options: MosaicOptions, epoch: int) -> list[StreamCounts]:
    stream_counts, first_id = [], 0
    for stream in streams:
        counts = sample_counts(
            stream.shard_sizes,
            stream.choose,
            granularity=options.sampling_granularity,
            seed=options.seed,
            epoch=epoch,
            use_epoch=options.changes_with_epoch,
        )
        stream_counts.append(StreamCounts(stream.shard_sizes, counts, first_id))
        first_id += int(stream.shard_sizes.sum())
    return stream_counts


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
        everywhere = [np.arange(len(source), dtype=np.int64) for source in sources]
        ids = np.concatenate([source.ids_at(at) for source, at in zip(sources, everywhere, strict=True)])
        repeats = np.concatenate([source.is_repeat(at) for source, at in zip(sources, everywhere, strict=True)])
        steps = places.reshape(-1, self.shape.global_batch)
        read = steps[: int(np.count_nonzero((steps >= 0).any(axis=1)))].reshape(-1)
        is_empty = read < 0
        listed = ListedIds(np.where(is_empty, -1, ids[read]), repeats[read] | is_empty)
        return listed, len(steps)

    def _partitioned(self, stream: int) -> PartitionedIds:
        options = self.options
        block = int(options.shuffle_block * self.streams[stream].proportion)
        self._check(stream, block)
        taken = resample([self.counts[stream]], seed=options.seed, epoch=self.epoch, sampling=options.sampling_method)
        partition = make_partition(
            options.partition_algo,
            len(taken),
            self._stream_shape(),
            canonical_nodes=options.canonical_nodes,
            initial_hosts=options.initial_hosts,
        )
        return PartitionedIds(partition, taken, shuffled_order(taken, options, self.epoch, block))

    def _check(self, stream: int, block: int) -> None:
        options, taken = self.options, self.streams[stream].choose
        least = LEAST_BLOCKS.get(options.shuffle_algo, 0) if options.shuffle else 0
        if not taken or block < least:
            raise WorldMismatch(
                f"batching {options.batching_method!r}: stream {stream} gives {taken} samples to the epoch and has "
                f"{block} of a shuffle block of {options.shuffle_block}, which is too few; take more of the stream, "
                "leave it out, or enlarge the shuffle block.",
                stream=stream,
                choose=taken,
                block_size=block,
            )

    def _stream_shape(self) -> WorldShape:
        """Return the world that every stream is partitioned for, from which steps of `shape` are assembled."""
        if self.options.batching_method == "stratified":
            return replace(self.shape, hosts=1, batch_size=1)
        if self.options.batching_method == "device_per_stream":
            return replace(self.shape, hosts=self.options.canonical_nodes, batch_size=1)
        return self.shape

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
