"""Deployment: the component with the places of a project's data and of Spark, and with its way to start trainings."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field, ValidationError

from smalti_dagster.resources.binding import KEYS
from smalti_dagster.resources.deployment import detect_resources
from smalti_dagster.resources.environment import storage_at
from smalti_dagster.resources.notifications import NotificationsResource
from smalti_dagster.resources.spark import SparkResource
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource


class DeploymentScaffolder(dg.Scaffolder[Any]):
    """The file that `dg scaffold defs smalti_dagster.Deployment NAME` writes: a folder on this machine as storage."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the `defs.yaml` of a deployment."""
        root = (request.project_root or request.target_path) / "data"
        dg.scaffold_component(request, {"storage": {"root": str(root)}})


@dg.scaffold_with(DeploymentScaffolder)
class Deployment(dg.Component, dg.Model, dg.Resolvable):
    """The storage, Spark, trainer and notifications of all data sets of a project.

    What is left out follows from the environment, as without this component. A secret is given as `{env: NAME}`, which
    is a `dg.EnvVar`: Dagster resolves it in the run, and neither shows nor stores its value.

    Examples:
        ```yaml
        type: smalti_dagster.Deployment
        attributes:
          storage:
            root: s3://bucket/prefix
            region_name: eu-central-1
            aws_access_key_id: {env: TRAINING_KEY_ID}
            aws_secret_access_key: {env: TRAINING_SECRET}
          spark: {driver_memory: 8g}
          trainer: {launcher: processes, num_processes: 2}
        ```
    """

    storage: dict[str, Any] = Field(
        default={},
        description="`root`, the address of the folder that holds everything, and fields of the storage resource of "
        "its scheme, such as region_name and endpoint_url of S3.",
    )
    spark: dict[str, Any] = Field(default={}, description="Fields of `SparkResource`: master, driver_memory, conf.")
    trainer: dict[str, Any] = Field(
        default={}, description="Fields of `TrainerResource`: run_root, launcher, num_processes."
    )
    notifications: dict[str, Any] = Field(default={}, description="Fields of `NotificationsResource`.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002  Dagster's signature
        """Return the resources that are given here, under the keys that data sets look for."""
        return dg.Definitions(resources=self.resources())

    def resources(self) -> dict[str, Any]:
        """Return the resources that are given here, by key.

        Raises:
            ValueError: a section has a field that its resource does not have, or a value that cannot be used.
        """
        made: dict[str, Any] = {}
        if self.storage:
            made[KEYS["storage"]] = _storage(self.storage)
        if self.spark:
            made[KEYS["spark"]] = _build(SparkResource, "spark", self.spark)
        if self.trainer:
            storage = made.get(KEYS["storage"]) or detect_resources()[KEYS["storage"]]
            made[KEYS["trainer"]] = _build(
                TrainerResource, "trainer", {"run_root": storage.url("runs"), **self.trainer}
            )
        elif self.storage:
            made[KEYS["trainer"]] = TrainerResource(run_root=made[KEYS["storage"]].url("runs"))
        if self.notifications:
            made[KEYS["notifications"]] = _build(NotificationsResource, "notifications", self.notifications)
        return made


def _storage(given: Mapping[str, Any]) -> StorageResource:
    """Return the storage resource of these fields, with the credentials of the environment where none are given."""
    fields = dict(given)
    root = fields.pop("root", "")
    if not isinstance(root, str) or not root:
        raise ValueError(
            "`storage` needs `root`, the address of the folder that holds all data: a path, s3://bucket/prefix, ..."
        )
    found = storage_at(root, str(fields.pop("stage", "local")))
    known = {name: getattr(found, name) for name in type(found).model_fields if name not in fields}
    made: StorageResource = _build(type(found), "storage", {**known, **fields})
    return made


def _build(kind: type[Any], section: str, fields: Mapping[str, Any]) -> Any:
    """Return a resource with these fields.

    Raises:
        ValueError: it has no such field, or does not accept the value.
    """
    unknown = sorted(fields.keys() - kind.model_fields.keys())
    if unknown:
        names = ", ".join(kind.model_fields)
        raise ValueError(f"`{section}` has no field {unknown[0]!r}: {kind.__name__} has {names}")
    try:
        return kind(**{name: _resolved(value) for name, value in fields.items()})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"`{section}`, field {place!r}: {first['msg']}") from None


def _resolved(value: Any) -> Any:
    """Return `{env: NAME}` as a reference to the variable, and any other value as it is."""
    if isinstance(value, Mapping) and set(value) == {"env"}:
        return dg.EnvVar(str(value["env"]))
    return value
