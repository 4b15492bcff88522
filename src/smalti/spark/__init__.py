"""Spark: prepare a folder of images, write any DataFrame as a shard set, and keep a set up to date with its files.

`session` and `tasks` start Spark and run Python on its executors; `columns` translates its types; `writing` is
`dataframe_to_mds`; `lineage` identifies a DataFrame's source; `reshard` and `add_columns` make new versions that reuse
the shards of the last one; `prepared` stores prepared images. How columns are stored, and the steps of a write, are in
`smalti.writer.tables`. Reading shard sets needs no Spark and is in `dataset`. Spark is imported only when a function
that needs it is called. Read `writing/dataframe.py` first.
"""

from smalti.java import detect_java
from smalti.sources.archive import FLOWER_PHOTOS, ArchiveLimits, describe_archive, fetch_archive, is_archive
from smalti.sources.image_folder import ImageFile, ImageFolder, list_images
from smalti.spark.add_columns import add_columns, drop_columns
from smalti.spark.prepare import PrepareOptions, prepare_images
from smalti.spark.prepared.rows import read_prepared
from smalti.spark.prepared.table import PreparedFiles, PreparedTable, load_prepared, prepared_files
from smalti.spark.prepared.update import PreparedUpdate, find_prepared, update_prepared
from smalti.spark.reshard import SourceFile, reshard_files
from smalti.spark.reshard_images import reshard_images
from smalti.spark.session import SparkOptions, build_session, hadoop_settings, register
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.writer.tables.transform import Transform

__all__ = [
    "FLOWER_PHOTOS",
    "ArchiveLimits",
    "ImageFile",
    "ImageFolder",
    "PrepareOptions",
    "PreparedFiles",
    "PreparedTable",
    "PreparedUpdate",
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
    "find_prepared",
    "hadoop_settings",
    "load_prepared",
    "prepare_images",
    "prepared_files",
    "read_prepared",
    "register",
    "reshard_files",
    "reshard_images",
    "update_prepared",
]
