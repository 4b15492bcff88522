"""Smalti for PyTorch: datasets and a loader that counts what was consumed; the trainer is in `train`.

Besides `spark` and `compat`, this is the only package that may import torch. The order of samples, and reading them, is
in `smalti.dataset`, which this package adapts to torch's classes and to loader workers, which are threads or processes.
Start reading at `loader`. Names are imported on first use, so that `smalti.torch.train.config` can be read without
torch.
"""

from typing import TYPE_CHECKING

from smalti.extras import lazy_names

if TYPE_CHECKING:
    from smalti.torch.dataset import LocalDataset, StreamingDataset
    from smalti.torch.loader import StreamingDataLoader
    from smalti.torch.ranks import gather_world

_HOMES = {
    "LocalDataset": "dataset",
    "StreamingDataLoader": "loader",
    "StreamingDataset": "dataset",
    "gather_world": "ranks",
}
__all__ = ["LocalDataset", "StreamingDataLoader", "StreamingDataset", "gather_world"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
