"""MosaicML Streaming's interface, so that code written for it needs no other change than its import.

Modules and names are those of `streaming` 0.13, defaults too. The work is done by the packages below: this one
translates arguments, attributes and exceptions. `docs/mosaicml.md` lists the deliberate differences. Read
`base.dataset` first.
"""

from typing import TYPE_CHECKING

from smalti.compat.paths import lazy_package, serve

if TYPE_CHECKING:
    from smalti.compat.streaming import multimodal as multimodal
    from smalti.compat.streaming import text as text
    from smalti.compat.streaming import vision as vision
    from smalti.compat.streaming.alias import install as install
    from smalti.compat.streaming.alias import uninstall as uninstall
    from smalti.compat.streaming.base import CSVWriter as CSVWriter
    from smalti.compat.streaming.base import JSONWriter as JSONWriter
    from smalti.compat.streaming.base import LocalDataset as LocalDataset
    from smalti.compat.streaming.base import MDSWriter as MDSWriter
    from smalti.compat.streaming.base import Stream as Stream
    from smalti.compat.streaming.base import StreamingDataLoader as StreamingDataLoader
    from smalti.compat.streaming.base import StreamingDataset as StreamingDataset
    from smalti.compat.streaming.base import TSVWriter as TSVWriter
    from smalti.compat.streaming.base import XSVWriter as XSVWriter

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
    __name__, {**dict.fromkeys(__all__[:-3], "base"), "install": "alias", "uninstall": "alias"}
)
serve(__name__, "_version")
