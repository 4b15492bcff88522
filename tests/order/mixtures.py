"""Runs over several streams, and their weights as cursors hold them, for the tests of orders."""

from smalti.cursor import Mixture, Weights
from smalti.order.mixture.planning import ChangingMixture, StreamWeight


def weights_at(epoch, samples, weights, epoch_size=None):
    """Return the weights from a place of a run on."""
    return Weights(epoch, samples, tuple(weight.saved for weight in weights), epoch_size)


def changing(streams, *history, seed=9176, **options):
    """Return the orders of a run over streams, given by their shard sizes."""
    methods = {"sampling_method": "balanced", "sampling_granularity": 1, "batching_method": "random"}
    batches = {"global_batch": None, "local_batch": None}
    mixture = Mixture(streams=(), history=history, **{**methods, **batches, **options})
    return ChangingMixture(streams, mixture, seed=seed)


def constant(streams, weights=None, **options):
    """Return the orders of a run whose weights never change; without any, it takes each sample once."""
    return changing(streams, weights_at(0, 0, weights or [StreamWeight()] * len(streams)), **options)
