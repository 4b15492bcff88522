"""A run worker of a training and a Spark step, both endless; run as a program by test_killed_run_worker."""

import json
import time
from pathlib import Path

import dagster as dg

from assets.trained_model import trained_model
from pipelines.deployments import detect_resources
from resources.spark import SparkResource


class Marker(dg.Config):
    """Where the Spark task says that it runs."""

    path: str


@dg.asset(pool="spark")
def endless_rows(config: Marker, spark: SparkResource) -> None:
    """Never comes back from Spark."""
    path = config.path

    def sleep(_: object) -> None:
        Path(path).touch()
        time.sleep(600)

    with spark.session() as session:
        session.sparkContext.parallelize([0], 1).foreach(sleep)


def endless_job() -> dg.JobDefinition:
    """Both steps at the same time, each in a process of its own, on the deployment's resources."""
    return dg.Definitions(
        assets=[trained_model, endless_rows],
        jobs=[dg.define_asset_job("endless_job")],
        resources=detect_resources(),
        executor=dg.multiprocess_executor.configured({"max_concurrent": 2}),
    ).resolve_job_def("endless_job")


def main(home: str, run_config: str) -> None:
    """What a run worker does, in the main thread of its process."""
    with dg.DagsterInstance.from_config(home) as instance:
        dg.execute_job(dg.reconstructable(endless_job), instance, run_config=json.loads(run_config))
