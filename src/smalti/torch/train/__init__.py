"""Training: a plain PyTorch loop with checkpoints, evaluation and launchers, on data that stream from a shard set.

`train(TrainConfig(...))` trains a classifier; `launch(function, ...)` runs a function of your own on the same ranks,
which `processes` and `spark` start. Start reading at `program`, then `loop` or `context`. Names are imported on first
use, so that `config` can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smalti.torch.train.checkpoint import CheckpointFolder, Loaded, Snapshot
    from smalti.torch.train.config import RunConfig, TrainConfig, TrainResult
    from smalti.torch.train.context import Checkpoint, Context
    from smalti.torch.train.events import EventTail
    from smalti.torch.train.models import build_model
    from smalti.torch.train.program import launch, train
    from smalti.torch.train.run_folder import read_sample_order

_HOMES = {
    "Checkpoint": "context",
    "CheckpointFolder": "checkpoint",
    "Context": "context",
    "EventTail": "events",
    "Loaded": "checkpoint",
    "RunConfig": "config",
    "Snapshot": "checkpoint",
    "TrainConfig": "config",
    "TrainResult": "config",
    "build_model": "models",
    "launch": "program",
    "read_sample_order": "run_folder",
    "train": "program",
}
__all__ = [
    "Checkpoint",
    "CheckpointFolder",
    "Context",
    "EventTail",
    "Loaded",
    "RunConfig",
    "Snapshot",
    "TrainConfig",
    "TrainResult",
    "build_model",
    "launch",
    "read_sample_order",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
