"""Smalti for PyTorch: a torch dataset, the loader that counts what was consumed, and the trainer.

The only room, with `spark` and `compat`, that may import torch.
"""

from smalti.torch.dataset import LocalDataset, StreamingDataset
from smalti.torch.loader import StreamingDataLoader
from smalti.torch.ranks import gather_world

__all__ = ["LocalDataset", "StreamingDataLoader", "StreamingDataset", "gather_world"]
