"""Formats of shards: MDS, JSON, CSV, TSV and XSV; the writers are imported on first use.

`reader_from_json` returns the reader of a shard from its entry in an index file.
"""

from typing import TYPE_CHECKING, Any

from smalti.compat.streaming.base.format.base.reader import FileInfo, Reader
from smalti.compat.streaming.base.format.index import get_index_basename
from smalti.compat.streaming.base.format.json.reader import JSONReader
from smalti.compat.streaming.base.format.mds.reader import MDSReader
from smalti.compat.streaming.base.format.xsv.reader import CSVReader, TSVReader, XSVReader
from smalti.compat.streaming.errors import EntryError
from smalti.compat.streaming.lazy import lazy_package
from smalti.format.sizes import VERSION

if TYPE_CHECKING:
    from smalti.compat.streaming.base.format import base as base
    from smalti.compat.streaming.base.format import index as index
    from smalti.compat.streaming.base.format import json as json
    from smalti.compat.streaming.base.format import mds as mds
    from smalti.compat.streaming.base.format import xsv as xsv
    from smalti.compat.streaming.base.format.json.writer import JSONWriter as JSONWriter
    from smalti.compat.streaming.base.format.mds.writer import MDSWriter as MDSWriter
    from smalti.compat.streaming.base.format.xsv.writer import CSVWriter as CSVWriter
    from smalti.compat.streaming.base.format.xsv.writer import TSVWriter as TSVWriter
    from smalti.compat.streaming.base.format.xsv.writer import XSVWriter as XSVWriter

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

_readers: dict[str, type[Reader]] = {
    "csv": CSVReader,
    "json": JSONReader,
    "mds": MDSReader,
    "tsv": TSVReader,
    "xsv": XSVReader,
}
"""Name of a format in index files to the class of its reader."""

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "CSVWriter": "xsv.writer",
        "JSONWriter": "json.writer",
        "MDSWriter": "mds.writer",
        "TSVWriter": "xsv.writer",
        "XSVWriter": "xsv.writer",
    },
    ("base", "index", "json", "mds", "xsv"),
)


def reader_from_json(dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
    """Return the reader of a shard.

    Args:
        dirname: folder of the set.
        split: folder of the split below it, if any.
        obj: the shard's entry in the index.

    Raises:
        EntryError: the entry is of another version, or of an unknown format.
        ValueError: a file's name is unsafe.
    """
    if obj["version"] != VERSION:
        raise EntryError(f"Unsupported streaming data version: {obj['version']}. Expected version {VERSION}.")
    kind = obj["format"]
    if kind not in _readers:
        raise EntryError(f"Unsupported data format: {kind!r:.80}. Expected one of {', '.join(_readers)}.")
    return _readers[kind].from_json(dirname, split, obj)
