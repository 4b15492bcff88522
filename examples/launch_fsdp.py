"""A model sharded over the ranks (FSDP2) under `launch`, with sharded checkpoints (torch.distributed.checkpoint).

    torchrun --nproc-per-node 2 examples/launch_fsdp.py DATA RUN_DIR

DATA is a set of images with labels and a split `train`: see launch_pytorch.py.

Each rank writes its shards of model and optimizer; together they are one checkpoint of the context's, with the loader's
cursor. It is loaded by any number of ranks. Load checkpoints of your own runs only: `.metadata` is a pickle.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from smalti import DecodeImages
from smalti.torch.train import Context, launch

CONFIG = {"num_classes": 5, "size": 64, "epochs": 3, "batch_size": 32, "learning_rate": 1e-3, "save_every": 50}


def build_model(size: int, num_classes: int) -> torch.nn.Sequential:
    """Return a classifier of images, of layers that are sharded one by one."""
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(3 * size * size, 64),
        torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.ReLU()),
        torch.nn.Linear(64, num_classes),
    )


def shard(model: torch.nn.Sequential, context: Context) -> None:
    """Shard a model over all ranks; a single rank holds it whole."""
    if context.world.num_ranks == 1:
        return
    mesh = init_device_mesh(context.device.type, (context.world.num_ranks,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def save(context: Context, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save a checkpoint, of each rank its own shards. Collective."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
        context.save(step, files=folder)


def load(files: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a checkpoint, on each rank its own shards, whatever number of ranks saved it. Collective."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=files)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def train(context: Context) -> dict[str, Any] | None:
    """Train the sharded model."""
    config = context.config
    model = build_model(config["size"], config["num_classes"]).to(context.device)
    shard(model, context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
    images = DecodeImages(size=config["size"], layout="chw")
    loader = context.dataloader("train", batch_size=config["batch_size"], transform=images)
    step = 0
    checkpoint = context.latest()
    if checkpoint is not None and checkpoint.files is not None:
        step = checkpoint.step
        load(checkpoint.files, model, optimizer)
    while context.epoch(loader) < config["epochs"]:
        for batch in loader:
            pixels = batch["image"].to(context.device).float() / 255
            loss = torch.nn.functional.cross_entropy(model(pixels), batch["label"].to(context.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            context.report({"loss": loss}, step=step)
            stop = context.should_stop()
            if stop or step % config["save_every"] == 0:
                save(context, step, model, optimizer)
            if stop:
                return None
    save(context, step, model, optimizer)
    return {"steps": step}


if __name__ == "__main__":
    print(launch(train, CONFIG, data=sys.argv[1], run_dir=sys.argv[2]))  # noqa: T201
