"""The jobs of a data set: what a person, the schedule and the sensors launch. An asset's checks run with it."""

from typing import Any, Literal

import dagster as dg

from assets.declaration import Declaration, Stage
from assets.lineage import run_tags

JobKind = Literal["reshard", "train", "everything"]


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
    if declared.train is not None:
        text = f"Trains a model from the newest version of {name}, or from the one that is pinned."
        jobs.append(_job(declared, "train", ("model",), text))
        jobs.append(_job(declared, "everything", declared.stages, f"From the source of {name} to a trained model."))
    return jobs


def _job(declared: Declaration, kind: JobKind, stages: tuple[Stage, ...], description: str) -> Any:
    return dg.define_asset_job(
        job_name(declared, kind),
        selection=dg.AssetSelection.assets(*(declared.key(stage) for stage in stages)),
        description=description,
        tags=run_tags(declared),
    )
