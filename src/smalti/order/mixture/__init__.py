"""Mixtures of streams in the `window` order, version 1: planned from shards and weights, never from samples.

`ChangingMixture` returns the epochs of a run, whose weights may change. An epoch is a `MixturePlan` of `planning`, the
file to read first, or several of them; `smalti.order.Division` divides it as it does an `EpochPlan`.
"""

from smalti.order.mixture.batches import portions_of
from smalti.order.mixture.changes import ChangingMixture
from smalti.order.mixture.planning import (
    BATCHINGS,
    SAMPLINGS,
    MixturePlan,
    StreamWeight,
    are_relative,
    samples_taken,
)

MIXTURE_VERSION = 1
"""Version of what an epoch takes of each stream, and of its batches. The order of samples is versioned as `window`."""

__all__ = [
    "BATCHINGS",
    "MIXTURE_VERSION",
    "SAMPLINGS",
    "ChangingMixture",
    "MixturePlan",
    "StreamWeight",
    "are_relative",
    "portions_of",
    "samples_taken",
]
