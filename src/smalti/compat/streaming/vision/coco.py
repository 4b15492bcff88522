"""`StreamingCOCO`: images and the boxes and classes of the objects in them."""

from collections.abc import Callable
from typing import Any, Unpack

from smalti.compat.streaming.base.arguments import DatasetArguments, with_defaults, with_signature
from smalti.compat.streaming.base.dataset import StreamingDataset

__all__ = ["StreamingCOCO"]


class StreamingCOCO(StreamingDataset):
    """A dataset of images with boxes; a sample is (image, image id, (height, width), boxes, labels).

    Args:
        transform: Function of image, (height, width), boxes and labels that returns all four.
        arguments: Arguments of `StreamingDataset`.
    """

    transform: Callable[..., Any] | None = None  # not the engine's option of this name, which takes whole samples

    @with_signature
    def __init__(self, *, transform: Callable[..., Any] | None = None, **arguments: Unpack[DatasetArguments]) -> None:
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
