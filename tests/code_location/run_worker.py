"""A run worker of a training and a Spark step, both endless; run as a program by test_killed_run_worker."""

import json
import time
from pathlib import Path

import dagster as dg

from smalti_dagster.models.model import build_model
from smalti_dagster.resources.deployment import detect_resources
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.runs.worker import run_bound_executor
from tests.code_location.declared import FLOWERS


class Marker(dg.Config):
    """A file by which the Spark task reports that it runs."""

    path: str


@dg.asset(pool="spark")
def endless_rows(config: Marker, smalti_spark: SparkResource) -> None:
    """Never comes back from Spark."""
    path = config.path

    def sleep(_: object) -> None:
        Path(path).touch()
        time.sleep(600)

    with smalti_spark.session() as session:
        session.sparkContext.parallelize([0], 1).foreach(sleep)


def endless_job() -> dg.JobDefinition:
    """Both steps at the same time, each in a process of its own, on the deployment's resources."""
    assert FLOWERS.train is not None
    return dg.Definitions(
        assets=[build_model(FLOWERS, FLOWERS.train), endless_rows],
        jobs=[dg.define_asset_job("endless_job")],
        resources=detect_resources(),
        executor=run_bound_executor.configured({"max_concurrent": 2}),
    ).resolve_job_def("endless_job")


def main(home: str, run_config: str) -> None:
    """Run as a run worker, in the main thread of its process."""
    with dg.DagsterInstance.from_config(home) as instance:
        dg.execute_job(dg.reconstructable(endless_job), instance, run_config=json.loads(run_config))
