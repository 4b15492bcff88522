"""Image classification: images and the numbers of their classes, cross entropy, accuracy and the confusion of classes.

Images are decoded in the loader, and normalised and augmented on the device. Training images get random views, drawn
per sample from (seed, epoch, sample id): a sample's view depends on nothing else, neither on its batch nor on the
worker, the rank or the world.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from smalti.catalog import Manifest
from smalti.errors import BadImageError, SchemaError, TrainingError
from smalti.extras import import_attribute
from smalti.images import decode_batch
from smalti.images.batches import uniform
from smalti.torch.train.config import ImageOptions, TrainConfig, find_named
from smalti.torch.train.ranks import Ranks
from smalti.torch.train.run.files import read_json
from smalti.torch.train.trainer.task import MARKS, Batch, Outcome, Task, on_device, sent, whole_numbers

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet in RGB: what pretrained classifiers expect, and harmless for others."""
MOST_WRONG = 24
"""Misclassified samples that an evaluation names."""

_BATCH_NORM_MOMENTUM = 0.1
_DROPOUT = 0.2  # of the MobileNetV2 paper
_ENCODINGS = ("jpeg", "png", "bytes")


class ImageClassification(ImageOptions, Task):
    """Classes of images."""

    main_metric = "accuracy"
    higher_is_better = True

    def build_model(self, config: TrainConfig) -> nn.Module:
        """Return the classifier that `config.model` names."""
        return build_model(config)

    def configured(self, config: TrainConfig, manifest: Manifest) -> TrainConfig:
        """Return the configuration with all options, among them the classes of the version, if it lists them."""
        options = {**self.option_defaults(), **config.task_options}
        names = manifest.metadata.get("classes")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            return dataclasses.replace(config, task_options=options)
        known = {"num_classes": len(names), "class_names": names}
        for option, value in known.items():
            given = options[option]
            if given and given != value:
                raise SchemaError(
                    f"`{option}` is {given!r:.200}, but version {manifest.version} of {config.data} has the "
                    f"{len(names)} classes {', '.join(names):.500}: leave `num_classes` and `class_names` out, or "
                    "correct the data; `streams` and `eval_data` need the same classes in the same order.",
                    field=option,
                )
        return dataclasses.replace(config, task_options={**options, **known})

    def check(self, config: TrainConfig, columns: Mapping[str, str]) -> None:
        """Check that there are images and labels, of a known number of classes."""
        if self.num_classes < 1:
            raise SchemaError(
                f"`num_classes` must be at least 1 for task '{config.task}', not {self.num_classes}: {config.data} "
                "does not list its classes."
            )
        if self.class_weights and len(self.class_weights) != self.num_classes:
            raise SchemaError(
                f"`class_weights` has {len(self.class_weights)} numbers; expected one for each of {self.num_classes} "
                f"classes of {config.data}.",
                field="class_weights",
            )
        for role, name in (("image_column", self.image_column), ("label_column", self.label_column)):
            if name not in columns:
                raise SchemaError(
                    f"`{role}` is '{name}', but {config.data} has the columns {', '.join(sorted(columns))}.",
                    column=name,
                )
        encoding = columns[self.image_column]
        if encoding not in _ENCODINGS:
            raise SchemaError(
                f"column '{self.image_column}' is encoded as '{encoding}'; the trainer decodes "
                f"{', '.join(_ENCODINGS)}. Write the images as JPEG or PNG bytes.",
                column=self.image_column,
                encoding=encoding,
            )

    def transform(self, config: TrainConfig, *, training: bool) -> Callable[[Any], Any]:  # noqa: ARG002
        """Return the decoder; images are augmented on the device."""
        return PixelsAndLabels(self.image_column, self.label_column, self.image_size)

    def batch(
        self, columns: Mapping[str, Any], config: TrainConfig, device: torch.device, *, epoch: int | None
    ) -> Batch:
        """Return normalised pixels, float32 of shape (n, 3, size, size), augmented in training, and labels if any.

        Raises:
            SchemaError: a label lies outside [0, num_classes).
        """
        marks = on_device({name: columns[name] for name in MARKS}, device)
        values: dict[str, Tensor] = {}
        if self.label_column in columns:  # not of images that are to be classified
            labels = whole_numbers(columns[self.label_column])
            for wrong in np.flatnonzero((labels < 0) | (labels >= self.num_classes))[:1]:
                sample, label = int(marks.sample_ids[wrong]), int(labels[wrong])
                raise SchemaError(
                    f"column '{self.label_column}' of sample {sample} holds {label}, but class numbers must lie in "
                    f"[0, {self.num_classes}); set `num_classes` to what the data hold or correct the data.",
                    column=self.label_column,
                    sample_id=sample,
                    label=label,
                )
            values["labels"] = sent(labels, device)
        pixels = as_pixels(columns[self.image_column], device)
        if epoch is not None and self.augment:
            pixels = apply_views(pixels.to(torch.float32).div_(255.0), draw_views(config.seed, epoch, marks.sample_ids))
        values["pixels"] = normalised(pixels, channels_last=config.channels_last)
        return dataclasses.replace(marks, values=values)

    def loss(self, model: nn.Module, batch: Batch, config: TrainConfig) -> Outcome:
        """Return the cross entropy, with label smoothing in training only."""
        scores, labels = logits_of(model(batch["pixels"])), batch["labels"]
        if scores.shape != (len(batch), self.num_classes):
            raise TrainingError(
                f"`model` '{config.model}' returned scores of shape {tuple(scores.shape)} for {len(batch)} images; "
                f"expected one per class, ({len(batch)}, {self.num_classes}).",
                model=config.model,
            )
        smoothing = self.label_smoothing if model.training else 0.0
        weights = None
        if self.class_weights and model.training:
            weights = torch.tensor(self.class_weights).to(scores.device, non_blocking=True)
        losses = functional.cross_entropy(
            scores.float(), labels, weight=weights, reduction="none", label_smoothing=smoothing
        )
        is_right = scores.detach().argmax(dim=1) == labels
        return Outcome(losses, {"accuracy": is_right.float()}, outputs=scores.detach(), targets=labels)

    def predictions(self, model: nn.Module, batch: Batch, config: TrainConfig) -> dict[str, Any]:  # noqa: ARG002
        """Return the number of each image's class, its name if the classes are named, and its probability."""
        best = self.probabilities(model, batch["pixels"]).max(dim=1)
        answers: dict[str, Any] = {"predicted": best.indices}
        if self.class_names:
            answers["predicted_name"] = [self.class_names[number] for number in best.indices.tolist()]
        return {**answers, "confidence": best.values}

    def probabilities(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """Return the probability of each class, float32 of shape (n, classes), of normalised pixels."""
        return logits_of(model(pixels)).float().softmax(dim=1)

    def of_pixels(self, model: nn.Module, pixels: NDArray[np.uint8], config: TrainConfig) -> Tensor:
        """Return the probability of each class, shape (n, classes), of decoded images, shape (n, size, size, 3)."""
        device = next(model.parameters(), torch.zeros(0)).device
        return self.probabilities(model, normalised(as_pixels(pixels, device), channels_last=config.channels_last))

    def example(self, config: TrainConfig, device: torch.device) -> Batch:  # noqa: ARG002
        """Return two black images."""
        pixels, zeros = torch.zeros(2, 3, self.image_size, self.image_size), torch.zeros(2, dtype=torch.int64)
        return on_device({"pixels": pixels, "labels": zeros, **dict.fromkeys(MARKS, zeros)}, device)

    def report(self, config: TrainConfig, device: torch.device) -> "Confusion":  # noqa: ARG002
        """Return the counts of answers by class."""
        return Confusion(self.num_classes, device)

    def load_model(self, folder: Path, config: TrainConfig) -> nn.Module:
        """Return the classifier in a folder."""
        if "architectures" not in read_json(folder / "config.json"):  # no model of transformers
            return super().load_model(folder, config)
        auto = import_attribute("transformers", "AutoModelForImageClassification")
        model: nn.Module = auto.from_pretrained(str(folder), local_files_only=True)
        return model

    def describe(self, config: TrainConfig) -> dict[str, Any]:
        """Return the classes, and the way of an image to the model's input."""
        return {
            "model": config.model,
            "class_names": list(self.class_names),
            "image_size": self.image_size,
            "mean": list(MEAN),
            "std": list(STD),
            "scale": "pixels in [0, 1], RGB",
        }


# ------------------------------------------------------------ the default classifier


def build_model(config: TrainConfig) -> nn.Module:
    """Build an image classifier for as many classes as the options of the task say.

    Weights are loaded, or drawn from torch's generator.

    `config.model` is `mobilenet_v2`, or `module:function`, called with the configuration. With `weights`, it is the
    image classifier of transformers that they are of.

    Args:
        config: Settings of which `model`, `weights` and `task_options` count.

    Raises:
        SchemaError: the name is unknown, or its function does not return an nn.Module.
        MissingDependency: transformers is not installed.
        TrainingError: the weights cannot be loaded.

    Examples:
        >>> options = {"num_classes": 5}
        >>> config = TrainConfig(data="s3://bucket/photos", run_dir="s3://bucket/runs/8", task_options=options)
        >>> build_model(config)(torch.zeros(1, 3, 96, 96)).logits.shape
        torch.Size([1, 5])
    """
    if ":" in config.model:
        made = find_named(config.model, field="model")(config)
        if not isinstance(made, nn.Module):
            raise SchemaError(
                f"`model` '{config.model}' returned {type(made).__name__}; the function must take a "
                "TrainConfig and return an nn.Module.",
                model=config.model,
            )
        return made
    # A task of a user's may have other options, too.
    known = ImageOptions.option_defaults()
    options = ImageOptions(**{name: value for name, value in config.task_options.items() if name in known})
    labels: dict[str, Any] = {"num_labels": options.num_classes}
    if names := options.class_names:
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    model: nn.Module
    if config.weights is not None:
        try:
            # The pretrained head has other classes: a new head is drawn where the shapes differ.
            model = import_attribute("transformers", "AutoModelForImageClassification").from_pretrained(
                config.weights, use_safetensors=True, trust_remote_code=False, ignore_mismatched_sizes=True, **labels
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise TrainingError(
                f"the weights '{config.weights}' cannot be loaded: {error} Expected a folder with config.json and "
                "model.safetensors, or the name of such a model on the hub (which needs the network).",
                weights=config.weights,
            ) from error
    elif config.model == "mobilenet_v2":
        model = _mobilenet_v2(options, labels)
    else:
        raise SchemaError(
            f"`model` '{config.model}' is unknown; expected 'mobilenet_v2', or 'module:function' with a function of "
            "yours that takes the configuration and returns a module, such as one of torchvision with as many classes.",
            model=config.model,
        )
    # transformers' MobileNets pass TensorFlow's momentum 0.997 to torch, where it is the weight of the *newest* batch:
    # the running statistics would be those of the last batch alone.
    for module in model.modules():
        momentum = getattr(module, "momentum", None)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and momentum is not None and momentum > 0.9:
            module.momentum = _BATCH_NORM_MOMENTUM
    return model


def logits_of(output: Any) -> Tensor:
    """Return the class scores, shape (n, classes), of a classifier's output: a tensor, or an object with `.logits`.

    Raises:
        TrainingError: the output is neither.
    """
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise TrainingError(
        f"the model returned {type(output).__name__}; expected a tensor of class scores or an object with `.logits`. "
        "Wrap the model in a module that returns one of these.",
    )


def _mobilenet_v2(options: ImageOptions, labels: dict[str, Any]) -> nn.Module:
    """Return the model with initial weights that suit a short training.

    transformers draws all weights with a deviation of 0.02, whatever the fan. He's rule, and residual blocks that begin
    as identities, raised held-out accuracy on the demo's flowers from 0.60 to 0.72 in the same 480 steps.
    """
    settings = import_attribute("transformers", "MobileNetV2Config")(
        depth_multiplier=options.width,
        image_size=options.image_size,
        # TensorFlow's asymmetric padding is needed for its published weights only; it costs a third of a CPU's speed.
        tf_padding=False,
        # The default, 0.8, is TensorFlow's probability to keep a value; as a probability to drop it is too high.
        classifier_dropout_prob=_DROPOUT,
        **labels,
    )
    model: nn.Module = import_attribute("transformers", "MobileNetV2ForImageClassification")(settings)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        if getattr(module, "use_residual", False):
            last: Any = module.reduce_1x1
            nn.init.zeros_(last.normalization.weight)
    return model


# ------------------------------------------------------------ the report


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
        columns = {"label": labels, "predicted": predicted, "confidence": confidences, "loss": losses}
        values = [batch.sample_ids[at.cpu().numpy()].tolist(), *(each[at].tolist() for each in columns.values())]
        found = [
            {name: round(value, 4) for name, value in zip(("sample_id", *columns), row, strict=True)}
            for row in zip(*values, strict=True)
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


# ------------------------------------------------------------ pixels


def as_pixels(images: Any, device: torch.device) -> Tensor:
    """Return decoded images, uint8 of shape (n, size, size, 3), on the device in shape (n, 3, size, size)."""
    tensor = images if isinstance(images, Tensor) else torch.from_numpy(np.ascontiguousarray(images))
    # The decoder's (n, h, w, 3) is (n, 3, h, w) in channels_last format: permuting it copies nothing.
    return tensor.to(device, non_blocking=True).permute(0, 3, 1, 2)


def normalised(pixels: Tensor, *, channels_last: bool) -> Tensor:
    """Return pixels of shape (n, 3, size, size), uint8 or floats in [0, 1], as the input of a model."""
    white = 1.0 if pixels.is_floating_point() else 255.0
    is_dense = pixels.is_contiguous() or pixels.is_contiguous(memory_format=torch.channels_last)
    if pixels.is_floating_point() or pixels.device.type != "cpu" or not is_dense or torch.compiler.is_compiling():
        floats = pixels.to(torch.float32)
    else:
        # Of an array of this size, numpy asks the kernel for huge pages: torch's memory takes three times as long to
        # fill. The memory format stays.
        room = torch.from_numpy(np.empty(pixels.numel(), np.float32))
        floats = room.as_strided(pixels.shape, pixels.stride()).copy_(pixels)
    mean, std = np.array(MEAN), np.array(STD)
    constants = np.stack([-mean / std, 1.0 / (white * std)]).astype(np.float32)
    shift, factor = sent(constants, floats.device)
    if floats.is_contiguous(memory_format=torch.channels_last):
        # With constants for each value of a row: a loop over the 3 values of each pixel takes five times as long.
        rows, width = floats.permute(0, 2, 3, 1).flatten(2), floats.shape[3]
        out = None if floats is pixels else rows  # new memory takes half as long again
        rows = torch.addcmul(shift.repeat(width), rows, factor.repeat(width), out=out)
        floats = rows.view(*rows.shape[:2], width, 3).permute(0, 3, 1, 2)
    else:
        floats = torch.addcmul(shift.view(3, 1, 1), floats, factor.view(3, 1, 1))
    return floats.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


@dataclass(frozen=True)
class PixelsAndLabels:
    """A batch transform that turns the encoded images of one column into uint8 pixels of shape (n, size, size, 3)."""

    image_column: str
    label_column: str
    size: int

    on_batches = True
    """The transform is called with whole column batches."""
    thread_safe = True
    """Loaders may call it from several threads; it has no state."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pixels, labels and ids of the batch, without its other columns.

        Raises:
            BadImageError: an image cannot be decoded; the message names the sample ids of its batch.
        """
        images = batch[self.image_column]
        try:
            pixels = decode_batch(images, size=self.size)
        except BadImageError as error:
            ids = [int(i) for i in batch["_sample_id"]]
            raise BadImageError(f"{error} It is one of the samples {ids}.", **error.facts, sample_ids=ids) from error
        others = {name: batch[name] for name in (self.label_column, *MARKS) if name in batch}
        return {self.image_column: pixels, **others}


# ------------------------------------------------------------ views


_MIN_ZOOM = 0.7
"""Smallest side of the crop, as a fraction of the image's side: half of the area stays visible."""
_JITTER = 0.15
"""Largest change of brightness, contrast and saturation, as a fraction of their value."""
VIEW = ("flip", "zoom", "shift_x", "shift_y", "brightness", "contrast", "saturation")
"""The numbers of a view, one random draw for each.

`flip` is -1 to mirror left and right, else 1; `zoom` is the side of the crop as a fraction of the image's side, in
[0.7, 1]; the shifts are the centre of the crop, in [-1, 1], such that the crop lies inside the image; the others are
factors around 1.
"""


def draw_views(seed: int, epoch: int, sample_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the views of n samples in an epoch, shape (7, n), in the order of `VIEW`.

    Pure; the view of a sample does not depend on the others.
    """
    u = uniform(seed, epoch, sample_ids, len(VIEW))
    zoom = 1.0 - (1.0 - _MIN_ZOOM) * u[1]
    shifts = (1.0 - zoom) * (2.0 * u[2:4] - 1.0)
    jitter = 1.0 + _JITTER * (2.0 * u[4:7] - 1.0)
    return np.stack([np.where(u[0] < 0.5, -1.0, 1.0), zoom, *shifts, *jitter]).astype(np.float32)


def apply_views(pixels: Tensor, views: NDArray[np.float32]) -> Tensor:
    """Crop and mirror images, and change their colours, as `views` say; sampled bilinearly, clipped to [0, 1].

    `pixels` are floats of shape (n, 3, height, width) in [0, 1]; so is the result.
    """
    flip, zoom, shift_x, shift_y, *colours = sent(views, pixels.device)
    theta = pixels.new_zeros((len(pixels), 2, 3))
    theta[:, 0, 0] = zoom * flip
    theta[:, 0, 2] = shift_x
    theta[:, 1, 1] = zoom
    theta[:, 1, 2] = shift_y
    grid = functional.affine_grid(theta, list(pixels.shape), align_corners=False)
    seen: Tensor = functional.grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    brightness, contrast, saturation = (factor.view(-1, 1, 1, 1) for factor in colours)
    grey = seen.mean(dim=1, keepdim=True)
    seen = torch.lerp(grey, seen, saturation)
    level = grey.mean(dim=(2, 3), keepdim=True)
    seen = torch.lerp(level, seen, contrast)
    return torch.mul(seen, brightness).clamp(0.0, 1.0)
