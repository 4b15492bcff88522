"""The arrangement of an epoch's samples over nodes, ranks, workers and batches, by batching method.

Each method has a module with one function; the arrangements come from `smalti.order.mosaic`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.batching.device_per_stream import generate_work_device_per_stream_batching
from smalti.compat.streaming.base.batching.per_stream import generate_work_per_stream_batching
from smalti.compat.streaming.base.batching.random import generate_work_random_batching
from smalti.compat.streaming.base.batching.stratified import generate_work_stratified_batching
from smalti.compat.streaming.base.world import World

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
