"""Datasets of images that MosaicML defines, without its conversion scripts. Read `StreamingVisionDataset` first.

That class is a `VisionDataset` of torchvision where that is installed. Nothing else here needs torchvision.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from smalti.compat.paths import serve
from smalti.compat.streaming.base.dataset import StreamingDataset, with_defaults, with_signature

if TYPE_CHECKING or find_spec("torchvision") is None:

    class VisionDataset:
        """Base in place of torchvision's, which is not installed."""
else:
    from torchvision.datasets import VisionDataset

__all__ = ["StreamingADE20K", "StreamingCIFAR10", "StreamingCOCO", "StreamingImageNet"]

_DTYPES = {"I": np.int32, "I;16": np.int16, "F": np.float32}
"""Number types of modes that are not bytes, as torchvision's `to_tensor` has them."""


def to_tensor(image: Any) -> torch.Tensor:
    """Return a PIL image, or an array of height, width and channels, as a tensor whose channels come first.

    Bytes become floats from 0 to 1, other numbers stay as they are: the values are those of torchvision's `to_tensor`.
    """
    if isinstance(image, np.ndarray):
        pixels = np.array(image)
    else:
        pixels = np.array(image, dtype=_DTYPES.get(image.mode, np.uint8))
        if image.mode == "1":
            pixels *= 255
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    return tensor.to(torch.get_default_dtype()).div(255) if tensor.dtype is torch.uint8 else tensor


class StandardTransform:
    """One function for the image and one for the label, called together; images become tensors by default."""

    def __init__(
        self, transform: Callable[[Any], Any] | None = None, target_transform: Callable[[Any], Any] | None = None
    ) -> None:
        self.transform = transform
        self.target_transform = target_transform

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the transformed image and label."""
        x = self.transform(x) if self.transform else to_tensor(x)
        return x, self.target_transform(y) if self.target_transform else y


class StreamingVisionDataset(StreamingDataset, VisionDataset):
    """A dataset of images and labels; a sample is the pair that `transforms` returns.

    Args:
        batch_size: Samples of a batch on one device.
        transforms: Function of image and label that returns both.
        transform: Function of the image; without it, images become tensors.
        target_transform: Function of the label.
        arguments: Arguments of `StreamingDataset`.

    Raises:
        ValueError: `transforms` is given beside one of the others.
    """

    transform: Callable[[Any], Any] | None = None  # not the engine's option of this name, which takes whole samples

    @with_signature
    def __init__(
        self,
        *,
        batch_size: int,
        transforms: Callable[[Any, Any], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        **arguments: Any,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ValueError(
                "Only transforms or transform/target_transform can be passed as an argument: they would be applied "
                "one after the other; leave one of them out"
            )
        StreamingDataset.__init__(self, **with_defaults({**arguments, "batch_size": batch_size}))
        self.transform = transform
        self.target_transform = target_transform
        self.transforms = transforms if transforms is not None else StandardTransform(transform, target_transform)

    def get_item(self, idx: int) -> Any:  # type: ignore[override]  # MosaicML's
        """Return the sample of this number: image and label, transformed."""
        sample = super().get_item(idx)
        return self.transforms(sample["x"], sample["y"])


class StreamingCIFAR10(StreamingVisionDataset):
    """Images and labels of CIFAR-10, as MosaicML's script writes them."""


class StreamingImageNet(StreamingVisionDataset):
    """Images and labels of ImageNet, as MosaicML's script writes them."""


class StreamingCOCO(StreamingDataset):
    """A dataset of images with boxes; a sample is (image, image id, (height, width), boxes, labels).

    Args:
        transform: Function of image, (height, width), boxes and labels that returns all four.
        arguments: Arguments of `StreamingDataset`.
    """

    transform: Callable[..., Any] | None = None  # not the engine's option of this name, which takes whole samples

    @with_signature
    def __init__(self, *, transform: Callable[..., Any] | None = None, **arguments: Any) -> None:
        super().__init__(**with_defaults(arguments))
        self.transform = transform

    def get_item(self, idx: int) -> Any:  # type: ignore[override]  # MosaicML's
        """Return the sample of this number; the image is RGB."""
        sample = super().get_item(idx)
        image, size = sample["img"].convert("RGB"), (sample["htot"], sample["wtot"])
        boxes, labels = sample["bbox_sizes"], sample["bbox_labels"]
        if self.transform:
            image, size, boxes, labels = self.transform(image, size, boxes, labels)
        return image, sample["img_id"], tuple(size), boxes, labels


class StreamingADE20K(StreamingDataset):
    """A dataset of images `x` and annotations `y`; a sample is the pair of both.

    Args:
        joint_transform: Function of the pair (image, annotation) that returns both; called first.
        transform: Function of the image.
        target_transform: Function of the annotation.
        arguments: Arguments of `StreamingDataset`.
    """

    transform: Callable[[Any], Any] | None = None  # not the engine's option of this name, which takes whole samples

    @with_signature
    def __init__(
        self,
        *,
        joint_transform: Callable[[tuple[Any, Any]], tuple[Any, Any]] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**with_defaults(arguments))
        self.joint_transform = joint_transform
        self.transform = transform
        self.target_transform = target_transform

    def get_item(self, idx: int) -> tuple[Any, Any]:  # type: ignore[override]  # MosaicML's
        """Return the sample of this number: image and annotation, transformed."""
        sample = super().get_item(idx)
        x, y = sample["x"], sample["y"]
        if self.joint_transform:
            x, y = self.joint_transform((x, y))
        return self.transform(x) if self.transform else x, self.target_transform(y) if self.target_transform else y


serve(__name__, "ade20k", "base", "cifar10", "coco", "imagenet")
