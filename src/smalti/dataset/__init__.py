"""Shard sets as datasets: samples by id, and epochs of batches in an elastic, resumable order.

`streaming` is the public class and the file to read first; `epoch_reader` does its work, `order` plans one rank's
part of an epoch, `resume` holds the place of the run and compares saved states, `lookahead` prefetches shards,
`skipping` replaces samples that cannot be read. Nothing here imports torch (`smalti.torch` makes a torch dataset of
it), and neither stores nor shards are opened here (`smalti.stream`).
"""

from smalti.dataset.order import DEFAULT_SEED, OrderOptions
from smalti.dataset.streaming import StreamingDataset, open_dataset

__all__ = ["DEFAULT_SEED", "OrderOptions", "StreamingDataset", "open_dataset"]
