"""The entry of the code location: every data set below `defs/`, and the resources and executor of this deployment."""

import warnings
from pathlib import Path

import dagster as dg

from resources import executor_of_runs, resources_of_stage
from smalti_dagster.automation.failure import build_failure_sensor
from smalti_dagster.jobs import build_storage_job
from smalti_dagster.resources.deployment import has_channels

# Dagster's own, about the checks of every component.
warnings.filterwarnings("ignore", message="Parameter `execution_type` of function `AssetsDefinition.__init__`")


@dg.definitions
def defs() -> dg.Definitions:
    """Return all data sets, the job that probes the storage of all of them, and what they share."""
    loaded = dg.load_from_defs_folder(path_within_project=Path(__file__))
    return dg.Definitions.merge(loaded, dg.Definitions(jobs=[build_storage_job(loaded)]), deployment())


def deployment() -> dg.Definitions:
    """Return what all data sets share."""
    return dg.Definitions(
        resources=resources_of_stage(),
        sensors=[build_failure_sensor(is_on=has_channels())],
        executor=executor_of_runs(),
    )
