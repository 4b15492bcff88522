"""The training loop of a notebook under `launch`: it resumes in the middle of an epoch, on any number of processes.

    python examples/launch_pytorch.py DATA RUN_DIR
    torchrun --nproc-per-node 2 examples/launch_pytorch.py DATA RUN_DIR

DATA is a set of images with labels and a split `train`, as `smalti convert PHOTOS DATA --split-by split` makes it of
folders of photos. `num_classes` is the number of these folders.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from smalti import DecodeImages
from smalti.torch.train import Context, launch

CONFIG = {"num_classes": 5, "size": 64, "epochs": 3, "batch_size": 32, "learning_rate": 1e-3, "save_every": 50}


def train_one_epoch(
    model: torch.nn.Module,
    loader: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    on_step: Callable[[torch.Tensor], bool],
) -> bool:
    """Train on the batches of a loader, as in a notebook; return False if `on_step` returned False after a step."""
    model.train()
    for batch in loader:
        images, labels = batch["image"].to(device).float() / 255, batch["label"].to(device)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not on_step(loss):
            return False
    return True


def build_model(num_classes: int) -> torch.nn.Module:
    """Return a small classifier of images."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(), torch.nn.Linear(16 * 16, num_classes),
    )  # fmt: skip


def train(context: Context) -> dict[str, Any] | None:
    """Train with the loop above; this is all that `launch` needs."""
    config = context.config
    model = build_model(config["num_classes"]).to(context.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
    images = DecodeImages(size=config["size"], layout="chw")
    loader = context.dataloader("train", batch_size=config["batch_size"], transform=images)
    step = 0
    checkpoint = context.latest()
    if checkpoint is not None:
        step = checkpoint.step
        model.load_state_dict(checkpoint.state["model"])
        optimizer.load_state_dict(checkpoint.state["optimizer"])
    parallel = DistributedDataParallel(model) if context.world.num_ranks > 1 else model

    def save() -> None:
        context.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    def on_step(loss: torch.Tensor) -> bool:
        nonlocal step
        step += 1
        context.report({"loss": loss}, step=step)
        stop = context.should_stop()
        if stop or step % config["save_every"] == 0:
            save()
        return not stop

    while context.epoch(loader) < config["epochs"]:
        if not train_one_epoch(parallel, loader, optimizer, context.device, on_step):
            return None
    save()
    return {"steps": step}


if __name__ == "__main__":
    print(launch(train, CONFIG, data=sys.argv[1], run_dir=sys.argv[2]))  # noqa: T201
