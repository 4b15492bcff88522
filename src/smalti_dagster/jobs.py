"""The jobs of a data set: what a person, the schedule and the sensors launch. An asset's checks run with it."""

from collections.abc import Mapping
from typing import Any, Literal

import dagster as dg

from smalti_dagster.checks.storage import STORAGE_REACHABLE, storage_check
from smalti_dagster.declaration import Declaration, Stage
from smalti_dagster.lineage import run_tags
from smalti_dagster.models.model import study_key
from smalti_dagster.models.promotion import promoted_key
from smalti_dagster.runs.worker import in_process_executor
from smalti_dagster.stages.source import is_watchable

JobKind = Literal["reshard", "train", "everything", "promote", "observe", "study", "train_best"]
TRAINING_JOBS: tuple[JobKind, ...] = ("train", "train_best", "everything")
"""Those that make a model."""


def job_name(declared: Declaration, kind: JobKind) -> str:
    """Return the name of a job of a data set."""
    return f"{declared.name}_{kind}_job"


def build_jobs(declared: Declaration) -> list[Any]:
    """Return the jobs of a data set: re-sharding, and where a model is trained, training, everything and promotion."""
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
        jobs.append(
            dg.define_asset_job(
                job_name(declared, "observe"),
                selection=dg.AssetSelection.assets(declared.source_key)
                - dg.AssetSelection.checks(storage_check(declared)),
                description=f"Looks at the source of {name}, and records its data version; makes nothing.",
                **_labels(declared),
                executor_def=in_process_executor,
            )
        )
    if declared.train is not None:
        text = f"Trains a model from the newest version of {name}, or from the one that is pinned."
        jobs.append(_job(declared, "train", ("model",), text))
        jobs.append(_job(declared, "everything", declared.stages, f"From the source of {name} to a trained model."))
    if declared.train is not None and declared.train.function is None:
        jobs.append(
            dg.define_asset_job(
                job_name(declared, "promote"),
                selection=dg.AssetSelection.assets(promoted_key(declared)),
                description=f"Promotes a model of {name}, and the version that it was trained on: the newest whose "
                "checks passed, that of a run, or the one before.",
                **_labels(declared),
                executor_def=in_process_executor,
            )
        )
    if declared.tuning is not None:
        jobs.append(
            dg.define_asset_job(
                job_name(declared, "study"),
                selection=dg.AssetSelection.assets(study_key(declared)),
                description=f"Tries out hyperparameters of the training of {name}.",
                **_labels(declared),
            )
        )
        text = f"Trains a model of {name} with the best hyperparameters of the newest study."
        best = {"ops": {declared.model_op: {"config": {"best_of_study": True}}}}
        jobs.append(_job(declared, "train_best", ("model",), text, config=best))
    return jobs


def build_storage_job(loaded: dg.Definitions) -> Any:
    """Return the job that executes the checks of the storage of all data sets, in one process; nothing is made."""
    found = [key for each in loaded.asset_checks or [] for key in each.check_keys if key.name == STORAGE_REACHABLE]
    return dg.define_asset_job(
        f"{STORAGE_REACHABLE}_job",
        selection=dg.AssetSelection.checks(*found),
        description="Tries to list, read, write and delete at the places of all data sets; takes seconds.",
        executor_def=in_process_executor,
    )


def _job(
    declared: Declaration,
    kind: JobKind,
    stages: tuple[Stage, ...],
    description: str,
    *,
    config: Mapping[str, Any] | None = None,
) -> Any:
    return dg.define_asset_job(
        job_name(declared, kind),
        selection=_between(declared, stages),
        description=description,
        config=dict(config) if config else None,
        **_labels(declared),
    )


def _between(declared: Declaration, stages: tuple[Stage, ...]) -> dg.AssetSelection:
    """Return the assets of neighbouring stages, and those of a user's own that stand between them."""
    keys = [declared.key(stage) for stage in stages]
    named = dg.AssetSelection.assets(*keys)
    if len(keys) < 2:
        return named
    first, last = dg.AssetSelection.assets(keys[0]), dg.AssetSelection.assets(keys[-1])
    return named | (first.downstream() & last.upstream())


def _labels(declared: Declaration) -> dict[str, Any]:
    """Return the tags and owners of a job, and the tags of its runs."""
    tags = run_tags(declared)
    return {**declared.labels, "tags": {**declared.labels["tags"], **tags}, "run_tags": tags}
