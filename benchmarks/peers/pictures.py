"""Photos to float tensors without a library of shards: torch's DataLoader over a folder with Pillow, and SPDL."""

import math
import os
import random
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.peers.interface import ImageOptions, Peer, Unsupported

SIZE = 224
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
_TRIES = 10


def usual_transform(image: Image.Image, *, augment: bool) -> Any:
    """Return what torchvision's transforms make of an image: a square by Pillow, a float tensor, normalised.

    They are written out, since torchvision has no build for this torch: `Resize` and `CenterCrop` in one step, or
    `RandomResizedCrop` and `RandomHorizontalFlip`; then `ToTensor` and `Normalize`.
    """
    import torch

    image = image.convert("RGB")
    box = _random_box(*image.size) if augment else _centre_box(*image.size)
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    if augment and random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div_(255)
    return pixels.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1))


def _centre_box(width: int, height: int) -> tuple[int, int, int, int]:
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _random_box(width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(_TRIES):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if columns <= width and rows <= height:
            left, top = random.randint(0, width - columns), random.randint(0, height - rows)
            return left, top, left + columns, top + rows
    return _centre_box(width, height)


def torch_loader(dataset: Any, options: ImageOptions, *, shuffle: bool = False) -> Iterable[Any]:
    """Torch's DataLoader, whose workers stay."""
    from torch.utils.data import DataLoader

    loader: Iterable[Any] = DataLoader(
        dataset,
        batch_size=options.batch_size,
        num_workers=options.workers,
        shuffle=shuffle,
        persistent_workers=options.workers > 0,
    )
    return loader


class Folder(Peer):
    """torch's DataLoader over a folder of files, read by Pillow."""

    def images(self, folder: Path, options: ImageOptions) -> Iterable[Any]:
        """Batches of float tensors."""
        return torch_loader(_Files(folder, augment=options.augment), options, shuffle=True)


class _Files:
    def __init__(self, folder: Path, *, augment: bool) -> None:
        self._paths = sorted((folder / "files").iterdir())
        self._augment = augment

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Any:
        return usual_transform(Image.open(self._paths[number]), augment=self._augment)


class Spdl(Peer):
    """SPDL's `load_image_batch` in its pipeline: ffmpeg's decoder and its default scaler, in threads."""

    def images(self, folder: Path, options: ImageOptions) -> Iterable[Any]:
        """Batches of float tensors, of the whole image squeezed into the square."""
        if options.augment:
            raise Unsupported("no random resized crop")
        return _Pipeline(folder, options)


class _Pipeline:
    def __init__(self, folder: Path, options: ImageOptions) -> None:
        self._paths = sorted(os.fspath(path) for path in (folder / "files").iterdir())
        self._options = options

    def __iter__(self) -> Iterator[Any]:
        import torch

        from smalti.torch.train.tasks.images import normalised

        size, threads = self._options.batch_size, max(1, self._options.workers)
        paths = random.sample(self._paths, len(self._paths))
        batches = [paths[begin : begin + size] for begin in range(0, len(paths), size)]
        builder = import_module("spdl.pipeline").PipelineBuilder().add_source(batches)
        pipeline = builder.pipe(_load, concurrency=threads).add_sink(2 * threads).build(num_threads=threads)
        with pipeline.auto_stop():
            for pixels in pipeline:
                yield normalised(torch.as_tensor(pixels).permute(0, 3, 1, 2), channels_last=True)


def _load(paths: list[str]) -> Any:
    spdl = import_module("spdl.io")
    return spdl.to_torch(spdl.load_image_batch(paths, width=SIZE, height=SIZE, pix_fmt="rgb24"))
