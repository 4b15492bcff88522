"""Composer: stop in the middle of an epoch, and resume from its own checkpoint.

    python examples/composer_resume.py

The dataset is that of `smalti.compat.streaming`, which has MosaicML Streaming's interface and order. Composer saves
`dataset.state_dict(samples_of_the_epoch, True)` of the dataset in a plain torch DataLoader, and passes it to
`dataset.load_state_dict`; `smalti.StreamingDataset` has both methods, too. Give dataset and loader the same batch size.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from composer import ComposerModel, Trainer
from torch.utils.data import DataLoader

from smalti import MDSWriter
from smalti.compat.streaming import StreamingDataset


class Line(ComposerModel):
    """Fits y = 2x + 1, and records the samples of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the outputs of a batch."""
        self.seen.append(batch["id"].tolist())
        outputs: torch.Tensor = self.layer(batch["x"])
        return outputs

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        return torch.nn.functional.mse_loss(outputs, batch["y"])


def write_set(url: str, count: int = 50) -> None:
    """Write a small set of points on a line."""
    columns = {"id": "int", "x": "ndarray:float32:1", "y": "ndarray:float32:1"}
    with MDSWriter(out=url, columns=columns, size_limit=600) as writer:
        for number in range(count):
            x = np.array([number / count], np.float32)
            writer.write({"id": number, "x": x, "y": 2 * x + 1})


def train(
    url: str, folder: Path, *, checkpoint: str | None = None, duration: str = "3ep", num_workers: int = 0
) -> list[list[int]]:
    """Train from a checkpoint, if there is one, until the duration is reached; return the samples of each step."""
    local = f"{folder}-cache"
    dataset = StreamingDataset(remote=url, local=local, shuffle=True, batch_size=4, num_canonical_nodes=1)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=4, num_workers=num_workers)
    model = Line()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        train_dataloader=loader,
        max_duration=duration,
        save_folder=str(folder),
        save_filename="step-{batch}.pt",
        save_interval="3ba",
        save_overwrite=True,
        load_path=checkpoint,
        device="cpu",
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return model.seen


def main() -> None:
    """Stop after 18 of 39 steps, in the second epoch, and resume."""
    with tempfile.TemporaryDirectory() as name:
        url, folder = f"{name}/set", Path(name, "run")
        write_set(url)
        first = train(url, folder, duration="18ba")
        second = train(url, folder, checkpoint=str(folder / "step-18.pt"), num_workers=2)
        numbers = {number for batch in first[13:] + second[:8] for number in batch}
        print(f"{len(first)} + {len(second)} steps, {len(numbers)} of 50 samples in the second epoch")  # noqa: T201


if __name__ == "__main__":
    main()
