"""The shuffle `py2s`, which mixes samples within each shard twice: once for the run, and anew for each epoch."""

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.shuffle.py1s import shuffled


def get_shuffle_py2s(
    shard_sizes: NDArray[np.int64],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> NDArray[np.int64]:
    """Return the shuffled ids of an epoch; arguments and errors are those of `get_shuffle`.

    `block_size` has no effect: samples move within their shard.
    """
    return shuffled("py2s", shard_sizes, num_canonical_nodes, seed, epoch, block_size)
