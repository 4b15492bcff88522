"""Mixtures of streams in the `window` order, version 1: planned from shards and weights, never from samples.

`ChangingMixture` returns the epochs of a run, whose weights may change. An epoch is a `MixturePlan` of `planning`, the
file to read first, or several of them; `smalti.order.Division` divides it as it does an `EpochPlan`.
"""
