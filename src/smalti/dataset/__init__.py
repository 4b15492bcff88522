"""Shard sets as datasets: samples by id, and epochs of batches in an elastic, resumable order. No torch in here."""

from smalti.dataset.opening import open_dataset
from smalti.dataset.order import DEFAULT_SEED, Pass
from smalti.dataset.streaming import StreamingDataset

__all__ = ["DEFAULT_SEED", "Pass", "StreamingDataset", "open_dataset"]
