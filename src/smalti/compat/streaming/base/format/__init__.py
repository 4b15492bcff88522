"""Formats of shards: MDS, JSON, CSV, TSV and XSV, each name imported on first use.

`reader_from_json` returns the reader of a shard from its entry in an index file.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming.base.format.base.reader import Reader

__all__ = [
    "CSVWriter",
    "FileInfo",
    "JSONWriter",
    "MDSWriter",
    "Reader",
    "TSVWriter",
    "XSVWriter",
    "get_index_basename",
    "reader_from_json",
]

_READERS = {
    "csv": ("xsv", "CSVReader"),
    "json": ("json", "JSONReader"),
    "mds": ("mds", "MDSReader"),
    "tsv": ("xsv", "TSVReader"),
    "xsv": ("xsv", "XSVReader"),
}
"""Name of a format in index files to the folder and the class of its reader."""

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        **{name: f"{folder}.reader" for folder, name in _READERS.values()},
        **{name.replace("Reader", "Writer"): f"{folder}.writer" for folder, name in _READERS.values()},
        "FileInfo": "base.reader",
        "Reader": "base.reader",
        "get_index_basename": "index",
    },
    ("base", "index", "json", "mds", "xsv"),
)


def reader_from_json(dirname: str, split: str | None, obj: dict[str, Any]) -> "Reader":
    """Return the reader of a shard.

    Args:
        dirname: folder of the set.
        split: folder of the split below it, if any.
        obj: the shard's entry in the index.

    Raises:
        ValueError: the entry is of another version, or of an unknown format, or a file's name is unsafe.
    """
    kind = obj["format"]
    if kind not in _READERS:
        raise ValueError(f"Unsupported data format: {kind!r:.80}. Expected one of {', '.join(_READERS)}.")
    folder, name = _READERS[kind]
    reader: type[Reader] = getattr(import_module(f"{__name__}.{folder}.reader"), name)
    return reader.from_json(dirname, split, obj)
