"""The entry of the code location: every declared data set below `defs/`, and the resources of this stage."""

import warnings
from pathlib import Path

import dagster as dg

from resources import resources_of_stage
from smalti_dagster.automation.failure import build_failure_sensor
from smalti_dagster.jobs import build_storage_job
from smalti_dagster.resources.deployment import has_channels
from smalti_dagster.runs.worker import run_bound_executor

# Dagster's own, about the checks of every component.
warnings.filterwarnings("ignore", message="Parameter `execution_type` of function `AssetsDefinition.__init__`")


def deployment() -> dg.Definitions:
    """Return what all data sets share."""
    return dg.Definitions(
        resources=resources_of_stage(),
        sensors=[build_failure_sensor(is_on=has_channels())],
        # One step at a time, each in a fresh process: two Spark drivers or trainers at once would fight for the
        # machine.
        executor=run_bound_executor.configured({"max_concurrent": 1}),
    )


def declared_sets() -> dg.Definitions:
    """Return the definitions of every declared data set, and the job that probes the storage of all of them."""
    loaded = dg.load_from_defs_folder(path_within_project=Path(__file__))
    return dg.Definitions.merge(loaded, dg.Definitions(jobs=[build_storage_job(loaded)]))


defs = dg.Definitions.merge(declared_sets(), deployment())
