"""MosaicML's partitions: the sample ids of each node, rank, worker and batch of an epoch, as one array.

The arrays come from `smalti.compat.streaming.order`, which never warns; `warn_of_partition` gives MosaicML's warnings
about data sets that are too small for a world. The shuffle that comes next is in `base.shuffle`.
"""

import logging
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from smalti.compat.paths import serve
from smalti.compat.streaming.order.partition import Partition, WorldShape, make_partition
from smalti.compat.streaming.order.planning import MosaicPlan
from smalti.errors import CursorError

logger = logging.getLogger("streaming.base.partition.orig")


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
            stacklevel=3,
        )
    samples = max(0, len(order) - partition.start) // partition.dealt_as.hosts
    if samples % ranks and 2 * ranks - samples % ranks - 1 > samples:
        warnings.warn(
            f"Attempting to partition {samples} samples per physical node over {ranks} gpus. This will result in "
            "many samples being repeated, and depending on your batching method, batches being completely dropped. "
            "Check if your dataset has the expected number of samples.",
            stacklevel=3,
        )


def _partition_of(algo: str, behaviour: str) -> Callable[..., NDArray[np.int64]]:
    """Return MosaicML's function of one algorithm."""

    def get(
        num_samples: int,
        num_canonical_nodes: int,
        num_physical_nodes: int,
        ranks_per_node: int,
        workers_per_rank: int,
        batch_size: int,
        drop_first: int = 0,
        initial_physical_nodes: int | None = None,
    ) -> NDArray[np.int64]:
        shape = WorldShape(num_physical_nodes, ranks_per_node, workers_per_rank, batch_size)
        partition = make_partition(
            algo,
            num_samples,
            shape,
            canonical_nodes=num_canonical_nodes,
            start=drop_first,
            initial_hosts=initial_physical_nodes,
        )
        warn_of_partition(partition, drop_first)
        return MosaicPlan.of(partition, partition.ids_at).all_ids()

    get.__name__ = get.__qualname__ = f"get_partitions_{algo}"
    get.__doc__ = f"""Return the partition of an epoch: int64, shape (nodes, ranks, workers, batches, batch size).

Arguments and errors are those of `get_partitions`; -1 is padding. {behaviour}"""
    return get


get_partitions_orig = _partition_of("orig", "`initial_physical_nodes` has no effect.")
get_partitions_relaxed = _partition_of(
    "relaxed",
    "It equals that of `orig` where the numbers of nodes divide; elsewhere every global batch is the one of the first "
    "nodes, divided anew; it is an error if that cannot be divided among the ranks with which the run began.",
)
algos: dict[str, Callable[..., NDArray[np.int64]]] = {
    "orig": get_partitions_orig,
    "relaxed": get_partitions_relaxed,
}
"""The partitions by name; functions of yours may be added, for `get_partitions` alone: a dataset takes none."""


def get_partitions(  # noqa: PLR0913, PLR0917 - MosaicML's signature
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> NDArray[np.int64]:
    """Return the partition of an epoch by the named algorithm.

    Args:
        algo: A name in `algos`.
        num_samples: Samples of the epoch.
        num_canonical_nodes: Nodes that the ids are cut into.
        num_physical_nodes: Nodes that read; this number and the former must divide evenly one way or the other.
        ranks_per_node: Ranks of every node.
        workers_per_rank: Loader processes of every rank.
        batch_size: Samples of one rank and step.
        drop_first: Samples of the epoch that were read before.
        initial_physical_nodes: Nodes with which the run began, for `relaxed`.

    Returns:
        Sample ids; int64, shape (physical nodes, ranks per node, workers per rank, batches per worker, batch size); -1
        is padding.

    Raises:
        KeyError: there is no such algorithm.
        ValueError: the epoch ends before `drop_first`, or the numbers of nodes and samples do not fit each other.
    """
    get = algos.get(algo)
    if get is None:
        raise KeyError(f"`algo` must be one of {', '.join(algos)}, found {algo!r}.")
    num_ranks = ranks_per_node * num_physical_nodes
    if num_samples + num_ranks - num_samples % num_ranks < drop_first:
        raise CursorError(
            f"Resuming further into the dataset ({drop_first}) than it has samples ({num_samples}): the state was "
            "saved with another data set or epoch size. Open those again, or begin a new epoch.",
            start=drop_first,
            num_samples=num_samples,
        )
    return get(
        num_samples,
        num_canonical_nodes,
        num_physical_nodes,
        ranks_per_node,
        workers_per_rank,
        batch_size,
        drop_first,
        initial_physical_nodes,
    )


serve(__name__, "orig", "relaxed")
