"""Hugging Face Accelerate: stop in the middle of an epoch, and resume there on another number of processes.

    python examples/accelerate_resume.py
    accelerate launch --cpu --num_processes 2 my_script.py

`prepare` takes the model, the optimizer and the scheduler, not the loader, which divides its batches over the ranks
already. With `register_for_checkpointing(loader)`, `save_state` and `load_state` include its position.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device

from smalti import MDSWriter, StreamingDataLoader, StreamingDataset


@dataclass(frozen=True)
class Life:
    """One start of the run: one epoch, or what is left of it, or `max_steps` of that."""

    folder: Path
    name: str
    max_steps: int | None = None
    checkpoint: str | None = None
    num_workers: int = 0
    worker_kind: str = "auto"
    batch_size: int = 4


def write_set(folder: Path, count: int = 50) -> None:
    """Write a small set of points on a line."""
    columns = {"id": "int", "x": "ndarray:float32:1", "y": "ndarray:float32:1"}
    with MDSWriter(out=str(folder / "set"), columns=columns, size_limit=600) as writer:
        for number in range(count):
            x = np.array([number / count], np.float32)
            writer.write({"id": number, "x": x, "y": 2 * x + 1})


def run(life: Life) -> str:
    """Train for one life, and return the folder of its checkpoint."""
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    dataset = StreamingDataset(remote=str(life.folder / "set"), shuffle=True)
    loader = StreamingDataLoader(dataset, life.batch_size, num_workers=life.num_workers, worker_kind=life.worker_kind)
    accelerator.register_for_checkpointing(loader)
    if life.checkpoint is not None:
        accelerator.load_state(life.checkpoint)

    seen: list[list[int]] = []
    for batch in loader:
        placed = send_to_device(batch, accelerator.device)  # `prepare` would do this for a loader of its own
        loss = torch.nn.functional.mse_loss(model(placed["x"]), placed["y"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(batch["id"].tolist())
        if len(seen) == life.max_steps:
            break

    checkpoint = life.folder / f"{life.name}-checkpoint"
    accelerator.save_state(str(checkpoint))
    (life.folder / f"{life.name}-{accelerator.process_index}.json").write_text(json.dumps(seen))
    accelerator.end_training()
    return str(checkpoint)


def seen_by(folder: Path, name: str, rank: int = 0) -> list[list[int]]:
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
