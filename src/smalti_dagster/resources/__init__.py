"""The resources of a project: where its data are, its Spark, its way to train, and its channels for failures.

A project gives them to its `Definitions` under the keys of `KEYS`; what it leaves out follows from the environment
(`deployment`). They hold configuration and return objects of the library; nothing here takes long to import. Read
`storage` first.

Examples:
    ```python
    resources = {
        "smalti_storage": S3Storage(root="s3://bucket/prefix", aws_secret_access_key=dg.EnvVar("TRAINING_SECRET")),
        "smalti_spark": SparkResource(master="local[8]", driver_memory="8g"),
        "smalti_trainer": TrainerResource(run_root="s3://bucket/prefix/runs", launcher="processes", num_processes=2),
    }
    ```
"""

from typing import TYPE_CHECKING

from smalti.extras import lazy_names

if TYPE_CHECKING:
    from smalti_dagster.resources.binding import KEYS
    from smalti_dagster.resources.databricks.compute import DatabricksResource
    from smalti_dagster.resources.notifications import NotificationsResource
    from smalti_dagster.resources.spark import SparkResource
    from smalti_dagster.resources.storage import (
        AzureAnonymous,
        AzureConnectionString,
        AzureDefaultCredential,
        AzureKey,
        AzureSasToken,
        AzureStorage,
        FsspecStorage,
        GcsStorage,
        LocalStorage,
        OciStorage,
        S3Storage,
        StorageResource,
        VolumesStorage,
    )
    from smalti_dagster.resources.training import TrainerResource

__all__ = [
    "KEYS",
    "StorageResource",
    "LocalStorage",
    "S3Storage",
    "GcsStorage",
    "AzureStorage",
    "AzureKey",
    "AzureSasToken",
    "AzureConnectionString",
    "AzureDefaultCredential",
    "AzureAnonymous",
    "OciStorage",
    "VolumesStorage",
    "FsspecStorage",
    "SparkResource",
    "DatabricksResource",
    "TrainerResource",
    "NotificationsResource",
]

_HOMES = dict.fromkeys(__all__, "storage") | {
    "KEYS": "binding",
    "SparkResource": "spark",
    "DatabricksResource": "databricks.compute",
    "TrainerResource": "training",
    "NotificationsResource": "notifications",
}
"""Public name to module. Names are imported on first use: a job of Databricks needs none."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
