"""The arrangement of an epoch's samples over nodes, ranks, workers and batches, by batching method.

The arrangements come from `smalti.compat.streaming.order`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.compat.paths import serve
from smalti.compat.streaming.base.engine.planning import run_of, warn_of
from smalti.compat.streaming.base.world import World


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
