"""Lightning under `launch`: its Trainer on our ranks, with our loader, and its checkpoints inside ours.

    python examples/launch_lightning.py DATA RUN_DIR

DATA is a set of images with labels and a split `train`: see launch_pytorch.py.

The loader is made by the context and has its place already, and a step has the same samples on any number of ranks: so
Lightning's count of steps stays right, and `KeepPlace` (lightning_resume.py) is not needed.
"""
# ruff: noqa: ARG002 - the arguments of Lightning's hooks

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.environments import ClusterEnvironment

from smalti import DecodeImages
from smalti.torch.train import Context, launch

CONFIG = {"num_classes": 5, "size": 64, "epochs": 3, "batch_size": 32, "learning_rate": 1e-3, "save_every": 50}
FILE = "lightning.ckpt"


class Classifier(LightningModule):
    """A small classifier of images."""

    def __init__(self, num_classes: int, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4),
            torch.nn.Flatten(), torch.nn.Linear(16 * 16, num_classes),
        )  # fmt: skip

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch, which is on the module's device already."""
        return torch.nn.functional.cross_entropy(self.layers(batch["image"].float() / 255), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


class LaunchedRanks(ClusterEnvironment):
    """The ranks that `launch` has started; to Lightning, each is a node of its own with one device."""

    creates_processes_externally = True
    main_address = "127.0.0.1"  # unused, like the port: the process group exists
    main_port = 0

    def __init__(self, context: Context) -> None:
        self._world = context.world

    @staticmethod
    def detect() -> bool:
        """Return False: it is only used where it is passed."""
        return False

    def world_size(self) -> int:
        """Return the number of ranks."""
        return self._world.num_ranks

    def set_world_size(self, size: int) -> None:
        """Do nothing: the world is fixed."""

    def global_rank(self) -> int:
        """Return the number of this rank."""
        return self._world.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the world is fixed."""

    def local_rank(self) -> int:
        """Return 0: each node has one rank."""
        return 0

    def node_rank(self) -> int:
        """Return the number of this rank."""
        return self._world.rank


class SaveInContext(Callback):
    """Saves Lightning's checkpoint as a file of the context's, which has the loader's cursor, and stops when asked."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report, and save where it is due. On all ranks."""
        step = trainer.global_step
        self._context.report({"loss": outputs["loss"]}, step=step)
        stop = self._context.should_stop()
        if stop or step % self._context.config["save_every"] == 0:
            self.save(trainer)
        if stop:
            trainer.should_stop = True

    def save(self, trainer: Trainer) -> None:
        """Save a checkpoint; Lightning writes it on rank 0."""
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_checkpoint(Path(folder, FILE))
            self._context.save(trainer.global_step, files=folder)


def train(context: Context) -> dict[str, Any] | None:
    """Train with Lightning."""
    config, is_alone = context.config, context.world.num_ranks == 1
    images = DecodeImages(size=config["size"], layout="chw")
    loader = context.dataloader("train", batch_size=config["batch_size"], transform=images)
    keeper = SaveInContext(context)
    trainer = Trainer(
        max_epochs=config["epochs"],
        accelerator="gpu" if context.device.type == "cuda" else "cpu",
        devices=[context.device.index] if context.device.type == "cuda" else 1,
        num_nodes=context.world.num_ranks,
        strategy="auto" if is_alone else "ddp",
        plugins=[] if is_alone else [LaunchedRanks(context)],
        callbacks=[keeper],
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    checkpoint = context.latest()
    path = None if checkpoint is None or checkpoint.files is None else checkpoint.files / FILE
    module = Classifier(config["num_classes"], config["learning_rate"])
    trainer.fit(module, loader, ckpt_path=path, weights_only=True)
    if context.should_stop():
        return None
    keeper.save(trainer)
    return {"steps": trainer.global_step}


if __name__ == "__main__":
    print(launch(train, CONFIG, data=sys.argv[1], run_dir=sys.argv[2]))  # noqa: T201
