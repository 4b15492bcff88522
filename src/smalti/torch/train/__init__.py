"""Training: a plain PyTorch loop with checkpoints, evaluation and launchers, on data that stream from a shard set.

`train(TrainConfig(...))` is the whole interface; the rest is here for those who write a loop of their own.
"""

from smalti.torch.train.checkpoint import CheckpointFolder, Loaded, Snapshot
from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.events import EventTail
from smalti.torch.train.launch.launch import train
from smalti.torch.train.ledger import read_sample_order
from smalti.torch.train.models import build_model

__all__ = [
    "CheckpointFolder",
    "EventTail",
    "Loaded",
    "Snapshot",
    "TrainConfig",
    "TrainResult",
    "build_model",
    "read_sample_order",
    "train",
]
