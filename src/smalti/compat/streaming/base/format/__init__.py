"""Formats of shards: MDS, JSON, CSV, TSV and XSV.

`reader_from_json` returns the reader of a shard from its entry in an index file.
"""

from typing import TYPE_CHECKING, Any

from smalti.compat.paths import serve
from smalti.compat.streaming.base.format.base import FileInfo, Reader
from smalti.compat.streaming.base.format.mds import MDSReader, MDSWriter
from smalti.compat.streaming.base.format.text import (
    CSVReader,
    CSVWriter,
    JSONReader,
    JSONWriter,
    TSVReader,
    TSVWriter,
    XSVReader,
    XSVWriter,
    _json_encodings,
)
from smalti.compat.streaming.errors import EntryError

if TYPE_CHECKING:
    from smalti.stream import ShardSet

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
    kind._format: kind for kind in (CSVReader, JSONReader, MDSReader, TSVReader, XSVReader)
}
"""Name of a format in index files to the class of its reader."""


def get_index_basename() -> str:
    """Return the name of the index file of a set."""
    return "index.json"


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
    kind = obj["format"]
    if kind not in _readers:
        raise EntryError(f"Unsupported data format: {kind!r:.80}. Expected one of {', '.join(_readers)}.")
    return _readers[kind].from_json(dirname, split, obj)


def readers_of(found: "ShardSet", local: str, split: str) -> list[Reader]:
    """Return the reader of each shard of a set that the engine has opened.

    Args:
        found: the set, or one split of it.
        local: folder of the set on this machine.
        split: folder of the split below it; empty for the whole set.
    """
    # The index at the root of a set with splits names files from there, and the one in a split's folder from that.
    prefix = f"{split}/" if split and any(found.manifest.partitions) else ""
    shards = (
        [each.with_names(lambda name: name.removeprefix(prefix)) for each in found.shards] if prefix else found.shards
    )
    return [reader_from_json(local, split, each.listed().to_json()) for each in shards]


serve(__name__, "index")
serve(
    __name__,
    "json",
    home=f"{__name__}.text",
    __all__=["JSONReader", "JSONWriter", "is_json_encoded", "is_json_encoding"],
    _encodings=_json_encodings,
)
serve(
    __name__,
    "xsv",
    home=f"{__name__}.text",
    __all__=[
        "CSVReader", "CSVWriter", "TSVReader", "TSVWriter", "XSVReader", "XSVWriter", "is_xsv_encoding", "xsv_decode",
        "xsv_encode",
    ],
)  # fmt: skip
serve(f"{__name__}.json", "encodings", "reader", "writer")
serve(f"{__name__}.xsv", "encodings", "reader", "writer")
