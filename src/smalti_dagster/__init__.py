"""Data sets in Dagster: raw data, prepared rows, shard sets and trained models as assets, from one declaration each.

`DataSet` is the component that a `defs.yaml` names, `Deployment` the one that holds the storage, Spark and trainer of a
project. Everything here stands on the public modules of `smalti`, which knows nothing of Dagster. Read `data_set`
first, then `stages` and `models`.
"""

from smalti_dagster.data_set import DataSet
from smalti_dagster.deployment import Deployment

__all__ = ["DataSet", "Deployment"]
