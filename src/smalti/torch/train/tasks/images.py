"""Image classification: images and the numbers of their classes, cross entropy, accuracy and the confusion of classes.

The fields of `TrainConfig` that are of images only (`num_classes`, `image_size`, `model`, ...) are its options.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from smalti.catalog import Manifest
from smalti.errors import SchemaError, TrainingError
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.ranks import Ranks
from smalti.torch.train.trainer.data import MEAN, STD, PixelsAndLabels, to_device
from smalti.torch.train.trainer.models import build_model, load_transformers_model, logits_of
from smalti.torch.train.trainer.task import Batch, Outcome, Task

MOST_WRONG = 24
"""Misclassified samples that an evaluation names."""

_ENCODINGS = ("jpeg", "png", "bytes")


class ImageClassification(Task):
    """Classes of images."""

    main_metric = "accuracy"
    higher_is_better = True

    def build_model(self, config: TrainConfig) -> nn.Module:
        """Return the classifier that `config.model` names."""
        return build_model(config)

    def configured(self, config: TrainConfig, manifest: Manifest) -> TrainConfig:
        """Return the configuration with the classes of the version, if it lists them."""
        names = manifest.metadata.get("classes")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            return config
        for field, given, found in (
            ("num_classes", config.num_classes, len(names)),
            ("class_names", config.class_names, tuple(names)),
        ):
            if given and given != found:
                raise SchemaError(
                    f"`{field}` is {given!r:.200}, but version {manifest.version} of {config.data} has the "
                    f"{len(names)} classes {', '.join(names):.500}: leave `num_classes` and `class_names` out, or "
                    "correct the data.",
                    field=field,
                )
        return dataclasses.replace(config, num_classes=len(names), class_names=tuple(names))

    def check(self, config: TrainConfig, columns: Mapping[str, str]) -> None:
        """Check that there are images and labels, of a known number of classes."""
        if config.num_classes < 1:
            raise SchemaError(
                f"`num_classes` must be at least 1 for task '{config.task}', not {config.num_classes}: {config.data} "
                "does not list its classes."
            )
        for role, name in (("image_column", config.image_column), ("label_column", config.label_column)):
            if name not in columns:
                raise SchemaError(
                    f"`{role}` is '{name}', but {config.data} has the columns {', '.join(sorted(columns))}.",
                    column=name,
                )
        encoding = columns[config.image_column]
        if encoding not in _ENCODINGS:
            raise SchemaError(
                f"column '{config.image_column}' is encoded as '{encoding}'; the trainer decodes "
                f"{', '.join(_ENCODINGS)}. Write the images as JPEG or PNG bytes.",
                column=config.image_column,
                encoding=encoding,
            )

    def transform(self, config: TrainConfig, *, training: bool) -> Callable[[Any], Any]:  # noqa: ARG002
        """Return the decoder; images are augmented on the device."""
        return PixelsAndLabels(config.image_column, config.label_column, config.image_size)

    def batch(
        self, columns: Mapping[str, Any], config: TrainConfig, device: torch.device, *, epoch: int | None
    ) -> Batch:
        """Return pixels and labels; the pixels augmented in training."""
        found = to_device(columns, config, device, epoch=epoch)
        values = {"pixels": found.pixels, "labels": found.labels}
        return Batch(values, found.weights, found.sample_ids, found.positions)

    def loss(self, model: nn.Module, batch: Batch, config: TrainConfig) -> Outcome:
        """Return the cross entropy, with label smoothing in training only."""
        scores, labels = logits_of(model(batch["pixels"])), batch["labels"]
        if scores.shape != (len(batch), config.num_classes):
            raise TrainingError(
                f"`model` '{config.model}' returned scores of shape {tuple(scores.shape)} for {len(batch)} images; "
                f"expected one per class, ({len(batch)}, {config.num_classes}).",
                model=config.model,
            )
        smoothing = config.label_smoothing if model.training else 0.0
        losses = functional.cross_entropy(scores.float(), labels, reduction="none", label_smoothing=smoothing)
        is_right = scores.detach().argmax(dim=1) == labels
        return Outcome(losses, {"accuracy": is_right.float()}, outputs=scores.detach(), targets=labels)

    def example(self, config: TrainConfig, device: torch.device) -> Batch:
        """Return two black images."""
        size = config.image_size
        pixels = torch.zeros(2, 3, size, size, device=device)
        values = {"pixels": pixels, "labels": torch.zeros(2, dtype=torch.int64, device=device)}
        marks = torch.zeros(2, dtype=torch.int64).numpy()
        return Batch(values, torch.ones(2, device=device), marks, marks)

    def report(self, config: TrainConfig, device: torch.device) -> "Confusion":
        """Return the counts of answers by class."""
        return Confusion(config.num_classes, device)

    def load_model(self, folder: Path, config: TrainConfig) -> nn.Module:
        """Return the classifier in a folder."""
        found = load_transformers_model(folder, "AutoModelForImageClassification")
        return super().load_model(folder, config) if found is None else found

    def describe(self, config: TrainConfig) -> dict[str, Any]:
        """Return the classes, and the way of an image to the model's input."""
        return {
            "model": config.model,
            "class_names": list(config.class_names),
            "image_size": config.image_size,
            "mean": list(MEAN),
            "std": list(STD),
            "scale": "pixels in [0, 1], RGB",
        }


class Confusion:
    """Numbers of samples by true and predicted class, and the misclassified samples with the largest losses."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self._classes = num_classes
        # Counted here: importing torchmetrics takes each process a second, as it imports transformers.
        self._counts = torch.zeros(num_classes**2, dtype=torch.int64, device=device)
        """By true class * classes + predicted class."""
        self._most_wrong: list[dict[str, float]] = []

    def add(self, batch: Batch, outcome: Outcome) -> None:
        """Count one batch; samples of weight 0 do not count."""
        real, labels, losses = batch.weights > 0, batch["labels"], outcome.losses
        logits = outcome.outputs.float()
        predicted = logits.argmax(dim=1)
        confidences = logits.softmax(dim=1).gather(1, predicted[:, None])[:, 0]
        self._counts += torch.bincount(labels[real] * self._classes + predicted[real], minlength=self._classes**2)
        wrong = torch.where(real & (predicted != labels), losses, -1.0)  # a loss is never negative
        worst = wrong.topk(min(MOST_WRONG, len(wrong)))
        at = worst.indices[worst.values >= 0]
        columns = [values[at].tolist() for values in (labels, predicted, confidences, losses)]
        found = [
            {
                "sample_id": int(sample_id),
                "label": label,
                "predicted": answer,
                "confidence": round(confidence, 4),
                "loss": round(loss, 4),
            }
            for sample_id, label, answer, confidence, loss in zip(
                batch.sample_ids[at.cpu().numpy()], *columns, strict=True
            )
        ]
        self._most_wrong = _largest_losses([*self._most_wrong, *found])

    def summary(self, ranks: Ranks) -> dict[str, Any]:
        """Return the numbers of samples by [true class][predicted class], and the samples, largest loss first.

        Of a sample: `sample_id`, `label`, `predicted`, `confidence` in that prediction, and `loss`.
        """
        classes = self._classes
        counts = [round(count) for count in ranks.total(self._counts.tolist(), "sum their answers")]
        found = ranks.gather(self._most_wrong, "collect their most wrong")
        return {
            "confusion": [counts[row * classes : (row + 1) * classes] for row in range(classes)],
            "most_wrong": _largest_losses([each for of_rank in found for each in of_rank]),
        }


def _largest_losses(samples: list[dict[str, float]]) -> list[dict[str, float]]:
    return sorted(samples, key=lambda each: (-each["loss"], each["sample_id"]))[:MOST_WRONG]
