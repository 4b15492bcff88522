"""A code location with the watch sensor of a declared folder; its job reads the raw data, and makes no real shards.

So it needs no Spark.
"""

import os

import dagster as dg

from smalti_dagster.automation.watch import build_watch_sensor
from smalti_dagster.declaration import Automation, Declaration, Source, Watch
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import LocalStorage
from smalti_dagster.stages.data import build_data
from smalti_dagster.stages.source import build_source

WATCH = Watch(quiet_seconds=1, interval_seconds=1)
DECLARED = Declaration(
    name="watched", source=Source(folder=os.environ["WATCHED_FOLDER"]), automation=Automation(watch=WATCH)
)


@dg.success_hook
def report_shards(context: dg.HookContext) -> None:
    """Report that the shards were made, too."""
    context.instance.report_runless_asset_event(dg.AssetMaterialization(DECLARED.key("shards")))


RAW = dg.AssetSelection.assets(DECLARED.key("raw"))

defs = dg.Definitions(
    assets=[build_source(DECLARED), build_data(DECLARED)],
    jobs=[dg.define_asset_job("watched_reshard_job", selection=RAW, hooks={report_shards})],
    sensors=[build_watch_sensor(DECLARED, WATCH)],
    resources={"smalti_storage": LocalStorage(root=os.environ["SMALTI_ROOT"]), "smalti_spark": SparkResource()},
    executor=dg.in_process_executor,
)
