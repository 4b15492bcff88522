"""The fourth stage for tasks other than image classification: a model trained from one version of the shard set."""

from typing import Any

import dagster as dg
from pydantic import Field

from smalti.catalog import Manifest
from smalti.errors import CatalogError
from smalti_dagster.checks.metric import HELD_OUT
from smalti_dagster.checks.model import build_model_checks
from smalti_dagster.declaration import Declaration, Train
from smalti_dagster.declaration.configuration import with_defaults
from smalti_dagster.models.training import (
    TrainingConfig,
    TrainingRun,
    declared_options,
    facts_of_run,
    lineage_of,
    model_asset,
)
from smalti_dagster.reports.tables import Value, table
from smalti_dagster.reports.training import TrainingReport

_TRAINING = "train"


class TaskModelConfig(TrainingConfig):
    """The options of the task, the version that its model is trained on, and the options of the training."""

    task_options: dict[str, Any] = Field(default={}, description="Arguments of the task's class.")
    model: str = Field(
        default="",
        description="module:function that makes the model, or a name that a task of your own knows; empty: the task's "
        "own.",
    )


def build_task_model(declared: Declaration, train: Train) -> dg.AssetsDefinition:
    """Return the asset of the model that is trained for a task."""
    description = (
        f"A model of the task {train.task}, its checkpoints and its figures; a run that is re-executed continues from "
        "its newest checkpoint."
    )
    own = {"model": train.architecture, "task_options": train.task_options}
    defaults = with_defaults(TaskModelConfig, **{**declared_options(train), **own})

    def train_model(run: TrainingRun, config: TaskModelConfig) -> dg.MaterializeResult[Any]:
        from smalti.torch.train import TrainConfig

        run.tag()
        place, manifest, options = run.place, run.manifest, config.options(run.trainer)
        chosen = TrainConfig(
            data=place.url,
            run_dir=run.run_dir,
            version=manifest.version,
            digest=manifest.digest,
            task=train.task,
            storage_options=place.storage_options,
            run_storage_options=run.storage.options_for(run.run_dir),
            **_splits(manifest, place.url),
            **{**options, "mlflow_experiment": options["mlflow_experiment"] or declared.name},
        )
        with run.kept():
            report = TrainingReport(
                run.context.log.info, run.observe, epochs=config.epochs, samples="rows", run_id=run.run_id
            )
            result = run.trainer.train(chosen, report)
        return run.result(
            config,
            result,
            "main_value",
            {
                **_metadata(result, manifest),
                "task": train.task,
                "task_options": dg.MetadataValue.json(dict(config.task_options)),
                **lineage_of(result, manifest, run.run_id),
                **report.links(),
            },
        )

    return model_asset(declared, description, defaults, train_model, build_model_checks(declared))


def _splits(manifest: Manifest, url: str) -> dict[str, Any]:
    """Return the splits to train on and to hold out; a version without splits is trained on as a whole.

    Raises:
        CatalogError: the version has splits, and none of them is named for training.
    """
    found = manifest.partitions
    if found and _TRAINING not in found:
        raise CatalogError(
            f"version {manifest.version} of {url} has the splits {', '.join(found)}, expected one named {_TRAINING!r} "
            f"to train on: name one {_TRAINING!r}, and one {HELD_OUT!r} if rows are to be held out",
            expected=_TRAINING,
            found=found,
        )
    return {
        "train_split": _TRAINING if found else None,
        "eval_split": HELD_OUT if HELD_OUT in found else None,
    }


def _metadata(result: Any, manifest: Manifest) -> dict[str, Any]:
    last = result.evaluation
    trained = last["train_metrics"]
    rows: list[dict[str, Value]] = [
        {"figure": name, "held out": _short(value), "training": _short(trained[name]) if name in trained else ""}
        for name, value in result.metrics.items()
    ]
    return {
        **{name: _short(value) for name, value in result.metrics.items()},
        "main_metric": result.main_metric,
        "main_value": _short(result.metrics[result.main_metric]),
        "higher_is_better": result.higher_is_better,
        "metrics": table(rows),
        "held_out_rows": int(last["eval_samples"]),
        "rows_per_second": round(result.images_per_second, 1),
        "data_fraction": round(result.data_fraction, 4),
        **facts_of_run(result, manifest),
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")
