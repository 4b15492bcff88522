"""Spark's side: from a folder of images to prepared rows, and from any DataFrame to a version of a shard set.

Spark is imported when a function that needs it is called, never before.
"""

from smalti.sources.archive import FLOWER_PHOTOS, ArchiveLimits, describe_archive, fetch_archive, is_archive
from smalti.sources.image_folder import ImageFile, ImageFolder, list_images
from smalti.spark.incremental.add_columns import add_columns, drop_columns
from smalti.spark.incremental.images import reshard_images
from smalti.spark.incremental.reshard import reshard_files
from smalti.spark.incremental.source_table import SourceFile
from smalti.spark.prepare import PrepareOptions, prepare_images
from smalti.spark.prepared.store import PreparedReport, load_report, read_prepared, write_prepared
from smalti.spark.session import SparkOptions, build_session, detect_java
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.spark.writing.transform import Transform

__all__ = [
    "FLOWER_PHOTOS",
    "ArchiveLimits",
    "ImageFile",
    "ImageFolder",
    "PrepareOptions",
    "PreparedReport",
    "SourceFile",
    "SparkOptions",
    "Transform",
    "add_columns",
    "build_session",
    "dataframe_to_mds",
    "detect_java",
    "drop_columns",
    "describe_archive",
    "fetch_archive",
    "is_archive",
    "list_images",
    "load_report",
    "prepare_images",
    "read_prepared",
    "reshard_files",
    "reshard_images",
    "write_prepared",
]
