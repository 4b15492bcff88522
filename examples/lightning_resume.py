"""Lightning: stop in the middle of an epoch, and resume there, each sample once.

    python examples/lightning_resume.py

StreamingDataLoader has `state_dict` and `load_state_dict`, so Lightning saves its position in every checkpoint and
resumes in the middle of an epoch with nothing to call. `KeepPlace` adds what Lightning leaves out: checkpoints made at
the end of an epoch, and another number of ranks or batch size in the middle of one. The loader divides the epoch over
the ranks by itself; `use_distributed_sampler` finds no sampler to replace.
"""
# ruff: noqa: ARG002 - the arguments of Lightning's hooks

import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from smalti import MDSWriter, StreamingDataLoader, StreamingDataset


@dataclass(frozen=True)
class Life:
    """One start of the run: it ends when the epochs are done, or earlier after `max_steps`."""

    folder: Path
    name: str
    max_steps: int = -1
    max_epochs: int = 1
    checkpoint: str | None = None
    num_workers: int = 0
    worker_kind: str = "auto"
    devices: int = 1
    strategy: str = "auto"
    batch_size: int = 4
    checkpoint_every: int | None = 3
    """Steps between checkpoints; None for one at every epoch's end."""
    keep_place: bool = True


class Line(LightningModule):
    """Fits y = 2x + 1, and records the samples of each step."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self.life, self.seen = life, list[list[int]]()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch, which is on the module's device already."""
        self.seen.append(batch["id"].tolist())
        return torch.nn.functional.mse_loss(self.layer(batch["x"]), batch["y"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> StreamingDataLoader:
        """Return the loader of this rank. It is made after the launch, so that every rank makes its own."""
        life = self.life
        dataset = StreamingDataset(remote=str(life.folder / "set"), shuffle=True, batch_size=life.batch_size)
        return StreamingDataLoader(dataset, life.batch_size, num_workers=life.num_workers, worker_kind=life.worker_kind)

    def on_train_end(self) -> None:
        """Write the samples of this rank to a file."""
        file = self.life.folder / f"{self.life.name}-{self.global_rank}.json"
        file.write_text(json.dumps(self.seen))


class KeepPlace(Callback):
    """Saves the position of the loader in every checkpoint, and resumes there.

    Lightning restores the state of a loader only in the middle of an epoch, and ends an epoch at step `len(loader)`:
    its counters are set to steps of this world.
    """

    _state: dict[str, Any] | None = None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the state, which is equal on all ranks; Lightning writes the file of the first one."""
        if isinstance(trainer.train_dataloader, StreamingDataLoader):
            checkpoint["smalti_loader"] = trainer.train_dataloader.state_dict()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the state until there is a loader."""
        self._state = checkpoint.get("smalti_loader")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the state before the first batch is requested."""
        loader, state = trainer.train_dataloader, self._state
        if state is None or not isinstance(loader, StreamingDataLoader):
            return
        self._state = None
        loader.load_state_dict(state)
        progress = trainer.fit_loop.epoch_loop.batch_progress.current
        taken: int = getattr(progress, "processed", 0)
        if not trainer.fit_loop.restarting or not taken:
            return
        samples_left = state["smalti"]["epoch_size"] - state["sample_in_epoch"]
        left = math.ceil(samples_left / ((loader.batch_size or 1) * trainer.world_size))
        done = len(loader) - left if state["sample_in_epoch"] else len(loader)
        for name in ("ready", "started", "processed", "completed"):
            setattr(progress, name, getattr(progress, name) + done - taken)


def write_set(folder: Path, count: int = 50) -> None:
    """Write a small set of points on a line."""
    columns = {"id": "int", "x": "ndarray:float32:1", "y": "ndarray:float32:1"}
    with MDSWriter(out=str(folder / "set"), columns=columns, size_limit=600) as writer:
        for number in range(count):
            x = np.array([number / count], np.float32)
            writer.write({"id": number, "x": x, "y": 2 * x + 1})


def run(life: Life) -> str:
    """Train for one life, and return the path of its newest checkpoint."""
    keeper = ModelCheckpoint(
        dirpath=life.folder / life.name, filename="{step}", every_n_train_steps=life.checkpoint_every, save_top_k=-1
    )
    callbacks: list[Callback] = [keeper, KeepPlace()] if life.keep_place else [keeper]
    trainer = Trainer(
        max_steps=life.max_steps,
        max_epochs=life.max_epochs,
        accelerator="cpu",
        devices=life.devices,
        strategy=life.strategy,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(life), ckpt_path=life.checkpoint)
    return str(keeper.best_model_path)


def seen_by(folder: Path, name: str, rank: int = 0) -> list[Any]:
    """Return the samples of each step of a rank in a life."""
    return list(json.loads((folder / f"{name}-{rank}.json").read_text()))


def main() -> None:
    """Stop after 6 of 13 steps, and resume."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_set(folder)
        checkpoint = run(Life(folder, "first", max_steps=6))
        run(Life(folder, "second", checkpoint=checkpoint, num_workers=2))
        first, second = seen_by(folder, "first"), seen_by(folder, "second")
        numbers = {number for batch in first + second for number in batch}
        print(f"{len(first)} + {len(second)} steps, {len(numbers)} of 50 samples seen")  # noqa: T201


if __name__ == "__main__":
    main()
