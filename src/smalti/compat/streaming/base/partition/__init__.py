"""MosaicML's partitions: the sample ids of each node, rank, worker and batch of an epoch, as one array.

`orig` and `relaxed` have a module each, over `smalti.order.mosaic`; read `orig` first. The shuffle that comes next is
in `smalti.compat.streaming.base.shuffle`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.partition.orig import get_partitions_orig
from smalti.compat.streaming.base.partition.relaxed import get_partitions_relaxed
from smalti.errors import CursorError

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
