"""CSV, TSV and XSV shards: their readers, writers and encodings, each name imported on first use."""

from typing import TYPE_CHECKING

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming.base.format.xsv import encodings as encodings
    from smalti.compat.streaming.base.format.xsv import reader as reader
    from smalti.compat.streaming.base.format.xsv import writer as writer
    from smalti.compat.streaming.base.format.xsv.reader import CSVReader as CSVReader
    from smalti.compat.streaming.base.format.xsv.reader import TSVReader as TSVReader
    from smalti.compat.streaming.base.format.xsv.reader import XSVReader as XSVReader
    from smalti.compat.streaming.base.format.xsv.writer import CSVWriter as CSVWriter
    from smalti.compat.streaming.base.format.xsv.writer import TSVWriter as TSVWriter
    from smalti.compat.streaming.base.format.xsv.writer import XSVWriter as XSVWriter

__all__ = ["CSVReader", "CSVWriter", "TSVReader", "TSVWriter", "XSVReader", "XSVWriter"]

__getattr__, __dir__ = lazy_package(
    __name__,
    {f"{kind}{role}": role.lower() for kind in ("CSV", "TSV", "XSV") for role in ("Reader", "Writer")},
    ("encodings", "reader", "writer"),
)
