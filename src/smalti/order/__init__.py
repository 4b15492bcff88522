"""Who reads which sample when: pure numpy, planned from shard sizes and never from samples.

No I/O, clock, threads, environment or global random state belongs here. `plan_epoch` gives the global order of one
epoch; `Division` says which of its positions one rank takes at one step. `smalti.order.mosaic` makes MosaicML
Streaming's own orders, for runs that were begun there.
"""

from smalti.order.division import TAILS, Division, StepBatch
from smalti.order.positions import GlobalOrder
from smalti.order.window import EpochPlan, default_block_size, default_canonical_nodes, plan_epoch

__all__ = [
    "TAILS",
    "Division",
    "EpochPlan",
    "GlobalOrder",
    "StepBatch",
    "default_block_size",
    "default_canonical_nodes",
    "plan_epoch",
]
