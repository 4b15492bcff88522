"""The batching method `device_per_stream`: global batches of one stream on each rank."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.compat.streaming.base.engine.planning import work_of
from smalti.compat.streaming.base.world import World


def generate_work_device_per_stream_batching(
    dataset: Any, world: World, epoch: int, sample_in_epoch: int
) -> NDArray[np.int64]:
    """Return the sample ids of an epoch; arguments, result and errors are those of `generate_work`."""
    work = work_of(dataset, world, "device_per_stream")
    work.warn(epoch, sample_in_epoch)
    return work.plan(epoch, sample_in_epoch).all_ids()
