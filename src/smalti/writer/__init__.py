"""Writers without Spark: samples in, a published version out; `compact`, to merge small shards; `delete`, of samples.

Cutting and encoding shards is in `smalti.format.writing`, publishing in `smalti.catalog.publishing`, writing DataFrames
in `smalti.spark.writing`. Read `writers` first, then `uploader`.
"""

from smalti.writer.compact import compact
from smalti.writer.delete import delete
from smalti.writer.purge import DeletionReport, PurgeOptions, PurgeReport
from smalti.writer.uploader import NoSamples, ShardUploader, UploadOptions
from smalti.writer.writers import (
    MDSWriter,
    VersionWriter,
    WriterOptions,
)

__all__ = [
    "DeletionReport",
    "MDSWriter",
    "NoSamples",
    "PurgeOptions",
    "PurgeReport",
    "ShardUploader",
    "UploadOptions",
    "VersionWriter",
    "WriterOptions",
    "compact",
    "delete",
]
