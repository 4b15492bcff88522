"""Spark: prepare a folder of images, write any DataFrame as a shard set, and keep a set up to date with its files.

`session` and `tasks` start Spark and run Python on its executors; `columns` translates its types; `writing` is
`dataframe_to_mds`; `mds` is the data source `format("mds")`; `lineage` identifies a DataFrame's source; `reshard`,
`image_set` and `added_columns` make new versions that reuse the shards of the last one; `prepared` stores prepared
images. How columns are stored, and the steps of a write, are in `smalti.writer.tables`. Reading shard sets needs no
Spark and is in `dataset`. Names are imported on first use, and Spark only when a function that needs it is called. Read
`writing/dataframe.py` first.
"""

from typing import TYPE_CHECKING

from smalti.extras import lazy_names

if TYPE_CHECKING:
    from smalti.java import detect_java
    from smalti.sources.archive import FLOWER_PHOTOS, ArchiveLimits, describe_archive, fetch_archive, is_archive
    from smalti.sources.image_folder import ImageFile, ImageFolder, list_images
    from smalti.spark.added_columns import add_columns, drop_columns
    from smalti.spark.image_set import reshard_images
    from smalti.spark.mds import register
    from smalti.spark.prepare import PrepareOptions, prepare_images
    from smalti.spark.prepared.rows import read_prepared
    from smalti.spark.prepared.table import PreparedFiles, PreparedTable, load_prepared, prepared_files
    from smalti.spark.prepared.update import PreparedUpdate, find_prepared, update_prepared
    from smalti.spark.reshard import SourceFile, reshard_files
    from smalti.spark.session import SparkOptions, build_session, hadoop_settings
    from smalti.spark.writing.dataframe import dataframe_to_mds
    from smalti.writer.tables.transform import Transform

_HOMES = {
    "ArchiveLimits": ".sources.archive",
    "FLOWER_PHOTOS": ".sources.archive",
    "ImageFile": ".sources.image_folder",
    "ImageFolder": ".sources.image_folder",
    "PrepareOptions": "prepare",
    "PreparedFiles": "prepared.table",
    "PreparedTable": "prepared.table",
    "PreparedUpdate": "prepared.update",
    "SourceFile": "reshard",
    "SparkOptions": "session",
    "Transform": ".writer.tables.transform",
    "add_columns": "added_columns",
    "build_session": "session",
    "dataframe_to_mds": "writing.dataframe",
    "describe_archive": ".sources.archive",
    "detect_java": ".java",
    "drop_columns": "added_columns",
    "fetch_archive": ".sources.archive",
    "find_prepared": "prepared.update",
    "hadoop_settings": "session",
    "is_archive": ".sources.archive",
    "list_images": ".sources.image_folder",
    "load_prepared": "prepared.table",
    "prepare_images": "prepare",
    "prepared_files": "prepared.table",
    "read_prepared": "prepared.rows",
    "register": "mds",
    "reshard_files": "reshard",
    "reshard_images": "image_set",
    "update_prepared": "prepared.update",
}
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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
