"""Hugging Face's Trainer under `launch`: on our ranks, with our loader, and its checkpoints inside ours.

    python examples/launch_transformers.py DATA RUN_DIR

DATA is a set of images with labels and a split `train`: see launch_pytorch.py.

The Trainer would divide and skip samples by itself: it gets the loader as it is, and `ignore_data_skip`.
"""
# ruff: noqa: ARG002 - the arguments of the Trainer's callbacks

import sys
import tempfile
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

from smalti import DecodeImages
from smalti.torch import StreamingDataLoader
from smalti.torch.train import Context, launch

CONFIG = {"num_classes": 5, "size": 64, "epochs": 3, "batch_size": 32, "learning_rate": 1e-3, "save_every": 50}


class Images:
    """A transform of batches to the columns that the model takes."""

    on_batches = True

    def __init__(self, size: int) -> None:
        self._decode = DecodeImages(size=size, layout="chw")

    def __call__(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return pixels in [0, 1], and labels."""
        columns = self._decode(columns)
        return {"pixel_values": columns["image"].astype("float32") / 255, "labels": columns["label"]}


class StreamingTrainer(Trainer):
    """A Trainer that reads from a loader of the context."""

    def __init__(self, loader: StreamingDataLoader, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._loader = loader

    def get_train_dataloader(self) -> StreamingDataLoader:
        """Return the loader unprepared: it divides its batches over the ranks already."""
        return self._loader


class SaveInContext(TrainerCallback):
    """Saves the Trainer's checkpoints as files of the context's, which have the loader's cursor; stops when asked."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask whether to stop. On all ranks."""
        if self._context.should_stop():
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Report the figures of the Trainer."""
        self._context.report(logs or {}, step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save what the Trainer has just written, on every rank its own files."""
        self._context.save(state.global_step, files=Path(args.output_dir, f"checkpoint-{state.global_step}"))


def train(context: Context) -> dict[str, Any] | None:
    """Train with the Trainer."""
    config, num_ranks = context.config, context.world.num_ranks
    size = config["size"]
    loader = context.dataloader("train", batch_size=config["batch_size"], transform=Images(size))
    model = ViTForImageClassification(
        ViTConfig(
            image_size=size, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, num_labels=config["num_classes"],
        )
    )  # fmt: skip
    checkpoint = context.latest()
    with tempfile.TemporaryDirectory() as folder:
        trainer = StreamingTrainer(
            loader,
            model=model,
            args=TrainingArguments(
                folder,
                per_device_train_batch_size=config["batch_size"] // num_ranks,
                num_train_epochs=config["epochs"],
                learning_rate=config["learning_rate"],
                save_steps=config["save_every"],
                save_total_limit=1,
                logging_steps=1,
                ignore_data_skip=True,  # the loader begins where the checkpoint was saved
                use_cpu=context.device.type == "cpu",
                report_to="none",
                disable_tqdm=True,
            ),
            callbacks=[SaveInContext(context)],
        )
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint.files))
    return None if context.should_stop() else {"steps": trainer.state.global_step}


if __name__ == "__main__":
    print(launch(train, CONFIG, data=sys.argv[1], run_dir=sys.argv[2]))  # noqa: T201
