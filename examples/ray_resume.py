"""Ray Train: stop in the middle of an epoch, and resume on another number of workers.

    python examples/ray_resume.py

A worker makes its own dataset and loader after Ray has started its process group: they divide the epoch over the
workers by themselves, so that `ray.train.torch.prepare_data_loader` is not used. The position of the loader is equal on
all workers, and one of them saves it in the checkpoint beside the model.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from smalti import MDSWriter, StreamingDataLoader, StreamingDataset


def train_worker(config: dict[str, Any]) -> None:
    """Train on one worker for one epoch, from the position of the checkpoint."""
    layer = torch.nn.Linear(1, 1)
    dataset = StreamingDataset(remote=config["url"], shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=4)

    checkpoint = ray.train.get_checkpoint() or config["checkpoint"]
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            layer.load_state_dict(torch.load(Path(folder, "model.pt"), weights_only=True))
            loader.load_state_dict(json.loads(Path(folder, "loader.json").read_text()))

    model = prepare_model(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step, batch in enumerate(loader, 1):
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(batch["id"].tolist())
        if step % config["save_every"] == 0:
            save(layer, loader, {"loss": loss.item(), "step": step})
        if step == config["max_steps"]:
            break
    rank = ray.train.get_context().get_world_rank()
    Path(config["folder"], f"{config['name']}-{rank}.json").write_text(json.dumps(seen))


def save(layer: torch.nn.Module, loader: StreamingDataLoader, metrics: dict[str, Any]) -> None:
    """Report figures, and on the first worker the checkpoint. On all workers."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(layer.state_dict(), Path(folder, "model.pt"))
            Path(folder, "loader.json").write_text(json.dumps(loader.state_dict()))
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


def run(
    folder: Path, name: str, *, num_workers: int, max_steps: int | None = None, checkpoint: Checkpoint | None = None
) -> Checkpoint | None:
    """Train on some workers, and return the newest checkpoint."""
    config = {"url": str(folder / "set"), "folder": str(folder), "name": name, "checkpoint": checkpoint}
    trainer = TorchTrainer(
        train_worker,
        train_loop_config=config | {"save_every": 3, "max_steps": max_steps},
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(
            name=name, storage_path=str(folder / "ray"), checkpoint_config=CheckpointConfig(num_to_keep=1)
        ),
    )
    result = trainer.fit()
    if result.error is not None:
        raise result.error
    return result.checkpoint


def write_set(url: str, count: int = 50) -> None:
    """Write a small set of points on a line."""
    columns = {"id": "int", "x": "ndarray:float32:1", "y": "ndarray:float32:1"}
    with MDSWriter(out=url, columns=columns, size_limit=600) as writer:
        for number in range(count):
            x = np.array([number / count], np.float32)
            writer.write({"id": number, "x": x, "y": 2 * x + 1})


def seen_by(folder: Path, name: str) -> list[list[list[int]]]:
    """Return the samples of each step, by worker."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"{name}-*.json"))]


def main() -> None:
    """Stop two workers after 3 of 7 steps, and resume on one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_set(str(folder / "set"))
        checkpoint = run(folder, "first", num_workers=2, max_steps=3)
        run(folder, "second", num_workers=1, checkpoint=checkpoint)
        first, second = seen_by(folder, "first"), seen_by(folder, "second")
        numbers = {number for worker in first + second for batch in worker for number in batch}
        print(f"2 x {len(first[0])} + {len(second[0])} steps, {len(numbers)} of 50 samples seen")  # noqa: T201


if __name__ == "__main__":
    main()
