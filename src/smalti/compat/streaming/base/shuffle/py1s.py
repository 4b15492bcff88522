"""The shuffle `py1s`, which mixes samples within each shard, and the division of shards among canonical nodes."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from smalti.order.mosaic.shuffles import cut_at_nodes, shuffled_ids


def divide_spans(
    spans: list[tuple[int, int]], num_samples: int, num_parts: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return spans cut so that each part has equally many samples, and the range of spans of every part.

    Args:
        spans: Beginning and end of each span, in the order in which they are laid out. Unlike MosaicML's function this
            one leaves the list unchanged.
        num_samples: Samples of all spans together.
        num_parts: Parts to divide them into.

    Raises:
        ValueError: the spans hold another number of samples.
    """
    bounds = np.array(spans, dtype=np.int64).reshape(-1, 2)
    sizes = bounds[:, 1] - bounds[:, 0]
    if int(sizes.sum()) != num_samples:
        raise ValueError(f"`num_samples` must be that of the spans, {int(sizes.sum())}, found {num_samples}.")
    cut = cut_at_nodes(bounds[:, 0], sizes, num_parts)
    return list(zip(cut.starts.tolist(), (cut.starts + cut.sizes).tolist(), strict=True)), list(pairwise(cut.bounds))


def shuffled(
    algo: str,
    shard_sizes: NDArray[np.int64] | Sequence[int],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int,
) -> NDArray[np.int64]:
    """Return the engine's shuffle with MosaicML's dtype, int64; arguments and errors are those of `get_shuffle`."""
    ids = shuffled_ids(
        algo, shard_sizes, canonical_nodes=num_canonical_nodes, seed=seed, epoch=epoch, block_size=block_size
    )
    return ids.astype(np.int64, copy=False)


def get_shuffle_py1s(
    shard_sizes: NDArray[np.int64],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> NDArray[np.int64]:
    """Return the shuffled ids of an epoch; arguments and errors are those of `get_shuffle`.

    `block_size` has no effect: samples move within their shard.
    """
    return shuffled("py1s", shard_sizes, num_canonical_nodes, seed, epoch, block_size)
