"""MosaicML Streaming's interface, so that code written for it needs no other change than its import.

Modules and names are those of `streaming` 0.13, defaults too. The work is done by the packages below: this one
translates arguments, attributes and exceptions. `docs/mosaicml.md` lists the deliberate differences. Read
`base.dataset` first.
"""

from typing import TYPE_CHECKING

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming import base as base
    from smalti.compat.streaming import multimodal as multimodal
    from smalti.compat.streaming import text as text
    from smalti.compat.streaming import vision as vision
    from smalti.compat.streaming.alias import install as install
    from smalti.compat.streaming.alias import uninstall as uninstall
    from smalti.compat.streaming.base.dataloader import StreamingDataLoader as StreamingDataLoader
    from smalti.compat.streaming.base.dataset import StreamingDataset as StreamingDataset
    from smalti.compat.streaming.base.format.json.writer import JSONWriter as JSONWriter
    from smalti.compat.streaming.base.format.mds.writer import MDSWriter as MDSWriter
    from smalti.compat.streaming.base.format.xsv.writer import CSVWriter as CSVWriter
    from smalti.compat.streaming.base.format.xsv.writer import TSVWriter as TSVWriter
    from smalti.compat.streaming.base.format.xsv.writer import XSVWriter as XSVWriter
    from smalti.compat.streaming.base.local import LocalDataset as LocalDataset
    from smalti.compat.streaming.base.stream import Stream as Stream

__version__ = "0.13.0"

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "XSVWriter",
    "multimodal",
    "text",
    "vision",
]

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "CSVWriter": "base.format.xsv.writer",
        "JSONWriter": "base.format.json.writer",
        "LocalDataset": "base.local",
        "MDSWriter": "base.format.mds.writer",
        "Stream": "base.stream",
        "StreamingDataLoader": "base.dataloader",
        "StreamingDataset": "base.dataset",
        "TSVWriter": "base.format.xsv.writer",
        "XSVWriter": "base.format.xsv.writer",
        "install": "alias",
        "uninstall": "alias",
    },
    ("base", "multimodal", "text", "vision"),
)
