"""Writing shard sets: samples in, uploaded and published shards out. Bytes are made in `smalti.format`."""

from smalti.writer.compact import compact
from smalti.writer.mds import MDSWriter
from smalti.writer.text import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from smalti.writer.uploader import ShardUploader, UploadOptions

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "MDSWriter",
    "ShardUploader",
    "TSVWriter",
    "UploadOptions",
    "XSVWriter",
    "compact",
]
