"""The end of a run, laid down in its folder: the model and the result file. One process does this, under the lock."""

import shutil
import uuid
from pathlib import Path

from torch import nn

from smalti.errors import CheckpointError, TrainingError
from smalti.torch.train.checkpoint_files import read_json, replace_json, sync_folder
from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.models import save_model

RESULT_FILE = "result.json"
MODEL_FOLDER = "model"


def write_result(config: TrainConfig, model: nn.Module, result: TrainResult) -> None:
    """Writes `model/` whole, then `result.json`; an earlier model stays until the new one is complete.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    run_dir = Path(config.run_dir)
    token = uuid.uuid4().hex[:8]
    fresh, old, target = run_dir / f".model-{token}", run_dir / f".replaced-model-{token}", run_dir / MODEL_FOLDER
    try:
        for leftover in (*run_dir.glob(".model-*"), *run_dir.glob(".replaced-model-*")):
            shutil.rmtree(leftover, ignore_errors=True)
        save_model(model, config, fresh)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        sync_folder(run_dir)
        shutil.rmtree(old, ignore_errors=True)
        replace_json(run_dir / RESULT_FILE, result.to_json())
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise CheckpointError(
            f"the trained model cannot be written to {target}: {error}. The checkpoint {result.checkpoint} "
            "holds it: make room and start the run again.",
            path=str(target),
        ) from error


def read_result(run_dir: Path) -> TrainResult:
    """The result that a finished run left.

    Raises:
        TrainingError: there is none, or it cannot be read.
    """
    path = run_dir / RESULT_FILE
    try:
        return TrainResult.from_json(read_json(path))
    except (CheckpointError, KeyError, TypeError) as error:
        raise TrainingError(
            f"the training processes ended well, but {path} holds no result: {error}. Do all processes see "
            "the same `run_dir`?",
            path=str(path),
        ) from error
