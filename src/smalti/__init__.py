"""Smalti: Spark to Mosaic Data Shards to PyTorch.

The public names, imported on first use: `import smalti` itself imports neither torch, pyspark, pyarrow nor numpy. To
read the code, begin with `dataset.streaming`; modules in this folder are used by several packages.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "CacheOptions": "smalti.cache",
    "CommitConflict": "smalti.errors",
    "CopyOptions": "smalti.exchange",
    "Cursor": "smalti.cursor",
    "DecodeImages": "smalti.images",
    "LocalDataset": "smalti.torch",
    "MDSWriter": "smalti.writer",
    "Manifest": "smalti.catalog",
    "OrderOptions": "smalti.dataset",
    "PurgeOptions": "smalti.writer",
    "SmaltiError": "smalti.errors",
    "Stream": "smalti.stream",
    "StreamingDataLoader": "smalti.torch",
    "StreamingDataset": "smalti.torch",
    "World": "smalti.world",
    "add_columns": "smalti.spark",
    "compact": "smalti.writer",
    "convert": "smalti.conversion",
    "copy_version": "smalti.exchange",
    "dataframe_to_mds": "smalti.spark",
    "delete": "smalti.writer",
    "diagnose": "smalti.diagnosis",
    "diff": "smalti.catalog",
    "export": "smalti.exporting",
    "drop_columns": "smalti.spark",
    "forecast_epoch": "smalti.dataset.forecast",
    "head": "smalti.inspection",
    "history": "smalti.catalog",
    "info": "smalti.inspection",
    "load_manifest": "smalti.catalog",
    "measure_reading": "smalti.diagnosis",
    "merge_index": "smalti.catalog",
    "open_dataset": "smalti.dataset",
    "open_store": "smalti.storage",
    "plan_epoch": "smalti.order",
    "preview": "smalti.inspection",
    "register_encoding": "smalti.format",
    "reshard_files": "smalti.spark",
    "reshard_images": "smalti.spark",
    "rollback": "smalti.catalog",
    "run_cost": "smalti.dataset.forecast",
    "stats": "smalti.inspection",
    "sync": "smalti.exchange",
    "tag": "smalti.catalog",
    "tags": "smalti.catalog",
    "untag": "smalti.catalog",
    "vacuum": "smalti.catalog",
    "verify": "smalti.catalog",
    "write_index": "smalti.catalog",
}

# Used instead if torch is not installed: the same datasets without torch's base classes.
_WITHOUT_TORCH = {"LocalDataset": "smalti.dataset.local", "StreamingDataset": "smalti.dataset"}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - all of them are strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'smalti' has no attribute {name!r}")
    home = _HOMES[name]
    if name in _WITHOUT_TORCH and find_spec("torch") is None:
        home = _WITHOUT_TORCH[name]
    value = import_module("smalti.extras").import_attribute(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
