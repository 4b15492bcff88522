"""Mixtures of streams in the `window` order, version 1: planned from shards and weights, never from samples.

`plan_mixture` (in `planning`, the file to read first) returns one epoch as a `MixturePlan`, which
`smalti.order.Division` divides as it does an `EpochPlan`; `ChangingMixture` returns the epochs of a run whose weights
change.
"""

from smalti.order.mixture.batches import portions_of
from smalti.order.mixture.changes import ChangingMixture, Weighting
from smalti.order.mixture.planning import (
    BATCHINGS,
    SAMPLINGS,
    MixtureOptions,
    MixturePlan,
    StreamShare,
    StreamWeight,
    are_relative,
    check_not_empty,
    plan_mixture,
    samples_taken,
)

MIXTURE_VERSION = 1
"""Version of what an epoch takes of each stream, and of its batches. The order of samples is versioned as `window`."""

__all__ = [
    "BATCHINGS",
    "MIXTURE_VERSION",
    "SAMPLINGS",
    "ChangingMixture",
    "MixtureOptions",
    "MixturePlan",
    "StreamShare",
    "StreamWeight",
    "Weighting",
    "are_relative",
    "check_not_empty",
    "plan_mixture",
    "portions_of",
    "samples_taken",
]
