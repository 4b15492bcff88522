"""The declaration of a data set: everything that decides its assets, checks, jobs, schedule and sensors.

Here: the typed fields that a `defs.yaml` holds, their validation, and the names that follow from them. Not here: what
is built from them (`stages`, `models`), credentials and places (`resources`). Read `data_set` first.
"""

from smalti_dagster.declaration.automation import Automation, Freshness, Notify, Watch
from smalti_dagster.declaration.data import (
    MANIFESTS,
    PARTITION,
    Image,
    Partitions,
    Prepare,
    Shards,
    Source,
    Split,
)
from smalti_dagster.declaration.data_set import Checks, Declaration, Stage
from smalti_dagster.declaration.training import Tracking, Train, Tuning

__all__ = [
    "MANIFESTS",
    "PARTITION",
    "Automation",
    "Checks",
    "Declaration",
    "Freshness",
    "Image",
    "Notify",
    "Partitions",
    "Prepare",
    "Shards",
    "Source",
    "Split",
    "Stage",
    "Tracking",
    "Train",
    "Tuning",
    "Watch",
]
