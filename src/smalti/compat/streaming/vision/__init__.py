"""Datasets of images that MosaicML defines; the conversion scripts are in `convert`. Read `base` first."""

from smalti.compat.streaming.lazy import lazy_package

__all__ = ["StreamingADE20K", "StreamingCIFAR10", "StreamingCOCO", "StreamingImageNet"]

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "StreamingADE20K": "ade20k",
        "StreamingCIFAR10": "cifar10",
        "StreamingCOCO": "coco",
        "StreamingImageNet": "imagenet",
    },
    ("ade20k", "base", "cifar10", "coco", "convert", "imagenet"),
)
