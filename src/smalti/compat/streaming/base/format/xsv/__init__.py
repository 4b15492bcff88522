"""CSV, TSV and XSV shards: their readers, writers and encodings, each name imported on first use."""

from smalti.compat.streaming.lazy import lazy_package

__all__ = ["CSVReader", "CSVWriter", "TSVReader", "TSVWriter", "XSVReader", "XSVWriter"]

__getattr__, __dir__ = lazy_package(
    __name__,
    {f"{kind}{role}": role.lower() for kind in ("CSV", "TSV", "XSV") for role in ("Reader", "Writer")},
    ("encodings", "reader", "writer"),
)
