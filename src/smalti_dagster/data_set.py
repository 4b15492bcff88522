"""DataSet: the component that turns a declaration into a family of assets, checks, jobs, a schedule and sensors."""

import re
import warnings
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field, PrivateAttr
from typing_extensions import Self

from smalti.torch.train.config import IMAGES
from smalti_dagster.automation.failure import build_failure_sensor
from smalti_dagster.automation.schedules import build_reshard_schedule, is_schedulable
from smalti_dagster.automation.training import build_train_sensor
from smalti_dagster.automation.watch import build_watch_sensor
from smalti_dagster.checks.storage import build_storage_check
from smalti_dagster.declaration import Declaration
from smalti_dagster.jobs import build_jobs
from smalti_dagster.lineage import run_tags
from smalti_dagster.models.model import build_model
from smalti_dagster.models.promotion import build_promotion
from smalti_dagster.models.task_model import build_task_model
from smalti_dagster.models.training_function import build_function_model
from smalti_dagster.models.tuning import build_study
from smalti_dagster.stages.data import build_data
from smalti_dagster.stages.source import build_source, is_watchable

# Dagster's own, about each schedule, sensor and job of a declaration with `owners`, most of them while it loads a job.
warnings.filterwarnings("ignore", message="Parameter `owners` of", category=dg.BetaWarning)


class DataSetParameters(BaseModel):
    """Parameters of `dg scaffold defs smalti_dagster.DataSet`."""

    name: str = Field(default="", description="Name of the data set; by default that of the folder.")
    folder: str = Field(default="", description="Folder or archive of images with one sub-folder per class.")
    table: str = Field(default="", description="Name of a table in the Spark catalogue, or address of its folder.")
    table_format: str = Field(default="", description="Of a table given by its address: delta, parquet, csv, ...")


class DataSetScaffolder(dg.Scaffolder[DataSetParameters]):
    """The file that `dg scaffold defs smalti_dagster.DataSet NAME` writes: a name, and a source.

    Without a source, the file has one to replace: a declaration is valid before its source is there.
    """

    @classmethod
    def get_scaffold_params(cls) -> type[DataSetParameters]:
        """Return the parameters that the command takes as options or JSON."""
        return DataSetParameters

    def scaffold(self, request: dg.ScaffoldRequest[DataSetParameters]) -> None:
        """Write the `defs.yaml` of a new data set."""
        params: DataSetParameters | None = request.params
        given = params if params is not None else DataSetParameters()
        if given.table:
            source = {"table": given.table, **({"format": given.table_format} if given.table_format else {})}
        else:
            source = {"folder": given.folder or "s3://bucket/a-folder-with-one-sub-folder-per-class"}
        name = re.sub(r"[^a-z0-9_]", "_", (given.name or request.target_path.name).lower())
        dg.scaffold_component(request, {"name": name, "source": source})


@dg.scaffold_with(DataSetScaffolder)
class DataSet(dg.Component, Declaration):
    """A data set: raw data, preprocessed rows, an MDS shard set, and a trained model.

    Asset keys are `<name>/source`, `<name>/raw`, `<name>/prepared`, `<name>/shards` and `<name>/model`, in a group of
    the same name.
    """

    _declared_in: str = PrivateAttr("a program")

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component that a file declares, and remember the file."""
        loaded = super().load(attributes, context)
        loaded._declared_in = str(context.component_path.file_path)
        return loaded

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of this data set.

        Raises:
            DagsterInvalidDefinitionError: another file of the project declares a data set of this name.
        """
        same = [other for other in context.component_tree.get_all_components(DataSet) if other.name == self.name]
        if len(same) > 1:
            places = " and ".join(sorted(other._declared_in for other in same))
            raise dg.DagsterInvalidDefinitionError(
                f"{len(same)} data sets are named {self.name!r}, in {places}: rename all but one, or delete their files"
            )
        return build_definitions(self)


def build_definitions(declared: Declaration) -> dg.Definitions:
    """Return the assets, checks, jobs, schedule and sensors of a declared data set; resources are the deployment's."""
    automation = declared.automation
    assets: list[Any] = [build_source(declared), build_data(declared)]
    sensors: list[dg.SensorDefinition] = []
    if automation.watch is not None and is_watchable(declared):
        sensors.append(build_watch_sensor(declared, automation.watch))
    if declared.train is not None:
        if declared.train.function is not None:
            assets.append(build_function_model(declared, declared.train, declared.train.function))
        else:
            build = build_model if declared.train.task == IMAGES else build_task_model
            assets += [build(declared, declared.train), build_promotion(declared)]
        if declared.tuning is not None:
            assets.append(build_study(declared, declared.train, declared.tuning))
        if automation.train_on_new_version and automation.condition is None:
            sensors.append(build_train_sensor(declared))
    if automation.notify is not None:
        sensors.append(build_failure_sensor(f"{declared.name}_failure_sensor", declared=declared, is_on=True))
    schedules = []
    if automation.condition is not None:
        sensors.append(build_automation_sensor(declared))
    elif automation.reshard and is_schedulable(declared):
        schedules.append(build_reshard_schedule(declared, automation.reshard))
    return dg.Definitions(
        assets=assets,
        asset_checks=[build_storage_check(declared)],
        jobs=build_jobs(declared),
        schedules=schedules,
        sensors=sensors,
    )


def build_automation_sensor(declared: Declaration) -> dg.AutomationConditionSensorDefinition:
    """Return the sensor that requests assets by their automation conditions."""
    return dg.AutomationConditionSensorDefinition(
        f"{declared.name}_automation_sensor",
        target=dg.AssetSelection.assets(*map(declared.key, declared.stages)),
        default_status=dg.DefaultSensorStatus.STOPPED,
        run_tags=run_tags(declared),
        tags=declared.labels["tags"],  # it takes no owners
        description=f"Requests the assets of {declared.name} by their conditions ({declared.automation.condition}).",
    )
