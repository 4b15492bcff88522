"""Blocking checks that a project defines itself on the assets of a data set: the tag `checked` waits for them."""

from typing import Any

import dagster as dg
import pytest

from smalti.catalog import tags
from smalti_dagster.automation.training import build_train_sensor
from smalti_dagster.declaration import Stage
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.shard_tags import CHECKED
from tests.code_location.declared import FLOWERS
from tests.code_location.events import materialise
from tests.code_location.shard_sets import ALL_CHECKS, DATA, make_version, rows_of, shards

Severity = dg.AssetCheckSeverity


class Project:
    """The flowers with a blocking check of the project's own, which says what a test wants."""

    def __init__(self, instance: dg.DagsterInstance, storage: StorageResource, stage: Stage) -> None:
        self.instance, self.storage = instance, storage
        self.result: dg.AssetCheckResult | None = dg.AssetCheckResult(passed=True)

        @dg.asset_check(asset=FLOWERS.key(stage), name="is_liked", blocking=True)
        def is_liked() -> dg.AssetCheckResult:
            if self.result is None:
                raise ValueError("it cannot be evaluated")
            return self.result

        own = [dg.AssetCheckKey(FLOWERS.key(stage), "is_liked")]
        shipped = [dg.AssetCheckKey(FLOWERS.key("shards"), name) for name in ALL_CHECKS]
        jobs = [
            dg.define_asset_job(name, selection=dg.AssetSelection.checks(*keys))
            for name, keys in {"own": own, "all": [*shipped, *own]}.items()
        ]
        self.sensor = build_train_sensor(FLOWERS)
        self.defs = dg.Definitions(
            assets=[DATA],
            asset_checks=[is_liked],
            jobs=jobs,
            resources={"smalti_storage": storage, "smalti_spark": SparkResource()},
        )

    def publish(self, rows: int) -> None:
        for stage in ("raw", "prepared"):
            materialise(self.instance, stage, {})
        make_version(self.instance, self.storage, {"train": rows_of(rows, rows)})

    def execute(self, job: str) -> None:
        self.defs.resolve_job_def(job).execute_in_process(instance=self.instance, raise_on_error=False)

    @property
    def checked(self) -> int | None:
        return tags(shards(self.storage)).get(CHECKED)

    def tick(self) -> dg.SensorResult:
        """A tick of the training sensor."""
        with dg.build_sensor_context(instance=self.instance, definitions=self.defs) as context:
            result: Any = self.sensor.evaluate_tick(context)
        return result


@pytest.mark.parametrize(
    "stage",
    ["raw", pytest.param("prepared", marks=pytest.mark.nightly), pytest.param("shards", marks=pytest.mark.nightly)],
)
def test_a_version_is_checked_and_trained_on_only_when_the_project_s_own_blocking_check_has_passed(
    instance: dg.DagsterInstance, storage: StorageResource, stage: Stage
) -> None:
    project = Project(instance, storage, stage)
    project.publish(2)
    project.result = dg.AssetCheckResult(passed=False)
    project.execute("all")
    assert not project.tick().run_requests
    assert project.checked is None
    project.result = dg.AssetCheckResult(passed=True)
    project.execute("own")
    assert len(project.tick().run_requests or []) == 1
    assert project.checked == 1
    project.publish(3)
    project.result = None  # it fails to be evaluated, and its pass for the version before does not count
    project.execute("all")
    project.tick()
    assert project.checked == 1
    project.result = dg.AssetCheckResult(passed=True)
    project.execute("own")
    project.tick()
    assert project.checked == 2


def test_a_warning_of_the_project_s_own_check_lets_a_version_pass(
    instance: dg.DagsterInstance, storage: StorageResource
) -> None:
    project = Project(instance, storage, "shards")
    project.result = dg.AssetCheckResult(passed=False, severity=Severity.WARN)
    project.publish(2)
    project.execute("all")
    project.tick()
    assert project.checked == 1
