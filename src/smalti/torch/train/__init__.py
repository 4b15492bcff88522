"""Training: a plain PyTorch loop with checkpoints, evaluation and launchers, on data that stream from a shard set.

`train(TrainConfig(...))` is the whole interface; the other names are for users who write a loop of their own. How ranks
are started is in `launch` and `spark`. Start reading at `config`, then `loop`. Names are imported on first use, so that
`config` can be read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smalti.torch.train.checkpoint import CheckpointFolder, Loaded, Snapshot
    from smalti.torch.train.config import TrainConfig, TrainResult
    from smalti.torch.train.evaluation import measure_saved_model
    from smalti.torch.train.events import EventTail
    from smalti.torch.train.launch import train
    from smalti.torch.train.models import build_model
    from smalti.torch.train.run_folder import read_sample_order

_HOMES = {
    "CheckpointFolder": "checkpoint",
    "EventTail": "events",
    "Loaded": "checkpoint",
    "Snapshot": "checkpoint",
    "TrainConfig": "config",
    "TrainResult": "config",
    "build_model": "models",
    "measure_saved_model": "evaluation",
    "read_sample_order": "run_folder",
    "train": "launch",
}
__all__ = [
    "CheckpointFolder",
    "EventTail",
    "Loaded",
    "Snapshot",
    "TrainConfig",
    "TrainResult",
    "build_model",
    "measure_saved_model",
    "read_sample_order",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
