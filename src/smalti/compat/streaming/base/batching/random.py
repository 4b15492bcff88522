"""The batching method `random`: global batches of all streams mixed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.engine.planning import work_of
from smalti.compat.streaming.base.world import World


def generate_work_random_batching(dataset: Any, world: World, epoch: int, sample_in_epoch: int) -> NDArray[np.int64]:
    """Return the sample ids of an epoch; arguments, result and errors are those of `generate_work`."""
    work = work_of(dataset, world, "random")
    work.warn(epoch, sample_in_epoch)
    return work.plan(epoch, sample_in_epoch).all_ids()
