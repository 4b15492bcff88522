"""Planning an epoch in MosaicML's order: what it takes of each stream, shuffled and dealt."""

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
from smalti.order.mosaic.plan import Dealt, Listed, MosaicPlan
from smalti.order.mosaic.sampling import Chosen, Resampled, resample, sample_counts
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
    """One epoch in MosaicML's order, bit for bit, for one world. Pure; O(N).

    Args:
        streams: What the epoch takes from each stream: `weigh_streams`.
        shape: The world that reads.
        options: What fixes the order.
        epoch: Epoch, from 0.
        start: Samples of the epoch that were consumed before (`sample_in_epoch`).

    Raises:
        ValueError: an argument is out of range.
        CursorError: the epoch ends before `start`.
        WorldMismatch: hosts, canonical nodes, batches and samples do not divide as the peer demands it.
    """
    if epoch < 0:
        raise ValueError(f"`epoch` must be at least 0, found {epoch}.")
    chosen = _chosen(streams, options, epoch)
    if options.batching_method == "random":
        return _plan_random(chosen, shape, options, epoch, start)
    total = sum(stream.choose for stream in streams)
    # Each stream is dealt by itself, and filled up; the last step may be filled up with nothing.
    filled = len(streams) * (options.canonical_nodes + 1) * (shape.num_ranks + 1)
    if not 0 <= start <= total + filled + shape.global_batch:
        raise CursorError(
            f"cannot resume at sample {start}: the epoch has {total}. The state was saved with another data set, "
            "weights or epoch size: open those again, or begin a new epoch.",
            start=start,
            num_samples=total,
        )
    listed, num_steps = _Batches(streams, chosen, shape, options, epoch).listed()
    first_step = start // shape.global_batch
    return MosaicPlan(listed, shape, first_step * shape.global_batch, max(0, num_steps - first_step))


def _chosen(streams: Sequence[MosaicStream], options: MosaicOptions, epoch: int) -> list[Chosen]:
    chosen, first_id = [], 0
    for stream in streams:
        counts = sample_counts(
            stream.shard_sizes,
            stream.choose,
            granularity=options.sampling_granularity,
            seed=options.seed,
            epoch=epoch,
            use_epoch=options.changes_with_epoch,
        )
        chosen.append(Chosen(stream.shard_sizes, counts, first_id))
        first_id += int(stream.shard_sizes.sum())
    return chosen


def _plan_random(chosen: list[Chosen], shape: WorldShape, options: MosaicOptions, epoch: int, start: int) -> MosaicPlan:
    taken = resample(chosen, seed=options.seed, epoch=epoch, sampling=options.sampling_method)
    partition = make_partition(
        options.partition_algo,
        len(taken),
        shape,
        canonical_nodes=options.canonical_nodes,
        start=start,
        initial_hosts=options.initial_hosts,
    )
    source = Dealt(partition, taken, shuffled_order(taken, options, epoch, options.shuffle_block))
    return MosaicPlan(source, shape, partition.start, partition.num_steps)


def shuffled_order(taken: Resampled, options: MosaicOptions, epoch: int, block_size: int) -> Ids | None:
    """The sample id of every id of the partition; None without a shuffle."""
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
    """Steps of the three batching methods that know streams: each stream is resampled, dealt and shuffled alone."""

    streams: Sequence[MosaicStream]
    chosen: list[Chosen]
    shape: WorldShape
    options: MosaicOptions
    epoch: int

    def listed(self) -> tuple[Listed, int]:
        """The epoch position by position, and the steps that the peer deals, those included that nobody reads."""
        dealt = [self._dealt(stream) for stream in range(len(self.streams))]
        places = self._places(dealt)
        everywhere = [np.arange(len(stream), dtype=np.int64) for stream in dealt]
        ids = np.concatenate([stream.ids_at(at) for stream, at in zip(dealt, everywhere, strict=True)])
        repeats = np.concatenate([stream.is_repeat(at) for stream, at in zip(dealt, everywhere, strict=True)])
        steps = places.reshape(-1, self.shape.global_batch)
        read = steps[: int(np.count_nonzero((steps >= 0).any(axis=1)))].reshape(-1)
        nobody = read < 0
        listed = Listed(np.where(nobody, -1, ids[read]), repeats[read] | nobody)
        return listed, len(steps)

    def _dealt(self, stream: int) -> Dealt:
        options = self.options
        block = int(options.shuffle_block * self.streams[stream].proportion)
        self._check(stream, block)
        taken = resample([self.chosen[stream]], seed=options.seed, epoch=self.epoch, sampling=options.sampling_method)
        partition = make_partition(
            options.partition_algo,
            len(taken),
            self._dealt_shape(),
            canonical_nodes=options.canonical_nodes,
            initial_hosts=options.initial_hosts,
        )
        return Dealt(partition, taken, shuffled_order(taken, options, self.epoch, block))

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

    def _dealt_shape(self) -> WorldShape:
        """The world that every stream is dealt to, so that steps of `shape` can be made of it."""
        if self.options.batching_method == "stratified":
            return replace(self.shape, hosts=1, batch_size=1)
        if self.options.batching_method == "device_per_stream":
            return replace(self.shape, hosts=self.options.canonical_nodes, batch_size=1)
        return self.shape

    def _places(self, dealt: Sequence[Dealt]) -> Ints:
        """Places in the streams' sequences, laid end to end, position by position; -1 for nobody's."""
        lengths = [len(stream) for stream in dealt]
        options, shape = self.options, self.shape
        rng = np.random.default_rng(options.seed + self.epoch if options.changes_with_epoch else options.seed)
        if options.batching_method == "per_stream":
            full_steps = [stream.partition.full_steps for stream in dealt]
            return per_stream_places(lengths, full_steps, shape.global_batch, rng)
        if options.batching_method == "stratified":
            proportions = [stream.proportion for stream in self.streams]
            return in_position_order(stratified_rows(lengths, proportions, shape.global_batch), shape)
        return in_position_order(device_per_stream_rows(lengths, options.canonical_nodes, shape, rng), shape)
