"""MosaicML's shuffles of the sample ids of an epoch: `py1e` (its default), `py1br`, `py1s`, `py2s` and `naive`.

The ids come from `smalti.compat.streaming.order`, which never warns; `warn_of_unmixed_shards` gives the warning of
`py1e`. The partition that comes before is in `smalti.compat.streaming.base.partition`.
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from smalti.compat.paths import serve
from smalti.compat.streaming.order.shuffles import cut_at_nodes, shuffled_ids


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


def _shuffle_of(algo: str, behaviour: str) -> Callable[..., NDArray[np.int64]]:
    """Return MosaicML's function of one algorithm."""

    def get(
        shard_sizes: NDArray[np.int64], num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
    ) -> NDArray[np.int64]:
        ids = shuffled_ids(
            algo, shard_sizes, canonical_nodes=num_canonical_nodes, seed=seed, epoch=epoch, block_size=block_size
        )
        if algo == "py1e":
            warn_of_unmixed_shards(shard_sizes, num_canonical_nodes, seed, block_size)
        return ids.astype(np.int64, copy=False)

    get.__name__ = get.__qualname__ = f"get_shuffle_{algo}"
    get.__doc__ = (
        f"Return the shuffled ids of an epoch; arguments and errors are those of `get_shuffle`.\n\n{behaviour}"
    )
    return get


_WITHIN_SHARDS = "`block_size` has no effect: samples move within their shard."
get_shuffle_py1e = _shuffle_of(
    "py1e",
    "The samples of a shard spread over at most 0.75 to 1.25 `block_size` places; a larger shard is mixed by itself "
    "alone, with a warning.",
)
get_shuffle_py1br = _shuffle_of("py1br", "Blocks hold 0.75 to 1.25 `block_size` samples.")
get_shuffle_py1s = _shuffle_of("py1s", _WITHIN_SHARDS)
get_shuffle_py2s = _shuffle_of("py2s", _WITHIN_SHARDS)
get_shuffle_naive = _shuffle_of("naive", "`num_canonical_nodes` and `block_size` have no effect.")


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


serve(__name__, "naive", "py1br", "py1e", "py1s", "py2s")
