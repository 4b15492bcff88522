"""The shuffle `py1br`, which mixes samples within blocks of random sizes, staggered by canonical node."""

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.shuffle.py1s import shuffled


def get_shuffle_py1br(
    shard_sizes: NDArray[np.int64],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> NDArray[np.int64]:
    """Return the shuffled ids of an epoch; arguments and errors are those of `get_shuffle`.

    Blocks hold 0.75 to 1.25 `block_size` samples.
    """
    return shuffled("py1br", shard_sizes, num_canonical_nodes, seed, epoch, block_size)
