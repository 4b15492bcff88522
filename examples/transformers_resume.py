"""Hugging Face's Trainer: stop in the middle of an epoch, and resume from one of its checkpoints.

    python examples/transformers_resume.py
    torchrun --nproc-per-node 2 my_script.py

`StreamingTrainer` reads from a StreamingDataLoader, which divides its batches over the ranks by itself and resumes
without reading what was read before. `KeepPosition` writes its position into every checkpoint of the Trainer. With the
launchers of Smalti, launch_transformers.py does the same inside checkpoints of `launch`.

One process may also give a dataset to a plain Trainer, `Trainer(train_dataset=StreamingDataset(remote=..., batch_size=
n), args=TrainingArguments(per_device_train_batch_size=n, ...))`: on resume, the Trainer reads the epoch's first samples
once more and drops them.
"""
# ruff: noqa: ARG002 - the arguments of the Trainer's callbacks

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from smalti import MDSWriter, StreamingDataLoader, StreamingDataset

FILE = "smalti_loader.json"


class Line(torch.nn.Module):
    """Fits y = 2x + 1, and records the samples of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, id: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch, whose columns are the arguments."""
        self.seen.append(id.tolist())
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), y)}


class StreamingTrainer(Trainer):
    """A Trainer that reads from a StreamingDataLoader."""

    def __init__(self, loader: StreamingDataLoader, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._loader = loader
        self.add_callback(KeepPosition(loader))

    def get_train_dataloader(self) -> StreamingDataLoader:
        """Return the loader unprepared: it divides its batches over the ranks already."""
        return self._loader

    def train(self, resume_from_checkpoint: str | None = None, **options: Any) -> Any:
        """Train from the position of the checkpoint, which is its path."""
        if resume_from_checkpoint is not None:
            self._loader.load_state_dict(json.loads(Path(resume_from_checkpoint, FILE).read_text()))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **options)


class KeepPosition(TrainerCallback):
    """Writes the position of the loader into every checkpoint; it is equal on all ranks."""

    def __init__(self, loader: StreamingDataLoader) -> None:
        self._loader = loader

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        """Add the file to the folder that the Trainer has just written."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (folder / FILE).write_text(json.dumps(self._loader.state_dict()))


class StopAfter(TrainerCallback):
    """Ends the run after some steps, as a lost machine would."""

    def __init__(self, step: int | None) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop where it was requested."""
        control.should_training_stop |= state.global_step == self._step


def write_set(url: str, count: int = 50) -> None:
    """Write a small set of points on a line."""
    columns = {"id": "int", "x": "ndarray:float32:1", "y": "ndarray:float32:1"}
    with MDSWriter(out=url, columns=columns, size_limit=600) as writer:
        for number in range(count):
            x = np.array([number / count], np.float32)
            writer.write({"id": number, "x": x, "y": 2 * x + 1})


def train(
    url: str, folder: Path, *, checkpoint: str | None = None, stop_after: int | None = None, plain: bool = False
) -> list[list[int]]:
    """Train for three epochs, from a checkpoint if there is one; return the samples of each step."""
    dataset = StreamingDataset(remote=url, shuffle=True, batch_size=4)
    model = Line()
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=39,
        save_steps=3,
        remove_unused_columns=False,  # the batch has the columns of the set
        ignore_data_skip=not plain,  # the loader is at its position already
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    options: dict[str, Any] = {"model": model, "args": arguments, "callbacks": [StopAfter(stop_after)]}
    if plain:
        trainer = Trainer(train_dataset=dataset, **options)
    else:
        trainer = StreamingTrainer(StreamingDataLoader(dataset, 4), **options)
    trainer.train(resume_from_checkpoint=checkpoint)
    return model.seen


def main() -> None:
    """Stop after 18 of 39 steps, in the second epoch, and resume."""
    with tempfile.TemporaryDirectory() as name:
        url, folder = f"{name}/set", Path(name, "run")
        write_set(url)
        first = train(url, folder, stop_after=18)
        second = train(url, folder, checkpoint=str(folder / "checkpoint-18"))
        numbers = {number for batch in first[13:] + second[:8] for number in batch}
        print(f"{len(first)} + {len(second)} steps, {len(numbers)} of 50 samples in the second epoch")  # noqa: T201


if __name__ == "__main__":
    main()
