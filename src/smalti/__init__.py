"""Smalti: Spark to Mosaic Data Shards to PyTorch.

The public names, loaded when first used: `import smalti` itself imports neither torch, pyspark, pyarrow nor numpy.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "CommitConflict": "smalti.errors",
    "Cursor": "smalti.cursor",
    "MDSWriter": "smalti.writer",
    "Manifest": "smalti.catalog",
    "SmaltiError": "smalti.errors",
    "StreamingDataLoader": "smalti.torch",
    "StreamingDataset": "smalti.torch",
    "World": "smalti.world",
    "dataframe_to_mds": "smalti.spark",
    "history": "smalti.catalog",
    "load_manifest": "smalti.catalog",
    "open_dataset": "smalti.dataset",
    "open_store": "smalti.storage",
    "plan_epoch": "smalti.order",
    "rollback": "smalti.catalog",
    "verify": "smalti.catalog",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - all of them are strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'smalti' has no attribute {name!r}")
    home = _HOMES[name]
    if name == "StreamingDataset" and find_spec("torch") is None:
        home = "smalti.dataset"  # the same dataset, without torch's base class
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
