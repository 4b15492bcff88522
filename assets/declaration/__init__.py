"""The declaration of a data set: everything that decides its assets, checks, jobs, schedule and sensors.

Here: the typed fields that a `defs.yaml` holds, their validation, and the names that follow from them. Not here: what
is built from them (`assets.stages`, `pipelines.data_set`), credentials and places (`resources`). Read `data_set` first.
"""

from assets.declaration.automation import Automation, Notify, Watch
from assets.declaration.data import (
    MANIFESTS,
    PARTITION,
    Drawn,
    Image,
    Partitions,
    Prepare,
    Shards,
    Source,
    Split,
)
from assets.declaration.data_set import Checks, Declaration, Stage
from assets.declaration.training import Tracking, Train, Tuning

__all__ = [
    "MANIFESTS",
    "PARTITION",
    "Automation",
    "Checks",
    "Declaration",
    "Drawn",
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
