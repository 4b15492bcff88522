"""Lightning with a LightningDataModule: the position in the data is part of every checkpoint.

    python examples/lightning_datamodule.py

Lightning saves the `state_dict` of a data module in each checkpoint, also at the end of an epoch, and passes it to
`load_state_dict` before it asks for loaders. A run that resumes on another number of ranks, or with another batch size
in the middle of an epoch, also needs `KeepPlace` (lightning_resume.py), which counts Lightning's steps anew.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from smalti import MDSWriter, StreamingDataLoader, StreamingDataset


class Numbers(LightningDataModule):
    """Batches of a shard set, from the position of the checkpoint."""

    def __init__(self, url: str, batch_size: int = 4, num_workers: int = 0) -> None:
        super().__init__()
        self.url, self.batch_size, self.num_workers = url, batch_size, num_workers
        self.loader: StreamingDataLoader | None = None
        self._saved: dict[str, Any] = {}

    def train_dataloader(self) -> StreamingDataLoader:
        """Return the loader of this rank. It is made after the launch, and divides each epoch by itself."""
        dataset = StreamingDataset(remote=self.url, shuffle=True, batch_size=self.batch_size)
        self.loader = StreamingDataLoader(dataset, self.batch_size, num_workers=self.num_workers)
        if self._saved:
            self.loader.load_state_dict(self._saved)
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch; equal on all ranks."""
        return {} if self.loader is None else self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the position for the loader, which Lightning asks for later."""
        self._saved = state_dict


class Line(LightningModule):
    """Fits y = 2x + 1, and records the samples of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        self.seen.append(batch["id"].tolist())
        return torch.nn.functional.mse_loss(self.layer(batch["x"]), batch["y"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def write_set(url: str, count: int = 50) -> None:
    """Write a small set of points on a line."""
    columns = {"id": "int", "x": "ndarray:float32:1", "y": "ndarray:float32:1"}
    with MDSWriter(out=url, columns=columns, size_limit=600) as writer:
        for number in range(count):
            x = np.array([number / count], np.float32)
            writer.write({"id": number, "x": x, "y": 2 * x + 1})


def train(
    url: str,
    folder: Path,
    *,
    checkpoint: str | None = None,
    max_steps: int = -1,
    max_epochs: int = 1,
    save_every: int | None = 3,
    num_workers: int = 0,
) -> tuple[list[list[int]], str]:
    """Train from a checkpoint; return the samples of each step, and the path of the newest checkpoint.

    `save_every` is a number of steps; None saves at the end of each epoch.
    """
    line = Line()
    keeper = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=save_every)
    trainer = Trainer(
        max_steps=max_steps,
        max_epochs=max_epochs,
        accelerator="cpu",
        callbacks=[keeper],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(line, datamodule=Numbers(url, num_workers=num_workers), ckpt_path=checkpoint, weights_only=True)
    return line.seen, str(keeper.best_model_path)


def main() -> None:
    """Stop after 6 of 13 steps, and resume."""
    with tempfile.TemporaryDirectory() as name:
        url, folder = f"{name}/set", Path(name, "checkpoints")
        write_set(url)
        first, checkpoint = train(url, folder, max_steps=6)
        second, _ = train(url, folder, checkpoint=checkpoint, num_workers=2)
        numbers = {number for batch in first + second for number in batch}
        print(f"{len(first)} + {len(second)} steps, {len(numbers)} of 50 samples seen")  # noqa: T201


if __name__ == "__main__":
    main()
