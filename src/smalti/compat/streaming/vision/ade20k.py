"""`StreamingADE20K`: images and the classes of their pixels."""

from collections.abc import Callable
from typing import Any, Unpack

from smalti.compat.streaming.base.arguments import DatasetArguments, with_defaults, with_signature
from smalti.compat.streaming.base.dataset import StreamingDataset

__all__ = ["StreamingADE20K"]


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
        **arguments: Unpack[DatasetArguments],
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
