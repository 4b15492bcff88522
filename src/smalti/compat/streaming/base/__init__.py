"""The modules of `streaming.base` under the same names, each imported on first use; read `dataset` first."""

from typing import TYPE_CHECKING

from smalti.compat.streaming.lazy import lazy_package

if TYPE_CHECKING:
    from smalti.compat.streaming.base import array as array
    from smalti.compat.streaming.base import batching as batching
    from smalti.compat.streaming.base import compression as compression
    from smalti.compat.streaming.base import constant as constant
    from smalti.compat.streaming.base import converters as converters
    from smalti.compat.streaming.base import dataloader as dataloader
    from smalti.compat.streaming.base import dataset as dataset
    from smalti.compat.streaming.base import distributed as distributed
    from smalti.compat.streaming.base import format as format
    from smalti.compat.streaming.base import hashing as hashing
    from smalti.compat.streaming.base import local as local
    from smalti.compat.streaming.base import partition as partition
    from smalti.compat.streaming.base import registry_utils as registry_utils
    from smalti.compat.streaming.base import sampling as sampling
    from smalti.compat.streaming.base import shared as shared
    from smalti.compat.streaming.base import shuffle as shuffle
    from smalti.compat.streaming.base import spanner as spanner
    from smalti.compat.streaming.base import storage as storage
    from smalti.compat.streaming.base import stream as stream
    from smalti.compat.streaming.base import util as util
    from smalti.compat.streaming.base import world as world
    from smalti.compat.streaming.base.dataloader import StreamingDataLoader as StreamingDataLoader
    from smalti.compat.streaming.base.dataset import StreamingDataset as StreamingDataset
    from smalti.compat.streaming.base.format.json.writer import JSONWriter as JSONWriter
    from smalti.compat.streaming.base.format.mds.writer import MDSWriter as MDSWriter
    from smalti.compat.streaming.base.format.xsv.writer import CSVWriter as CSVWriter
    from smalti.compat.streaming.base.format.xsv.writer import TSVWriter as TSVWriter
    from smalti.compat.streaming.base.format.xsv.writer import XSVWriter as XSVWriter
    from smalti.compat.streaming.base.local import LocalDataset as LocalDataset
    from smalti.compat.streaming.base.stream import Stream as Stream

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "XSVWriter",
]

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "CSVWriter": "format.xsv.writer",
        "JSONWriter": "format.json.writer",
        "LocalDataset": "local",
        "MDSWriter": "format.mds.writer",
        "Stream": "stream",
        "StreamingDataLoader": "dataloader",
        "StreamingDataset": "dataset",
        "TSVWriter": "format.xsv.writer",
        "XSVWriter": "format.xsv.writer",
    },
    (
        "array",
        "batching",
        "compression",
        "constant",
        "converters",
        "dataloader",
        "dataset",
        "distributed",
        "format",
        "hashing",
        "local",
        "partition",
        "registry_utils",
        "sampling",
        "shared",
        "shuffle",
        "spanner",
        "storage",
        "stream",
        "util",
        "world",
    ),
)
