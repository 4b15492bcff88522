"""The plan of an epoch from the attributes of a StreamingDataset, which may be changed until the epoch begins.

A dataset's iteration and `base.batching.generate_work` both use `plan_work`, so that they cannot differ.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.partition.orig import warn_of_repeats
from smalti.compat.streaming.base.shuffle.py1e import warn_of_unmixed_shards
from smalti.compat.streaming.base.world import World, engine_world
from smalti.cursor import Cursor
from smalti.dataset.order import OrderOptions, Pass, Planned, Reading
from smalti.order import Division, StepBatch
from smalti.order.mosaic import MosaicOptions, MosaicPlan, MosaicStream, WorldShape, plan_mosaic_epoch
from smalti.order.mosaic.partition import make_partition
from smalti.order.mosaic.planning import stream_counts
from smalti.order.mosaic.sampling import Resampled, resample

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Work:
    """The order of a run's epochs in one world, as the attributes of a dataset were when an epoch began."""

    streams: Sequence[MosaicStream]
    options: MosaicOptions
    shape: WorldShape

    def plan(self, epoch: int, sample_in_epoch: int) -> MosaicPlan:
        """Return the order of an epoch from a sample on; raises as `plan_mosaic_epoch`."""
        return plan_mosaic_epoch(self.streams, self.shape, options=self.options, epoch=epoch, start=sample_in_epoch)

    def resampled(self, epoch: int, stream: int | None = None) -> Resampled:
        """Return the samples that an epoch takes; `stream` is the number of the only stream to take, None for all."""
        options, counts = self.options, stream_counts(self.streams, self.options, epoch)
        if stream is not None:
            counts = [counts[stream]]
        return resample(counts, seed=options.seed, epoch=epoch, sampling=options.sampling_method)

    def warn(self, epoch: int, sample_in_epoch: int) -> None:
        """Warn where the samples are too few for the world, or the shuffle block too small for the shards."""
        options, shape = self.options, self.shape
        if options.batching_method == "stratified" and sample_in_epoch % shape.global_batch:
            warnings.warn(
                f"Because of the `stratified` batching method, resumption may only occur on a sample that is a "
                f"multiple of the current global batch size of {shape.global_batch}, and the state is at "
                f"{sample_in_epoch}: resuming after the most recently finished global batch.",
                stacklevel=4,
            )
        if options.batching_method != "random":
            return
        taken = self.resampled(epoch)
        partition = make_partition(
            options.partition_algo,
            len(taken),
            shape,
            canonical_nodes=options.canonical_nodes,
            start=sample_in_epoch,
            initial_hosts=options.initial_hosts,
        )
        warn_of_repeats(partition)
        if options.shuffle and options.shuffle_algo == "py1e":
            warn_of_unmixed_shards(taken.units, options.canonical_nodes, options.seed, options.shuffle_block)


def work_of(dataset: Any, world: World, batching_method: str | None = None) -> Work:
    """Return the order of a dataset's epochs in a world; `batching_method` is that of the dataset if not given.

    Raises:
        RuntimeError: `num_canonical_nodes` is None.
        TypeError: `shuffle_block_size` or `batch_size` is no whole number.
    """
    if dataset.num_canonical_nodes is None:
        raise RuntimeError("`num_canonical_nodes` can never be None. Provide a positive integer.")
    if not isinstance(dataset.batch_size, int):
        raise TypeError(f"Batch size must be an integer. Got {type(dataset.batch_size)}.")
    if dataset.shuffle and not isinstance(dataset.shuffle_block_size, int):
        raise TypeError(
            f"Dataset `shuffle_block_size` must be an integer. Got {type(dataset.shuffle_block_size)} instead."
        )
    options = MosaicOptions(
        canonical_nodes=dataset.num_canonical_nodes,
        block_size=dataset.shuffle_block_size,
        partition_algo=dataset.partition_algo,
        initial_hosts=dataset.initial_physical_nodes,
        batching_method=dataset.batching_method if batching_method is None else batching_method,
        **_sampling_options(dataset),
    )
    shape = WorldShape(world.num_nodes, world.ranks_per_node, world.workers_per_rank, dataset.batch_size)
    return Work(_streams_of(dataset), options, shape)


def sampling_of(dataset: Any) -> Work:
    """Return a dataset's epochs for their samples alone, before the options of the order are known."""
    return Work(_streams_of(dataset), MosaicOptions(canonical_nodes=1, **_sampling_options(dataset)), WorldShape())


def _streams_of(dataset: Any) -> list[MosaicStream]:
    sizes = np.split(dataset.samples_per_shard, np.cumsum(dataset.shards_per_stream)[:-1])
    return [
        MosaicStream(each, int(stream.choose), float(stream.proportion))
        for each, stream in zip(sizes, dataset.streams, strict=True)
    ]


def _sampling_options(dataset: Any) -> dict[str, Any]:
    return {
        "seed": dataset.shuffle_seed,
        "shuffle": bool(dataset.shuffle),
        # Without `shuffle` the algorithm may be any, as in MosaicML Streaming.
        "shuffle_algo": dataset.shuffle_algo if dataset.shuffle else MosaicOptions.shuffle_algo,
        "sampling_method": dataset.sampling_method,
        "sampling_granularity": dataset.sampling_granularity,
    }


@dataclass(frozen=True, eq=False)
class WorkReading(Reading):
    """One rank's part of a dataset's work, for the engine's lookahead.

    A rank that MosaicML gives no sample at a step gets none here either, where the engine repeats one.
    """

    work: Work = field(kw_only=True)

    @cached_property
    def division(self) -> Division:
        """The positions that this rank takes at each step."""
        plan = self._mosaic_plan
        return Division(len(plan), plan.start, self.batch_size, self.this_pass.world, "short")

    @cached_property
    def _mosaic_plan(self) -> MosaicPlan:
        start = self.this_pass.start
        return self.work.plan(start.epoch, start.samples)

    def _marked(self, plan: MosaicPlan, step: StepBatch, ids: Ints) -> Planned:
        del plan
        kept = (step.positions >= 0) & (ids >= 0)
        return StepBatch(step.step, step.lookup[kept], step.positions[kept]), ids[kept]


def reading_of(work: Work, world: World, epoch: int, sample_in_epoch: int) -> WorkReading:
    """Return one rank's part of the epoch from a sample on, for all of the rank's workers together."""
    options = work.options
    start = Cursor(
        epoch=epoch,
        samples=sample_in_epoch,
        seed=options.seed,
        canonical_nodes=options.canonical_nodes,
        initial_hosts=options.initial_hosts or work.shape.hosts,
        digest="",
        split=None,
        epoch_size=sum(stream.choose for stream in work.streams),
        shuffle=options.shuffle,
        block_size=options.shuffle_block,
        algorithm=options.shuffle_algo,
    )
    sizes = [stream.shard_sizes for stream in work.streams]
    this_pass = Pass(start, engine_world(world))
    return WorkReading(this_pass, sizes, work.shape.batch_size, OrderOptions(tail="short"), work=work)
