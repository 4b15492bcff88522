"""`get_sampling`: the number of samples that an epoch takes of each shard of a stream."""

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.order import sample_counts


def get_sampling(
    samples_per_shard: NDArray[np.int64],
    choose: int,
    granularity: int,
    seed: int,
    epoch: int,
    use_epoch: bool,  # noqa: FBT001 - MosaicML's signature
) -> NDArray[np.int64]:
    """Return the number of samples to take of each shard, `choose` in all; int64, shape (shards,).

    Args:
        samples_per_shard: Samples in each shard of one stream.
        choose: Samples to take of all of them together, from 0.
        granularity: Samples taken at a time from the same shard, from 1.
        seed: Base seed of the run, from 0.
        epoch: Epoch, from 0.
        use_epoch: Whether each epoch draws anew.

    Raises:
        ValueError: an argument is out of range, or samples are to be taken of a stream that has none.
    """
    return sample_counts(
        samples_per_shard, choose, granularity=granularity, seed=seed, epoch=epoch, use_epoch=use_epoch
    )
