"""Datasets of images that MosaicML defines, without its conversion scripts. Read `base` first."""

from typing import TYPE_CHECKING

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming.vision import ade20k as ade20k
    from smalti.compat.streaming.vision import base as base
    from smalti.compat.streaming.vision import coco as coco
    from smalti.compat.streaming.vision.ade20k import StreamingADE20K as StreamingADE20K
    from smalti.compat.streaming.vision.base import StreamingCIFAR10 as StreamingCIFAR10
    from smalti.compat.streaming.vision.base import StreamingImageNet as StreamingImageNet
    from smalti.compat.streaming.vision.coco import StreamingCOCO as StreamingCOCO

__all__ = ["StreamingADE20K", "StreamingCIFAR10", "StreamingCOCO", "StreamingImageNet"]

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "StreamingADE20K": "ade20k",
        "StreamingCIFAR10": "base",
        "StreamingCOCO": "coco",
        "StreamingImageNet": "base",
    },
    ("ade20k", "base", "coco"),
)
