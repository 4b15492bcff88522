"""The stages of this deployment: the address of the data, Spark, and the processes that train.

`SMALTI_ROOT` names the store of a stage, whose kind follows from the address (`resources.storage`):

    /mnt/training                              a folder on this machine, or one that all machines mount
    s3://bucket/prefix                         S3, or a compatible service
    gs://bucket/prefix                         Google Cloud Storage
    abfs://container/prefix                    Azure
    dbfs:/Volumes/catalog/schema/volume        Unity Catalog volume

`SMALTI_SPARK_MASTER` names another Spark than that of a stage, or `SMALTI_DATABRICKS` a cluster that stages run on.
"""

from collections.abc import Mapping
from pathlib import Path

from smalti_dagster.resources.deployment import Stage

REPOSITORY = Path(__file__).resolve().parents[1]

STAGES: Mapping[str, Stage] = {
    "local": Stage(
        root=str(REPOSITORY / "data"),  # unless SMALTI_ROOT is set
        folder="",
        spark_master="local[*]",
        launcher="inline",  # trains in the process of the step
        num_processes=1,
    ),
    "staging": Stage(
        root=None,  # SMALTI_ROOT must be set
        folder="stage-staging",  # below it, so that stages with the same root do not mix
        spark_master="local[*]",
        launcher="inline",
        num_processes=1,
    ),
    "production": Stage(
        root=None,
        folder="stage-production",
        spark_master="local[*]",
        launcher="inline",
        num_processes=1,
    ),
}
"""The stages by the name that `SMALTI_STAGE` has."""
