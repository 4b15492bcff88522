"""A code location with a watched folder of photos, its shards, and a tiny model that is trained on each new version.

Sensors look every second. A training fails while the file `broken` lies below the root.
"""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from smalti_dagster import build_definitions
from smalti_dagster.automation.training import build_train_sensor
from smalti_dagster.declaration import (
    Automation,
    Checks,
    Declaration,
    Image,
    Prepare,
    Shards,
    Source,
    Split,
    Train,
    Watch,
)
from smalti_dagster.resources.deployment import detect_resources

DECLARED = Declaration(
    name="photos",
    source=Source(folder=os.environ.get("SMALTI_TEST_PHOTOS", "photos")),
    prepare=Prepare(image=Image(size=16)),
    split=Split(validation=0.25),
    shards=Shards(size_limit="3kb"),
    train=Train(architecture=f"{__name__}:model", epochs=1, batch_size=4, launcher="inline"),
    checks=Checks(min_accuracy=0.0, max_accuracy_drop=1.0),  # any model is good enough, and compared
    automation=Automation(watch=Watch(quiet_seconds=1, interval_seconds=1), train_on_new_version=False),
)


def model(config: Any) -> Any:
    """Return a model of three layers, unless the file `broken` is there."""
    from tests.torch.train.tiny_models import convolution

    if Path(os.environ["SMALTI_ROOT"], "broken").exists():
        raise RuntimeError("the model's own fault 4711")
    return convolution(config)


defs = dg.Definitions.merge(
    build_definitions(DECLARED),
    dg.Definitions(
        sensors=[build_train_sensor(DECLARED, interval_seconds=1)],
        resources=detect_resources(),
        executor=dg.in_process_executor,
    ),
)
