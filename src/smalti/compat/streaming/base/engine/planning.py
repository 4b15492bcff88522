"""The plan of an epoch from the attributes of a StreamingDataset, which may be changed until the epoch begins.

A dataset's iteration and `base.batching.generate_work` both use `plan_work`, so that they cannot differ.
"""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.partition import warn_of_partition
from smalti.compat.streaming.base.shuffle import warn_of_unmixed_shards
from smalti.compat.streaming.base.world import World, engine_world
from smalti.compat.streaming.errors import BatchSizeError
from smalti.compat.streaming.order import MosaicOptions, MosaicPlan, MosaicStream, WorldShape, plan_mosaic_epoch
from smalti.compat.streaming.order.batching import stream_portions
from smalti.compat.streaming.order.partition import Partition, make_partition
from smalti.compat.streaming.order.planning import stream_counts, stream_shape
from smalti.compat.streaming.order.sampling import Resampled, StreamCounts, resample
from smalti.cursor import Cursor
from smalti.dataset.order import OrderOptions, Pass, Planned, Reading
from smalti.order import Division, StepBatch

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
        counts = stream_counts(self.streams, self.options, epoch)
        return self._resample(counts if stream is None else [counts[stream]], epoch)

    def _resample(self, counts: list[StreamCounts], epoch: int) -> Resampled:
        return resample(counts, seed=self.options.seed, epoch=epoch, sampling=self.options.sampling_method)

    def warn(self, epoch: int, sample_in_epoch: int) -> None:
        """Warn of what MosaicML warns of: samples that are too few, small shuffle blocks, a start that is rounded."""
        options, is_random = self.options, self.options.batching_method == "random"
        counts = stream_counts(self.streams, options, epoch)
        for stream in [None] if is_random else range(len(self.streams)):
            if stream is not None and not self.streams[stream].choose:
                continue  # the plan refuses it
            taken = self._resample(counts if stream is None else [counts[stream]], epoch)
            start = sample_in_epoch if is_random else 0
            partition = make_partition(
                options.partition_algo,
                len(taken),
                stream_shape(self.shape, options),
                canonical_nodes=options.canonical_nodes,
                start=start,
                initial_hosts=options.initial_hosts,
            )
            warn_of_partition(partition, start)
            if options.shuffle and options.shuffle_algo == "py1e":
                share = 1.0 if stream is None else self.streams[stream].proportion
                block = int(options.shuffle_block * share)
                warn_of_unmixed_shards(taken.units, options.canonical_nodes, options.seed, block)
            if stream is not None and self._drops(partition, stream):
                self._logger.warning(
                    "Because of the `%s` batching method, some batches with an inadequate number of samples from "
                    "stream with index %d %s dropped.",
                    options.batching_method,
                    stream,
                    "are being" if options.batching_method == "stratified" else "will be",
                )
        if not is_random and sample_in_epoch % self.shape.global_batch:
            self._warn_of_resumption()

    def _drops(self, partition: Partition, stream: int) -> bool:
        """Return whether a batch of the stream lacks samples, counting the padding of MosaicML's array as it does."""
        method, shape = self.options.batching_method, partition.shape
        steps = -(-partition.num_steps // shape.workers) * shape.workers
        if method == "per_stream":
            return partition.full_steps != steps
        if method == "device_per_stream":
            return True  # it always adds a batch of padding
        portion = int(stream_portions([each.proportion for each in self.streams], self.shape.global_batch)[stream])
        return portion > 0 and len(partition) // portion != -(-steps * shape.num_ranks // portion)

    def _warn_of_resumption(self) -> None:
        method, batch = self.options.batching_method, self.shape.global_batch
        text = (
            f"Because of the `{method}` batching method, resumption may only occur on a sample that is a multiple of "
            f"the current global batch size of {batch}. Resuming training after the most recently finished global "
            "batch."
        )
        if method == "stratified":
            warnings.warn(f"{text} Set {batch} to the original value for deterministic resumption.", stacklevel=5)
        else:
            self._logger.warning(text)

    @property
    def _logger(self) -> logging.Logger:
        return logging.getLogger(f"streaming.base.batching.{self.options.batching_method}")


def work_of(dataset: Any, world: World, batching_method: str | None = None) -> Work:
    """Return the order of a dataset's epochs in a world; `batching_method` is that of the dataset if not given.

    Raises:
        RuntimeError: `num_canonical_nodes` is None.
        TypeError: `shuffle_block_size` or `batch_size` is no whole number.
    """
    if dataset.num_canonical_nodes is None:
        raise RuntimeError("`num_canonical_nodes` can never be None. Provide a positive integer.")
    if not isinstance(dataset.batch_size, int):
        raise BatchSizeError(f"Batch size must be an integer. Got {type(dataset.batch_size)}.")
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
        "shuffle_algo": dataset.shuffle_algo,
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
        plan, epoch = self.plan, self.this_pass.start.epoch
        return Division(len(plan), plan.start, self.batch_size, self.this_pass.world, "short", epoch)

    @cached_property
    def plan(self) -> MosaicPlan:
        """The order of the epoch; memory is O(samples)."""
        start = self.this_pass.start
        return self.work.plan(start.epoch, start.samples)

    def steps(self, first: int, stop: int, stride: int = 1) -> list[Planned]:
        """Return the steps range(first, stop, stride), up to the epoch's end, each with its sample ids."""
        return [_without_padding(step, ids) for step, ids in super().steps(first, stop, stride)]


def _without_padding(step: StepBatch, ids: Ints) -> Planned:
    kept = (step.positions >= 0) & (ids >= 0)
    return replace(step, lookup=step.lookup[kept], positions=step.positions[kept]), ids[kept]


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
