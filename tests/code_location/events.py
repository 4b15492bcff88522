"""Runs and materialisations as Dagster records them, without executing anything."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.events import StepMaterializationData
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
    SensorInstigatorData,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from pipelines.definitions import defs


def new_run(
    instance: dg.DagsterInstance,
    job: str = "reshard_job",
    *,
    parent: dg.DagsterRun | None = None,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.DagsterRun:
    """A run with configurations by asset; a re-execution of another one, if that is given."""
    return instance.create_run_for_job(
        defs.resolve_job_def(job),
        status=status,
        tags=tags,
        run_config={"ops": {asset: {"config": dict(each)} for asset, each in (config or {}).items()}},
        parent_run_id=parent.run_id if parent is not None else None,
        root_run_id=(parent.root_run_id or parent.run_id) if parent is not None else None,
    )


def materialise(
    instance: dg.DagsterInstance, asset: str, facts: Mapping[str, Any], run: dg.DagsterRun | None = None
) -> None:
    """Record a materialisation with these facts, by a run if one is given."""
    event = dg.AssetMaterialization(asset, metadata=facts)
    if run is None:
        instance.report_runless_asset_event(event)
        return
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION.value
    data = StepMaterializationData(event)
    instance.report_dagster_event(dg.DagsterEvent(kind, run.job_name, event_specific_data=data), run.run_id)


def end(instance: dg.DagsterInstance, run: dg.DagsterRun, status: dg.DagsterRunStatus) -> None:
    """Record that a run ended in this way."""
    kind = {
        dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
        dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
        dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
    }[status]
    instance.report_dagster_event(dg.DagsterEvent(kind.value, run.job_name), run.run_id)


def switch_on(instance: dg.DagsterInstance, name: str, at: float) -> None:
    """Switch a schedule or sensor on, as the UI does at this time; needs an instance that is stored."""
    location = ManagedGrpcPythonEnvCodeLocationOrigin(
        LoadableTargetOrigin(module_name="pipelines.definitions"), "smalti"
    )
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "__repository__"), name)
    is_schedule = name.endswith("_schedule")
    kind = InstigatorType.SCHEDULE if is_schedule else InstigatorType.SENSOR
    schedule = ScheduleInstigatorData("0 3 * * *", start_timestamp=at)
    sensor = SensorInstigatorData(last_sensor_start_timestamp=at)
    data = schedule if is_schedule else sensor
    instance.add_instigator_state(InstigatorState(origin, kind, InstigatorStatus.RUNNING, data))
