"""Datasets of videos that MosaicML defines, in `webvid`; there are no scripts that crawl videos."""

from smalti.compat.streaming.lazy import lazy_package

__all__ = ["StreamingInsideWebVid", "StreamingOutsideDTWebVid", "StreamingOutsideGIWebVid"]

__getattr__, __dir__ = lazy_package(__name__, dict.fromkeys(__all__, "webvid"), ("webvid",))
