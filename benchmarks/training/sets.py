"""Training sets as the pipeline prepares them: JPEG squares of the model's size, with a class and two splits."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.photos import Photos
from benchmarks.task import Task

if TYPE_CHECKING:
    from smalti.torch.train import TrainConfig

SIDE, CLASSES = 96, 5
PHOTOS = 500
_HELD_OUT = 5  # each fifth sample
_QUALITY = 90


def training_set(task: Task) -> Path:
    """Write the set unless an earlier run has; return its folder."""
    from smalti.catalog import Draft, new_write_id, publish
    from smalti.format import Schema, ShardBuilder, ShardOptions
    from smalti.storage import open_store
    from smalti.writer import ShardUploader

    count = PHOTOS if task.workload == "photos" else task.samples  # so few at every scale
    folder = task.work / "sets" / f"training-{task.workload}-{count}"
    if folder.exists():
        return folder
    building = folder.with_suffix(".tmp")
    store, write_id, shards = open_store(building), new_write_id(), []
    schema = Schema.from_columns({"image": "jpeg", "label": "int"})
    for split in ("train", "validation"):
        uploader = ShardUploader(store, f"{split}/{write_id}/0", ShardBuilder(schema, ShardOptions()), partition=split)
        for number, (image, label) in enumerate(_samples(task.workload, count)):
            if (number % _HELD_OUT == 0) == (split == "validation"):
                uploader.write({"image": image, "label": label})
        shards += uploader.finish()
    publish(store, Draft(write_id, schema, tuple(shards)))
    building.rename(folder)
    return folder


def configuration(task: Task, run_dir: Path, **changes: object) -> "TrainConfig":
    """Return the trainer's defaults for the set, under the launcher of the task."""
    from smalti.torch.train import TrainConfig

    chosen = {"launcher": task.options["launcher"], "num_processes": task.options["num_processes"]}
    return TrainConfig.from_json(
        {"data": str(training_set(task)), "run_dir": str(run_dir), "num_classes": CLASSES, "image_size": SIDE,
         "device": "cpu", **chosen, **changes}
    )  # fmt: skip


def _samples(workload: str, count: int) -> Iterator[tuple[bytes, int]]:
    from smalti.images import prepare_jpeg

    if workload == "photos":
        for sample in Photos(count):
            yield prepare_jpeg(sample["image"], size=SIDE, quality=_QUALITY).data, sample["label"]
        return
    for number in range(count):
        yield _drawn(number), number % CLASSES


def _drawn(number: int) -> bytes:
    """Return a picture of waves in noise; their direction is the class."""
    from PIL import Image

    rng = np.random.default_rng(number)
    down, across = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    angle = np.pi * (number % CLASSES + rng.uniform(-0.3, 0.3)) / CLASSES
    waves = np.sin(rng.uniform(0.2, 0.6) * (np.cos(angle) * across + np.sin(angle) * down) + rng.uniform(0, 6.3))
    picture = 128 + rng.uniform(20, 60, 3) * waves[..., None] + rng.normal(0, 30, (SIDE, SIDE, 1))
    file = io.BytesIO()
    Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
