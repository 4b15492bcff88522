"""`StreamingCIFAR10`."""

from smalti.compat.streaming.vision.base import StreamingVisionDataset

__all__ = ["StreamingCIFAR10"]


class StreamingCIFAR10(StreamingVisionDataset):
    """Images and labels of CIFAR-10, as MosaicML's script writes them."""
