"""MosaicML Streaming's own orders, bit for bit, to continue runs that were begun with it.

`MosaicRun` (in `planning`, the file to read first) plans one epoch as a `MosaicPlan`, which
`smalti.order.Division` divides over ranks as MosaicML does. Its steps (`weigh_streams`, `get_sampling`,
`shuffled_ids`, and those of `partition`) can be compared with MosaicML's functions. Everything is pure: numpy arrays
in, numpy arrays out, no warnings, no logging, no global state.

All of it is O(N), and uses methods of numpy's `Generator` whose results numpy does not guarantee across versions. New
runs should use `smalti.order.plan_epoch`, which has neither limit.
"""

from smalti.compat.streaming.order.partition import PARTITIONS, WorldShape
from smalti.compat.streaming.order.planning import MosaicOptions, MosaicPlan, MosaicRun, default_mosaic_nodes
from smalti.compat.streaming.order.sampling import MosaicStream, get_sampling, weigh_streams
from smalti.compat.streaming.order.shuffles import SHUFFLES, shuffled_ids

__all__ = [
    "PARTITIONS",
    "SHUFFLES",
    "MosaicOptions",
    "MosaicPlan",
    "MosaicRun",
    "MosaicStream",
    "WorldShape",
    "default_mosaic_nodes",
    "get_sampling",
    "shuffled_ids",
    "weigh_streams",
]
