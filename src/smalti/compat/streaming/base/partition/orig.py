"""The partition `orig`, and MosaicML's warnings about data sets that are too small for a world.

`warn_of_partition` gives the warnings alone; the arrays come from `smalti.order.mosaic`, which never warns.
"""

import logging
import warnings

import numpy as np
from numpy.typing import NDArray

from smalti.order.mosaic import WorldShape
from smalti.order.mosaic.partition import Partition, all_ids, make_partition

logger = logging.getLogger(__name__.removeprefix("smalti.compat."))


def get_partitions_orig(
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,  # noqa: ARG001 - MosaicML's signature
) -> NDArray[np.int64]:
    """Return the partition of an epoch: int64, shape (nodes, ranks, workers, batches, batch size); -1 is padding.

    Arguments and errors are those of `get_partitions`; `initial_physical_nodes` has no effect.
    """
    shape = WorldShape(num_physical_nodes, ranks_per_node, workers_per_rank, batch_size)
    partition = make_partition("orig", num_samples, shape, canonical_nodes=num_canonical_nodes, start=drop_first)
    return ids_of(partition, drop_first)


def ids_of(partition: Partition, drop_first: int) -> NDArray[np.int64]:
    """Return the whole array of a partition that was asked for from sample `drop_first` on, with its warnings."""
    warn_of_partition(partition, drop_first)
    return all_ids(partition, partition.shape, partition.start, partition.num_steps)


def warn_of_partition(partition: Partition, drop_first: int) -> None:
    """Warn of a start that was rounded, and of too few samples for the canonical nodes or for the ranks of a node."""
    if partition.start != drop_first:
        logger.warning(
            "`drop_first` was not divisible by `num_physical_nodes`. Rounding it down to make it divisible: %d to %d, "
            "a multiple of %d.",
            drop_first,
            partition.start,
            partition.dealt_as.hosts,
        )
    order, ranks = partition.order, partition.dealt_as.ranks_on_host
    if order.is_tiny:
        warnings.warn(
            f"Trying to partition {order.num_samples} samples over {order.canonical_nodes} canonical nodes. This "
            "will result in many samples being repeated, and depending on your batching method, batches being "
            "completely dropped. Check if your dataset has the expected number of samples, and consider decreasing "
            "the number of canonical nodes.",
            stacklevel=4,
        )
    samples = max(0, len(order) - partition.start) // partition.dealt_as.hosts
    if samples % ranks and 2 * ranks - samples % ranks - 1 > samples:
        warnings.warn(
            f"Attempting to partition {samples} samples per physical node over {ranks} gpus. This will result in "
            "many samples being repeated, and depending on your batching method, batches being completely dropped. "
            "Check if your dataset has the expected number of samples.",
            stacklevel=4,
        )
