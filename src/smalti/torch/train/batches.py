"""From column batches of encoded images to what a model takes: decoding in the loader, the rest on the device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import BadImageError, SchemaError
from smalti.images import decode_batch
from smalti.torch.train.augmentation import apply_views, draw_views
from smalti.torch.train.config import TrainConfig

if TYPE_CHECKING:
    import torch

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of ImageNet, in RGB: what pretrained classifiers expect, and harmless for others."""


@dataclass(frozen=True)
class PixelsAndLabels:
    """A batch transform that turns the encoded images of one column into uint8 pixels of shape (n, size, size, 3)."""

    image_column: str
    label_column: str
    size: int

    on_batches = True
    """The dataset hands over whole column batches."""
    thread_safe = True
    """Loaders may call it from several threads: it keeps nothing."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The pixels, labels and ids of the batch; other columns are dropped, as nothing reads them.

        Raises:
            BadImageError: an image cannot be decoded; the message names the sample ids of its batch.
        """
        images = batch[self.image_column]
        try:
            pixels = decode_batch(images, size=self.size)
        except BadImageError as error:
            ids = [int(i) for i in batch["_sample_id"]]
            raise BadImageError(f"{error} It is one of the samples {ids}.", sample_ids=ids) from error
        kept = {name: batch[name] for name in (self.label_column, "_sample_id", "_position")}
        return {self.image_column: pixels, **kept}


@dataclass(frozen=True)
class DeviceBatch:
    """One batch, ready for the model."""

    pixels: "torch.Tensor"
    """float32, shape (n, 3, size, size), normalised."""
    labels: "torch.Tensor"
    """int64, shape (n,)."""
    weights: "torch.Tensor"
    """float32, shape (n,): 1, or 0 for a sample that only fills the last step up."""
    sample_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Place in the epoch's global order; -1 = padding."""

    @property
    def num_real(self) -> int:
        """Samples that are not padding."""
        return int((self.positions >= 0).sum())


def to_device(
    batch: Mapping[str, Any], config: TrainConfig, device: "torch.device", *, epoch: int | None
) -> DeviceBatch:
    """The decoded batch on `device`, normalised, and augmented for `epoch` unless that is None.

    Raises:
        SchemaError: a label lies outside [0, num_classes).
    """
    ids, positions = _int64(batch["_sample_id"]), _int64(batch["_position"])
    labels = check_labels(_int64(batch[config.label_column]), ids, config)
    pixels = _pixels(batch[config.image_column], device)
    if epoch is not None and config.augment:
        pixels = apply_views(pixels, draw_views(config.seed, epoch, ids))
    return DeviceBatch(
        pixels=_laid_out(_normalised(pixels), channels_last=config.channels_last),
        labels=_tensor(labels, device),
        weights=_tensor((positions >= 0).astype(np.float32), device),
        sample_ids=ids,
        positions=positions,
    )


def check_labels(labels: NDArray[np.int64], ids: NDArray[np.int64], config: TrainConfig) -> NDArray[np.int64]:
    """The labels, if each is a class number.

    Raises:
        SchemaError: one is not; the loss function would end in an index error, or on a GPU in a dead device.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= config.num_classes))
    if len(wrong):
        first = int(wrong[0])
        raise SchemaError(
            f"column '{config.label_column}' of sample {int(ids[first])} holds {int(labels[first])}, but "
            f"class numbers must lie in [0, {config.num_classes}); set `num_classes` to what the data hold "
            "or correct the data.",
            column=config.label_column,
            sample_id=int(ids[first]),
            label=int(labels[first]),
        )
    return labels


def _pixels(images: Any, device: "torch.device") -> "torch.Tensor":
    import torch

    tensor = images if isinstance(images, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(images))
    # Seen as (n, 3, h, w), the decoder's (n, h, w, 3) is already channels_last: nothing is copied but to the device.
    return tensor.to(device, non_blocking=True).permute(0, 3, 1, 2).to(torch.float32).div_(255.0)


def _normalised(pixels: "torch.Tensor") -> "torch.Tensor":
    mean = pixels.new_tensor(MEAN).view(1, 3, 1, 1)
    std = pixels.new_tensor(STD).view(1, 3, 1, 1)
    return (pixels - mean) / std


def _laid_out(pixels: "torch.Tensor", *, channels_last: bool) -> "torch.Tensor":
    import torch

    return pixels.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def _tensor(array: NDArray[Any], device: "torch.device") -> "torch.Tensor":
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _int64(values: Any) -> NDArray[np.int64]:
    # np.asarray also takes a CPU tensor, without a copy.
    return np.asarray(values).astype(np.int64, copy=False).reshape(-1)
