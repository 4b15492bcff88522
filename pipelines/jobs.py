"""The jobs of a data set: what a person, the schedule and the sensors launch. An asset's checks run with it."""

from typing import Any, Literal

import dagster as dg

from assets.checks.storage import STORAGE_REACHABLE, storage_check
from assets.declaration import Declaration, Stage
from assets.lineage import facts_of, run_tags
from assets.source import is_watchable, last_read, new_observations, versions_now
from resources.storage import StorageResource

JobKind = Literal["reshard", "train", "everything", "observe"]


def job_name(declared: Declaration, kind: JobKind) -> str:
    """Return the name of a job of a data set."""
    return f"{declared.name}_{kind}_job"


def build_jobs(declared: Declaration) -> list[Any]:
    """Return the jobs of a data set: re-sharding, and where a model is trained, training and everything."""
    name = declared.name
    jobs = [
        _job(
            declared,
            "reshard",
            tuple(stage for stage in declared.stages if stage != "model"),
            f"Reads the source of {name} again, and publishes a new version of the shard set if anything changed.",
        )
    ]
    if is_watchable(declared):
        jobs.append(build_observe_job(declared))
    if declared.train is not None:
        text = f"Trains a model from the newest version of {name}, or from the one that is pinned."
        jobs.append(_job(declared, "train", ("model",), text))
        jobs.append(_job(declared, "everything", declared.stages, f"From the source of {name} to a trained model."))
    return jobs


def build_observe_job(declared: Declaration) -> dg.JobDefinition:
    """Return the job that looks at the source of a data set, and records its data version if it is a new one."""

    @dg.op(name=f"{declared.name}__observe")
    def observe(context: dg.OpExecutionContext, storage: StorageResource) -> None:
        event = last_read(context.instance, declared)
        versions = versions_now(declared, storage, facts_of(event) if event is not None else {})
        found = new_observations(context.instance, declared, versions or {})
        for each in found:
            context.log_event(each)
        context.log.info("%d new data versions of %s", len(found), declared.source_key.to_user_string())

    @dg.job(
        name=job_name(declared, "observe"),
        description=f"Looks at the source of {declared.name}, and records its data version; reads and makes nothing.",
        executor_def=dg.in_process_executor,
        tags=run_tags(declared),
    )
    def job() -> None:
        observe()

    return job


def build_storage_job(loaded: dg.Definitions) -> Any:
    """Return the job that executes the checks of the storage of all data sets, in one process; nothing is made."""
    found = [key for each in loaded.asset_checks or [] for key in each.check_keys if key.name == STORAGE_REACHABLE]
    return dg.define_asset_job(
        f"{STORAGE_REACHABLE}_job",
        selection=dg.AssetSelection.checks(*found),
        description="Tries to list, read, write and delete at the places of all data sets; takes seconds.",
        executor_def=dg.in_process_executor,
    )


def _job(declared: Declaration, kind: JobKind, stages: tuple[Stage, ...], description: str) -> Any:
    return dg.define_asset_job(
        job_name(declared, kind),
        selection=dg.AssetSelection.assets(*(declared.key(stage) for stage in stages))
        - dg.AssetSelection.checks(storage_check(declared)),
        description=description,
        tags=run_tags(declared),
    )
