"""The order of an epoch and its division over ranks: pure numpy, planned from shard sizes and never from samples.

No I/O, clock, threads, environment or global random state belongs here. Read `window` first: `plan_epoch` returns the
global order of one epoch. `Division` returns the positions of it that one rank takes at each step. `mixture` plans
orders over several streams. MosaicML Streaming's own orders, for runs that were begun with it, are in `smalti.compat`.
"""

from smalti.order.division import TAILS, Division, StepBatch
from smalti.order.window import (
    EpochPlan,
    GlobalOrder,
    default_block_size,
    default_canonical_nodes,
    fitted_canonical_nodes,
    hosts_of_run,
    plan_epoch,
)

__all__ = [
    "TAILS",
    "Division",
    "EpochPlan",
    "GlobalOrder",
    "StepBatch",
    "default_block_size",
    "default_canonical_nodes",
    "fitted_canonical_nodes",
    "hosts_of_run",
    "plan_epoch",
]
