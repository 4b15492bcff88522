"""The resources of a project: those of the environment, those that it defines, and the component `Deployment`."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from smalti_dagster import Deployment
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import LocalStorage, S3Storage, StorageResource
from smalti_dagster.resources.training import TrainerResource


@dg.asset
@with_resources
def seen(storage: StorageResource, trainer: TrainerResource) -> dg.MaterializeResult[Any]:
    """The places that an asset gets, although it names no resource of Dagster's."""
    return dg.MaterializeResult(metadata={"root": storage.root, "runs": trainer.run_root})


def places(**resources: Any) -> dict[str, Any]:
    done = dg.materialize([seen], resources=resources)
    [event] = done.asset_materializations_for_node("seen")
    return {name: event.metadata[name].value for name in ("root", "runs")}


def test_without_resources_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_ROOT", str(tmp_path))
    assert places() == {"root": str(tmp_path), "runs": f"{tmp_path}/runs"}


def test_a_resource_that_a_project_defines_is_used_and_others_follow_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALTI_ROOT", str(tmp_path))
    monkeypatch.setenv("OWN_ROOT", "/own")
    own = LocalStorage(root=dg.EnvVar("OWN_ROOT"))
    assert places(smalti_storage=own) == {"root": "/own", "runs": f"{tmp_path}/runs"}


def test_the_definitions_of_an_asset_load_without_a_resource() -> None:
    dg.Definitions.validate_loadable(dg.Definitions(assets=[seen]))


def test_the_component_gives_the_resources_of_its_sections() -> None:
    declared = Deployment(
        storage={
            "root": "s3://bucket/prefix",
            "region_name": "eu-central-1",
            "aws_access_key_id": {"env": "TRAINING_KEY_ID"},
            "aws_secret_access_key": {"env": "TRAINING_SECRET"},
        },
        spark={"driver_memory": "8g"},
        trainer={"launcher": "processes", "num_processes": 2},
    )
    made = declared.resources()
    storage, spark, trainer = (made[f"smalti_{name}"] for name in ("storage", "spark", "trainer"))
    assert isinstance(storage, S3Storage)
    assert (storage.root, storage.region_name) == ("s3://bucket/prefix", "eu-central-1")
    assert storage.aws_secret_access_key == dg.EnvVar("TRAINING_SECRET")
    assert isinstance(spark, SparkResource)
    assert spark.driver_memory == "8g"
    assert (trainer.run_root, trainer.num_processes) == ("s3://bucket/prefix/runs", 2)


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"storage": {"region_name": "x"}}, "`storage` needs `root`"),
        ({"storage": {"root": "/data", "bucket": "b"}}, "`storage` has no field 'bucket'"),
        ({"spark": {"memory": "8g"}}, "`spark` has no field 'memory': SparkResource has"),
        ({"storage": {"root": "/data"}, "trainer": {"num_processes": 0}}, "`trainer`, field 'num_processes'"),
    ],
)
def test_a_section_that_cannot_be_used_is_named(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Deployment(**sections).resources()
