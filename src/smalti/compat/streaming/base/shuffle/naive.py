"""The shuffle `naive`, which mixes all samples of the epoch; nodes and shards have no effect."""

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.shuffle.py1s import shuffled


def get_shuffle_naive(
    shard_sizes: NDArray[np.int64],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> NDArray[np.int64]:
    """Return the shuffled ids of an epoch; arguments and errors are those of `get_shuffle`.

    `num_canonical_nodes` and `block_size` have no effect.
    """
    return shuffled("naive", shard_sizes, num_canonical_nodes, seed, epoch, block_size)
