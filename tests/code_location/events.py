"""Runs and materialisations as Dagster records them, without executing anything."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._core.events import StepMaterializationData

from tests.code_location.shipped import defs


def op_config(config: Mapping[str, Mapping[str, Any]], name: str = "flowers") -> dict[str, Any]:
    """A run's configuration from one by stage."""
    data = {stage: dict(each) for stage, each in config.items() if stage != "model"}
    ops = {f"{name}__data": {"config": data}} if data else {}
    return {"ops": ops | ({f"{name}__model": {"config": dict(config["model"])}} if "model" in config else {})}


def new_run(
    instance: dg.DagsterInstance,
    job: str = "reshard",
    *,
    parent: dg.DagsterRun | None = None,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.DagsterRun:
    """A run of a job of the flowers, with configurations by stage; a re-execution of another one, if that is given."""
    by_op = op_config(config or {})
    return instance.create_run_for_job(
        defs.resolve_job_def(f"flowers_{job}_job"),
        status=status,
        tags=tags,
        run_config=by_op,
        parent_run_id=parent.run_id if parent is not None else None,
        root_run_id=(parent.root_run_id or parent.run_id) if parent is not None else None,
    )


def materialise(
    instance: dg.DagsterInstance, stage: str, facts: Mapping[str, Any], run: dg.DagsterRun | None = None
) -> None:
    """Record a materialisation of a stage of the flowers with these facts, by a run if one is given."""
    event = dg.AssetMaterialization(["flowers", stage], metadata=facts)
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


@contextmanager
def dead_process() -> Iterator[int]:
    """The id of a process that was killed; no other one gets it while the body runs."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        child.kill()
        yield child.pid
