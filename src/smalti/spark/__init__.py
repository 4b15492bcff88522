"""Spark's side: from a folder of images to prepared rows, and from any DataFrame to a version of a shard set.

Spark is imported when a function that needs it is called, never before.
"""

from smalti.spark.archive import FLOWER_PHOTOS, ArchiveLimits, describe_archive, fetch_archive, is_archive
from smalti.spark.convert import dataframe_to_mds
from smalti.spark.image_folder import ImageFile, ImageFolder, list_images
from smalti.spark.incremental import reshard_files
from smalti.spark.java import detect_java
from smalti.spark.prepare import PrepareOptions, prepare_images
from smalti.spark.prepared import PreparedReport, load_report, read_prepared, write_prepared
from smalti.spark.reshard_images import reshard_images
from smalti.spark.session import SparkOptions, build_session
from smalti.spark.sidecar import add_columns, drop_columns
from smalti.spark.source_table import SourceFile
from smalti.spark.transform import Transform

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
