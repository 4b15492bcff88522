"""MosaicML's shuffles of the sample ids of an epoch: `py1e` (its default), `py1br`, `py1s`, `py2s` and `naive`.

Each has a module with one function, over `smalti.order.mosaic`; read `py1s` first. The partition that comes before is
in `smalti.compat.streaming.base.partition`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.shuffle.naive import get_shuffle_naive
from smalti.compat.streaming.base.shuffle.py1br import get_shuffle_py1br
from smalti.compat.streaming.base.shuffle.py1e import get_shuffle_py1e
from smalti.compat.streaming.base.shuffle.py1s import get_shuffle_py1s
from smalti.compat.streaming.base.shuffle.py2s import get_shuffle_py2s

algos: dict[str, Callable[..., NDArray[np.int64]]] = {
    "py1br": get_shuffle_py1br,
    "py1e": get_shuffle_py1e,
    "py1s": get_shuffle_py1s,
    "py2s": get_shuffle_py2s,
    "naive": get_shuffle_naive,
}
"""The shuffles by name; functions of yours may be added, for `get_shuffle` alone: a dataset takes none."""


def get_shuffle(
    algo: str,
    shard_sizes: NDArray[np.int64],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> NDArray[np.int64]:
    """Return the shuffled sample id of every id of an epoch; int64, a permutation.

    Args:
        algo: A name in `algos`.
        shard_sizes: Samples in each shard, in stored order.
        num_canonical_nodes: Nodes that the shards are divided among; samples stay in their node.
        seed: Base seed of the run, from 0.
        epoch: Epoch, from 0; added to the seed.
        block_size: Samples within which `py1e` and `py1br` mix.

    Raises:
        KeyError: there is no such algorithm.
        ValueError: an argument is out of range, or a canonical node of `py1e` would have no samples.
    """
    get = algos.get(algo)
    if get is None:
        raise KeyError(f"`algo` must be one of {', '.join(algos)}, found {algo!r}.")
    return get(shard_sizes, num_canonical_nodes, seed, epoch, block_size)
