"""The entry of the code location: assets, checks, jobs, schedule, sensors and this deployment's resources."""

import dagster as dg

from assets import mds_shards, preprocessed_images, raw_images, trained_model
from pipelines.deployments import detect_resources
from pipelines.jobs import everything_job, reshard_job, train_job
from pipelines.schedules import nightly_reshard_schedule
from pipelines.sensors import reshard_on_new_images_sensor, train_on_new_version_sensor

_STAGES = [raw_images, preprocessed_images, mds_shards, trained_model]

defs = dg.Definitions(
    assets=dg.load_assets_from_modules(_STAGES),
    asset_checks=dg.load_asset_checks_from_modules(_STAGES),
    jobs=[reshard_job, train_job, everything_job],
    schedules=[nightly_reshard_schedule],
    sensors=[train_on_new_version_sensor, reshard_on_new_images_sensor],
    resources=detect_resources(),
    # One step at a time, each in a fresh process: two Spark drivers or trainers at once would fight for the machine.
    executor=dg.multiprocess_executor.configured({"max_concurrent": 1}),
)
