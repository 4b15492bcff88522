"""The entry of the code location: every declared data set below `defs/`, and the resources of this deployment."""

import warnings
from pathlib import Path

import dagster as dg

from pipelines.deployments import detect_resources

# Dagster's own, about the checks of every component.
warnings.filterwarnings("ignore", message="Parameter `execution_type` of function `AssetsDefinition.__init__`")


def deployment() -> dg.Definitions:
    """Return what all data sets share."""
    return dg.Definitions(
        resources=detect_resources(),
        # One step at a time, each in a fresh process: two Spark drivers or trainers at once would fight for the
        # machine.
        executor=dg.multiprocess_executor.configured({"max_concurrent": 1}),
    )


defs = dg.Definitions.merge(dg.load_from_defs_folder(path_within_project=Path(__file__)), deployment())
