"""A trained model as files that other programs can load: weights with labels and preprocessing, and a torch program.

    model.safetensors  config.json  smalti.json    those of the training run; transformers opens them
    program.pt2                                    `torch.export.load` opens it, without Smalti or transformers

The program takes decoded images and contains the preprocessing; its batch may have any size. Both are loaded again and
compared with the model before anything is at its place.
"""

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from smalti.errors import StoreExists, TrainingError
from smalti.images import decode_batch
from smalti.regular_files import read_regular_text
from smalti.storage import open_store
from smalti.storage.local_files import local_files
from smalti.torch.train.predictor import Predictor
from smalti.torch.train.tasks.images import logits_of, normalised
from smalti.torch.train.trainer.task import load_model

PROGRAM = "program.pt2"
LABELS = "smalti.json"
"""Classes, image size and preprocessing: a file beside the program, and in it an extra file of the same name."""
_TOLERANCE = 1e-3
"""Largest difference of a probability. Other kernels add in another order; another model differs by more."""
_TRIED = 16  # generated images, if there are no others


@dataclass(frozen=True)
class Exported:
    """An exported model, and how far its files differ from the model they were made of."""

    folder: str
    images: int
    """Number of images that were compared."""
    weights_difference: float
    """Largest difference of a probability of the weights, loaded again."""
    program_difference: float
    """Largest difference of a probability of the program, loaded again."""


def export(
    model: "str | Path | Predictor",
    folder: str | Path,
    *,
    images: Sequence[bytes] = (),
    model_options: Mapping[str, Any] | None = None,
) -> Exported:
    """Write a trained model into a new local folder, as weights and as a program, and compare both with the model.

    The program is called with images, uint8 of shape (n, side, side, 3) in RGB, and returns the probabilities of the
    classes, float32 of shape (n, classes):

        extra = {"smalti.json": ""}
        program = torch.export.load("folder/program.pt2", extra_files=extra).module()
        names = json.loads(extra["smalti.json"])["class_names"]

    Args:
        model: address of the folder `model` of a training run; or a predictor.
        folder: a path, which must not exist yet.
        images: encoded images to compare with; without any, generated ones.
        model_options: options of the store of the model.

    Raises:
        TrainingError: the model is no image classifier or cannot be exported, or what was written differs from it;
            nothing is left.
        BadImageError: one of the images cannot be decoded.
        FileExistsError: the folder exists.

    Examples:
        >>> exported = export("s3://bucket/runs/7/model", "exported")
        >>> program = torch.export.load("exported/program.pt2").module()
        >>> program(torch.zeros(1, 32, 32, 3, dtype=torch.uint8)).shape
        torch.Size([1, 2])
    """
    predictor = model if isinstance(model, Predictor) else Predictor(model, model_options)
    target = Path(folder)
    if target.exists():
        raise StoreExists(f"{target} exists; export into a new folder, or remove it first")
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        with local_files(open_store(predictor.address, predictor.options)) as files:
            for path in files.iterdir():
                shutil.copyfile(path, fresh / path.name)
        original = _Probabilities(copy.deepcopy(predictor.model)).eval()
        original.to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch's stub lacks it
        side = predictor.classifier.image_size
        generated = np.random.default_rng(0).integers(0, 256, (_TRIED, side, side, 3), np.uint8)
        pixels = torch.from_numpy(decode_batch(images, size=side) if images else generated)
        _write_program(original, pixels, fresh)
        found = Exported(str(target), len(pixels), *_differences(predictor.of_pixels(pixels.numpy()), pixels, fresh))
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return found


class _Probabilities(nn.Module):
    """A classifier with its preprocessing: from decoded images to probabilities."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        scaled = normalised(pixels.permute(0, 3, 1, 2), channels_last=True)
        return logits_of(self.model(scaled)).float().softmax(dim=1)


def _write_program(original: nn.Module, pixels: torch.Tensor, folder: Path) -> None:
    # torch takes a batch of one image for a program of exactly one.
    example = pixels[:2] if len(pixels) > 1 else pixels.repeat(2, 1, 1, 1)
    try:
        with torch.no_grad():
            program = torch.export.export(
                original, (example,), dynamic_shapes=({0: torch.export.Dim("images", min=1)},)
            )
    except Exception as error:  # of torch's many classes; all say which operation it was
        raise TrainingError(f"torch cannot export the model: {error}") from error
    torch.export.save(program, folder / PROGRAM, extra_files={LABELS: read_regular_text(folder / LABELS)})


def _differences(expected: torch.Tensor, pixels: torch.Tensor, folder: Path) -> list[float]:
    """Return the largest differences of the weights and of the program, each loaded again, from the predictor.

    Raises:
        TrainingError: one of them is too large.
    """
    weights = _Probabilities(load_model(folder)[0]).eval()
    extra = {LABELS: ""}
    program = torch.export.load(folder / PROGRAM, extra_files=extra).module()
    if json.loads(extra[LABELS]) != json.loads(read_regular_text(folder / LABELS)):
        raise TrainingError(f"{PROGRAM} was loaded again with other labels than {LABELS}", folder=str(folder))
    found = []
    with torch.inference_mode():
        for name, again in (("model.safetensors", weights), (PROGRAM, program)):
            difference = float((again(pixels) - expected).abs().max())
            if not difference <= _TOLERANCE:  # nor NaN
                raise TrainingError(
                    f"{name} was loaded again, and its probabilities differ from the model's by up to {difference:.2g} "
                    f"(expected at most {_TOLERANCE:g}) on {len(pixels)} images: the export is not usable.",
                    difference=difference,
                )
            found.append(difference)
    return found
