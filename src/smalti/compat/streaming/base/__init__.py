"""The modules of `streaming.base` under the same names, each imported on first use; read `dataset` first."""

from smalti.compat.streaming.lazy import lazy_package

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
