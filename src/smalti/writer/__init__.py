"""Writers without Spark: samples in, a published version of a shard set out; and `compact`, which merges small shards.

Cutting and encoding shards is in `smalti.format.writing`, publishing in `smalti.catalog.publishing`, writing DataFrames
in `smalti.spark.writing`. Read `version` first, then `uploader`.
"""

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
