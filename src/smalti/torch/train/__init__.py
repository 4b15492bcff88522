"""Training: a plain PyTorch loop with checkpoints, evaluation and launchers, on data that stream from a shard set.

`train(TrainConfig(...))` trains a model for a `Task`; `launch(function, ...)` runs a function of your own on the same
ranks, which `launchers` start. Start reading at `launchers.start`, then `trainer.loop` or `context`. Names are
imported on first use, so that `config` can be read without torch.
"""

from typing import TYPE_CHECKING

from smalti.extras import lazy_names

if TYPE_CHECKING:
    from smalti.torch.train.config import RunConfig, TrainConfig
    from smalti.torch.train.config_file import read_config
    from smalti.torch.train.context import Checkpoint, Context
    from smalti.torch.train.launchers.start import launch, train
    from smalti.torch.train.predictor import Evaluation, Predictor, evaluate_model
    from smalti.torch.train.result import TrainResult
    from smalti.torch.train.run.checkpoint import CheckpointFolder, Loaded
    from smalti.torch.train.run.events import EventTail
    from smalti.torch.train.run.files import Snapshot
    from smalti.torch.train.run.store import read_sample_order
    from smalti.torch.train.tasks.images import build_model
    from smalti.torch.train.trainer.task import Batch, Outcome, Task

_HOMES = {
    "Batch": "trainer.task",
    "Checkpoint": "context",
    "CheckpointFolder": "run.checkpoint",
    "Context": "context",
    "Evaluation": "predictor",
    "EventTail": "run.events",
    "Loaded": "run.checkpoint",
    "Outcome": "trainer.task",
    "Predictor": "predictor",
    "RunConfig": "config",
    "Snapshot": "run.files",
    "Task": "trainer.task",
    "TrainConfig": "config",
    "TrainResult": "result",
    "build_model": "tasks.images",
    "evaluate_model": "predictor",
    "launch": "launchers.start",
    "read_config": "config_file",
    "read_sample_order": "run.store",
    "train": "launchers.start",
}
__all__ = [
    "Batch",
    "Checkpoint",
    "CheckpointFolder",
    "Context",
    "Evaluation",
    "EventTail",
    "Loaded",
    "Outcome",
    "Predictor",
    "RunConfig",
    "Snapshot",
    "Task",
    "TrainConfig",
    "TrainResult",
    "build_model",
    "evaluate_model",
    "launch",
    "read_config",
    "read_sample_order",
    "train",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, extra="train")
