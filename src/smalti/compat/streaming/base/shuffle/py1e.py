"""The shuffle `py1e`, MosaicML's default: samples move by a random distance from their shard's place.

`warn_of_unmixed_shards` gives its warning alone; the ids come from `smalti.order.mosaic`, which never warns.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.shuffle.py1s import shuffled
from smalti.order.mosaic.shuffles import cut_at_nodes


def get_shuffle_py1e(
    shard_sizes: NDArray[np.int64],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> NDArray[np.int64]:
    """Return the shuffled ids of an epoch; arguments and errors are those of `get_shuffle`.

    The samples of a shard spread over at most 0.75 to 1.25 `block_size` places; a larger shard is mixed by itself
    alone, with a warning.
    """
    ids = shuffled("py1e", shard_sizes, num_canonical_nodes, seed, epoch, block_size)
    warn_of_unmixed_shards(shard_sizes, num_canonical_nodes, seed, block_size)
    return ids


def warn_of_unmixed_shards(
    shard_sizes: NDArray[np.int64] | Sequence[int], num_canonical_nodes: int, seed: int, block_size: int
) -> None:
    """Warn if a shard, as cut at canonical nodes, is larger than `block_size`, so that it is mixed by itself alone.

    MosaicML compares it with a block of 0.75 to 1.25 `block_size`, drawn for every epoch; this compares it with the
    mean, so that all epochs give the same warning.
    """
    sizes = np.asarray(shard_sizes, dtype=np.int64)
    laid_out = sizes[np.random.default_rng(seed).permutation(sizes.size)]
    spans = cut_at_nodes(np.zeros_like(laid_out), laid_out, num_canonical_nodes).sizes
    if spans.size and spans.max() > block_size:
        warnings.warn(
            "Shuffle block size was smaller than shard size for some shards. This will result in these shards not "
            "being shuffled with other shards. Set shuffle_block_size to a larger value for a higher quality shuffle; "
            f"found a block of {block_size} and a shard of {spans.max()} samples.",
            stacklevel=3,
        )
