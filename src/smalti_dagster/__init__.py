"""Data sets in Dagster: raw data, prepared rows, shard sets and trained models as assets, from one declaration each.

`DataSet` is the component that a `defs.yaml` names, `Deployment` the one that holds the storage, Spark and trainer of a
project. The other names are the building blocks of which the component is made, for use in Python. The sections of a
`DataSet` are in `smalti_dagster.declaration`, the resources in `smalti_dagster.resources`. Everything here stands on
the public modules of `smalti`, which knows nothing of Dagster. Read `blocks` first, then `stages` and `models`.
"""

from typing import TYPE_CHECKING

from smalti.extras import lazy_names

if TYPE_CHECKING:
    from smalti_dagster.blocks import (
        build_definitions,
        failure_sensor,
        in_one_step,
        prepared_rows,
        raw_data,
        shard_checks,
        shard_set,
        train_sensor,
        trained_model,
        watch_sensor,
    )
    from smalti_dagster.data_set import DataSet
    from smalti_dagster.deployment import Deployment
    from smalti_dagster.handover import hand_on_images, materialized_version, open_images, open_shards

__all__ = [
    "DataSet",
    "Deployment",
    "build_definitions",
    "raw_data",
    "prepared_rows",
    "shard_set",
    "trained_model",
    "in_one_step",
    "shard_checks",
    "watch_sensor",
    "train_sensor",
    "failure_sensor",
    "materialized_version",
    "open_shards",
    "open_images",
    "hand_on_images",
]

_HOMES = dict.fromkeys(__all__, "blocks") | {
    "DataSet": "data_set",
    "Deployment": "deployment",
    "materialized_version": "handover",
    "open_shards": "handover",
    "open_images": "handover",
    "hand_on_images": "handover",
}
"""Public name to module. Names are imported on first use: a job of Databricks needs none."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
