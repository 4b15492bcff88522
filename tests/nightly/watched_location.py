"""A code location with the watch sensor of a declared folder; its job only reads the raw data, which needs no Spark."""

import os

import dagster as dg

from assets.declaration import Automation, Declaration, Source, Watch
from assets.stages.data import build_data
from assets.stages.source import build_source
from pipelines.automation.watch import build_watch_sensor
from resources.spark import SparkResource
from resources.storage import LocalStorage

WATCH = Watch(quiet_seconds=1, interval_seconds=1)
DECLARED = Declaration(
    name="watched", source=Source(folder=os.environ["WATCHED_FOLDER"]), automation=Automation(watch=WATCH)
)

defs = dg.Definitions(
    assets=[build_source(DECLARED), build_data(DECLARED)],
    jobs=[dg.define_asset_job("watched_reshard_job", selection=dg.AssetSelection.assets(DECLARED.key("raw")))],
    sensors=[build_watch_sensor(DECLARED, WATCH)],
    resources={"storage": LocalStorage(root=os.environ["SMALTI_ROOT"]), "spark": SparkResource()},
    executor=dg.in_process_executor,
)
