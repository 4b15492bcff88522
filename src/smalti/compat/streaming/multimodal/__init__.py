"""Datasets of videos that MosaicML defines, in `webvid`; there are no scripts that crawl videos."""

from typing import TYPE_CHECKING

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming.multimodal import webvid as webvid
    from smalti.compat.streaming.multimodal.webvid import StreamingInsideWebVid as StreamingInsideWebVid
    from smalti.compat.streaming.multimodal.webvid import StreamingOutsideDTWebVid as StreamingOutsideDTWebVid
    from smalti.compat.streaming.multimodal.webvid import StreamingOutsideGIWebVid as StreamingOutsideGIWebVid

__all__ = ["StreamingInsideWebVid", "StreamingOutsideDTWebVid", "StreamingOutsideGIWebVid"]

__getattr__, __dir__ = lazy_package(__name__, dict.fromkeys(__all__, "webvid"), ("webvid",))
