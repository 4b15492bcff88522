"""The arrangement of an epoch's samples over nodes, ranks, workers and batches, by batching method.

The arrangements come from `smalti.compat.streaming.order`, by the attributes of a StreamingDataset, which may be
changed until the epoch begins. A dataset's iteration and `generate_work` both use `run_of`, so that they cannot differ.
"""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.compat.paths import serve
from smalti.compat.streaming.base.partition import warn_of_partition
from smalti.compat.streaming.base.shuffle import warn_of_unmixed_shards
from smalti.compat.streaming.base.world import World
from smalti.compat.streaming.errors import BatchSizeError
from smalti.compat.streaming.order.partition import Partition, WorldShape, stream_portions
from smalti.compat.streaming.order.planning import MosaicOptions, MosaicPlan, MosaicRun
from smalti.compat.streaming.order.sampling import MosaicStream
from smalti.cursor import Cursor
from smalti.dataset.order import OrderOptions, Pass, Planned, Reading
from smalti.order import Division
from smalti.world import World as EngineWorld


def warn_of(run: MosaicRun, epoch: int, sample_in_epoch: int, *, stacklevel: int = 3) -> None:
    """Warn of what MosaicML warns of: samples that are too few, small shuffle blocks, a start that is rounded."""
    options, is_random = run.options, run.options.batching_method == "random"
    logger = logging.getLogger(f"streaming.base.batching.{options.batching_method}")
    start = sample_in_epoch if is_random else 0
    for stream in [None] if is_random else range(len(run.streams)):
        if stream is not None and not run.streams[stream].choose:
            continue  # the plan refuses it
        taken = run.resampled(epoch, stream)
        partition = run.partition(len(taken), start)
        warn_of_partition(partition, start)
        if options.shuffle and options.shuffle_algo == "py1e":
            share = 1.0 if stream is None else run.streams[stream].proportion
            block = int(options.shuffle_block * share)
            warn_of_unmixed_shards(taken.units, options.canonical_nodes, options.seed, block)
        if stream is not None and _drops(run, partition, stream):
            logger.warning(
                "Because of the `%s` batching method, some batches with an inadequate number of samples from "
                "stream with index %d %s dropped.",
                options.batching_method,
                stream,
                "are being" if options.batching_method == "stratified" else "will be",
            )
    batch = run.shape.global_batch
    if not is_random and sample_in_epoch % batch:
        text = (
            f"Because of the `{options.batching_method}` batching method, resumption may only occur on a sample that "
            f"is a multiple of the current global batch size of {batch}. Resuming training after the most recently "
            "finished global batch."
        )
        if options.batching_method == "stratified":
            text += f" Set {batch} to the original value for deterministic resumption."
            warnings.warn(text, stacklevel=stacklevel)
        else:
            logger.warning(text)


def _drops(run: MosaicRun, partition: Partition, stream: int) -> bool:
    """Return whether a batch of the stream lacks samples, counting the padding of MosaicML's array as it does."""
    method, shape = run.options.batching_method, partition.shape
    steps = -(-partition.num_steps // shape.workers) * shape.workers
    if method == "per_stream":
        return partition.full_steps != steps
    if method == "device_per_stream":
        return True  # it always adds a batch of padding
    portion = int(stream_portions([each.proportion for each in run.streams], run.shape.global_batch)[stream])
    return portion > 0 and len(partition) // portion != -(-steps * shape.num_ranks // portion)


def run_of(dataset: Any, world: World, batching_method: str | None = None) -> MosaicRun:
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
    sampled = sampling_of(dataset)
    options = replace(
        sampled.options,
        canonical_nodes=dataset.num_canonical_nodes,
        block_size=dataset.shuffle_block_size,
        partition_algo=dataset.partition_algo,
        initial_hosts=dataset.initial_physical_nodes,
        batching_method=dataset.batching_method if batching_method is None else batching_method,
    )
    shape = WorldShape(world.num_nodes, world.ranks_per_node, world.workers_per_rank, dataset.batch_size)
    return MosaicRun(sampled.streams, shape, options)


def sampling_of(dataset: Any) -> MosaicRun:
    """Return a dataset's epochs for their samples alone, before the options of the order are known."""
    sizes = np.split(dataset.samples_per_shard, np.cumsum(dataset.shards_per_stream)[:-1])
    streams = [
        MosaicStream(each, int(stream.choose), float(stream.proportion))
        for each, stream in zip(sizes, dataset.streams, strict=True)
    ]
    options = MosaicOptions(
        canonical_nodes=1,
        seed=dataset.shuffle_seed,
        shuffle=bool(dataset.shuffle),
        shuffle_algo=dataset.shuffle_algo,
        sampling_method=dataset.sampling_method,
        sampling_granularity=dataset.sampling_granularity,
    )
    return MosaicRun(streams, WorldShape(), options)


@dataclass(frozen=True, eq=False)
class MosaicReading(Reading):
    """One rank's part of a run, for the engine's lookahead.

    A rank that MosaicML gives no sample at a step gets none here either, where the engine repeats one.
    """

    run: MosaicRun = field(kw_only=True)

    @cached_property
    def division(self) -> Division:
        """The positions that this rank takes at each step."""
        plan, epoch = self.plan, self.this_pass.start.epoch
        return Division(len(plan), plan.start, self.batch_size, self.this_pass.world, "short", epoch)

    @cached_property
    def plan(self) -> MosaicPlan:
        """The order of the epoch; memory is O(samples)."""
        return self.run.plan(self.this_pass.start.epoch, self.this_pass.start.samples)

    def steps(self, first: int, stop: int, stride: int = 1) -> list[Planned]:
        """Return the steps range(first, stop, stride), up to the epoch's end, each with its sample ids."""
        planned = []
        for step, ids in super().steps(first, stop, stride):
            kept = (step.positions >= 0) & (ids >= 0)  # no padding
            planned.append((replace(step, lookup=step.lookup[kept], positions=step.positions[kept]), ids[kept]))
        return planned


def reading_of(run: MosaicRun, world: World, epoch: int, sample_in_epoch: int) -> MosaicReading:
    """Return one rank's part of the epoch from a sample on, for all of the rank's workers together."""
    options = run.options
    start = Cursor(
        epoch=epoch,
        samples=sample_in_epoch,
        seed=options.seed,
        canonical_nodes=options.canonical_nodes,
        initial_hosts=options.initial_hosts or run.shape.hosts,
        digest="",
        split=None,
        epoch_size=sum(stream.choose for stream in run.streams),
        shuffle=options.shuffle,
        block_size=options.shuffle_block,
        algorithm=options.shuffle_algo,
    )
    this_pass = Pass(start, EngineWorld.of_blocks(world.rank, world.num_ranks, world.num_nodes))
    sizes = [stream.shard_sizes for stream in run.streams]
    return MosaicReading(this_pass, sizes, run.shape.batch_size, OrderOptions(tail="short"), run=run)


def _method(name: str, batches: str) -> Callable[[Any, World, int, int], NDArray[np.int64]]:
    """Return MosaicML's function of one batching method."""

    def generate(dataset: Any, world: World, epoch: int, sample_in_epoch: int) -> NDArray[np.int64]:
        run = run_of(dataset, world, name)
        warn_of(run, epoch, sample_in_epoch, stacklevel=4)  # the caller of `generate_work`
        return run.plan(epoch, sample_in_epoch).all_ids()

    generate.__name__ = generate.__qualname__ = f"generate_work_{name}_batching"
    generate.__doc__ = f"Return ids as `generate_work`, in {batches}."
    return generate


generate_work_random_batching = _method("random", "global batches of all streams mixed")
generate_work_stratified_batching = _method(
    "stratified", "global batches with the same number of samples of each stream"
)
generate_work_per_stream_batching = _method("per_stream", "global batches of one stream each")
generate_work_device_per_stream_batching = _method("device_per_stream", "batches of one stream on each rank")
batching_methods: dict[str, Callable[..., NDArray[np.int64]]] = {
    "random": generate_work_random_batching,
    "stratified": generate_work_stratified_batching,
    "per_stream": generate_work_per_stream_batching,
    "device_per_stream": generate_work_device_per_stream_batching,
}
"""The methods by name; functions of yours may be added, for `generate_work` alone: a dataset takes none."""


def generate_work(
    batching_method: str, dataset: Any, world: World, epoch: int, sample_in_epoch: int
) -> NDArray[np.int64]:
    """Return the sample ids of an epoch, from a sample on; -1 is padding.

    Args:
        batching_method: a name in `batching_methods`.
        dataset: dataset whose attributes determine the order.
        world: world that reads.
        epoch: number of the epoch.
        sample_in_epoch: samples of the epoch that were read before.

    Returns:
        int64, shape (physical nodes, ranks per node, workers per rank, batches per worker, batch size).

    Raises:
        KeyError: there is no such method.
        ValueError: the samples do not fit the world, or the epoch ends before `sample_in_epoch`.
        RuntimeError: the dataset's `num_canonical_nodes` is None.
    """
    return batching_methods[batching_method](dataset, world, epoch, sample_in_epoch)


serve(__name__, "device_per_stream", "per_stream", "random", "stratified")
