"""`StreamingImageNet`."""

from smalti.compat.streaming.vision.base import StreamingVisionDataset

__all__ = ["StreamingImageNet"]


class StreamingImageNet(StreamingVisionDataset):
    """Images and labels of ImageNet, as MosaicML's script writes them."""
