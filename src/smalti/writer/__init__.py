"""Writers without Spark: samples in, a published version of a shard set out; and `compact`, which merges small shards.

Cutting and encoding shards is in `smalti.format.writing`, publishing in `smalti.catalog.publishing`, writing DataFrames
in `smalti.spark.writing`. Read `writers` first, then `uploader`.
"""

from smalti.writer.compact import compact
from smalti.writer.uploader import NoSamples, ShardUploader, UploadOptions
from smalti.writer.writers import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    TSVWriter,
    VersionWriter,
    WriterOptions,
    XSVWriter,
)

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "MDSWriter",
    "NoSamples",
    "ShardUploader",
    "TSVWriter",
    "UploadOptions",
    "VersionWriter",
    "WriterOptions",
    "XSVWriter",
    "compact",
]
