"""Spark: prepare a folder of images, write any DataFrame as a shard set, and keep a set up to date with its files.

`session` and `tasks` start Spark and run Python on its executors; `writing` translates types and is `dataframe_to_mds`;
`mds` is the data source `format("mds")`; `lineage` identifies a DataFrame's source; `reshard` and `added_columns` make
new versions that reuse the shards of the last one; `prepared` stores prepared images. How columns are stored, and the
steps of a write, are in `smalti.writer.tables`. Reading shard sets needs no Spark and is in `dataset`. Names are
imported on first use, and Spark only when a function that needs it is called. Read `writing/dataframe.py` first.
"""

from typing import TYPE_CHECKING

from smalti.extras import lazy_names

if TYPE_CHECKING:
    from smalti.java import detect_java as detect_java
    from smalti.sources.archive import FLOWER_PHOTOS as FLOWER_PHOTOS
    from smalti.sources.archive import ArchiveLimits as ArchiveLimits
    from smalti.sources.archive import describe_archive as describe_archive
    from smalti.sources.archive import fetch_archive as fetch_archive
    from smalti.sources.archive import is_archive as is_archive
    from smalti.sources.image_folder import ImageFile as ImageFile
    from smalti.sources.image_folder import ImageFolder as ImageFolder
    from smalti.sources.image_folder import list_images as list_images
    from smalti.spark.added_columns import add_columns as add_columns
    from smalti.spark.added_columns import drop_columns as drop_columns
    from smalti.spark.mds import register as register
    from smalti.spark.prepare import PrepareOptions as PrepareOptions
    from smalti.spark.prepare import prepare_images as prepare_images
    from smalti.spark.prepared.rows import read_prepared as read_prepared
    from smalti.spark.prepared.table import PreparedFiles as PreparedFiles
    from smalti.spark.prepared.table import PreparedTable as PreparedTable
    from smalti.spark.prepared.table import load_prepared as load_prepared
    from smalti.spark.prepared.table import prepared_files as prepared_files
    from smalti.spark.prepared.update import PreparedUpdate as PreparedUpdate
    from smalti.spark.prepared.update import find_prepared as find_prepared
    from smalti.spark.prepared.update import update_prepared as update_prepared
    from smalti.spark.reshard import SourceFile as SourceFile
    from smalti.spark.reshard import reshard_files as reshard_files
    from smalti.spark.reshard import reshard_images as reshard_images
    from smalti.spark.session import SparkOptions as SparkOptions
    from smalti.spark.session import build_session as build_session
    from smalti.spark.session import hadoop_settings as hadoop_settings
    from smalti.spark.writing.dataframe import dataframe_to_mds as dataframe_to_mds
    from smalti.writer.tables.transform import Transform as Transform

_NAMES = {
    ".java": ("detect_java",),
    ".sources.archive": ("FLOWER_PHOTOS", "ArchiveLimits", "describe_archive", "fetch_archive", "is_archive"),
    ".sources.image_folder": ("ImageFile", "ImageFolder", "list_images"),
    ".writer.tables.transform": ("Transform",),
    "added_columns": ("add_columns", "drop_columns"),
    "mds": ("register",),
    "prepare": ("PrepareOptions", "prepare_images"),
    "prepared.rows": ("read_prepared",),
    "prepared.table": ("PreparedFiles", "PreparedTable", "load_prepared", "prepared_files"),
    "prepared.update": ("PreparedUpdate", "find_prepared", "update_prepared"),
    "reshard": ("SourceFile", "reshard_files", "reshard_images"),
    "session": ("SparkOptions", "build_session", "hadoop_settings"),
    "writing.dataframe": ("dataframe_to_mds",),
}
"""Public names by the module that defines them."""
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__all__ = [*sorted(_HOMES)]  # noqa: PLE0604 -- all of them are strings

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
