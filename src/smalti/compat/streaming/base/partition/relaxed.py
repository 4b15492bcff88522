"""The partition `relaxed`, which also continues on a number of nodes that `orig` refuses."""

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.partition.orig import ids_of
from smalti.order.mosaic import WorldShape
from smalti.order.mosaic.partition import make_partition


def get_partitions_relaxed(
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> NDArray[np.int64]:
    """Return the partition of an epoch: int64, shape (nodes, ranks, workers, batches, batch size); -1 is padding.

    It equals that of `orig` where the numbers of nodes divide; elsewhere every global batch is the one of the first
    nodes, divided anew. Arguments and errors are those of `get_partitions`.

    Raises:
        ValueError: also if the global batch cannot be divided among the ranks with which the run began.
    """
    shape = WorldShape(num_physical_nodes, ranks_per_node, workers_per_rank, batch_size)
    partition = make_partition(
        "relaxed",
        num_samples,
        shape,
        canonical_nodes=num_canonical_nodes,
        start=drop_first,
        initial_hosts=initial_physical_nodes,
    )
    return ids_of(partition, drop_first)
