"""The fourth stage for tasks other than image classification: a model trained from one version of the shard set."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from assets.checks.check import evaluate
from assets.checks.model import build_model_checks
from assets.checks.promoted import HELD_OUT
from assets.configuration import overrides, with_defaults
from assets.declaration import Declaration, Train
from assets.lineage import tag_run, upstream
from assets.places import shards_of
from assets.reports.evaluation import HISTORY, show_curves
from assets.reports.tables import Value, table
from assets.reports.training import TrainingReport
from assets.shard_tags import kept_for_training
from assets.stage import stage_op, stage_spec
from assets.stages.model import (
    TRAINING_POOL,
    TrainingConfig,
    choose_version,
    declared_options,
    earlier_curves,
    facts_of_run,
    lineage_of,
)
from resources.storage import StorageResource
from resources.training import TrainerResource
from smalti.catalog import Manifest
from smalti.errors import CatalogError
from smalti.torch.train.config import TASKS

_CODE_VERSION = "1"
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
    spec = stage_spec(
        declared,
        "model",
        code=_CODE_VERSION,
        kinds={"pytorch"},
        deps=[declared.key("shards")],
        description=f"A model of the task {train.task}, its checkpoints and its figures; a run that is re-executed "
        "continues from its newest checkpoint.",
    )
    checks = build_model_checks(declared)
    own = {"model": _named_model(train), "task_options": train.task_options}
    defaults = with_defaults(TaskModelConfig, **{**declared_options(train), **own})

    @stage_op(declared.model_op, [spec], [check.spec for check in checks], config=defaults, pool=TRAINING_POOL)
    def model(
        context: dg.AssetExecutionContext, config: Any, storage: StorageResource, trainer: TrainerResource
    ) -> Iterator[Any]:
        if spec.key in context.selected_asset_keys:
            yield make(context, config, storage, trainer)
        yield from evaluate(context, declared, checks, storage, lambda: upstream(context, spec.key))

    def make(
        context: dg.AssetExecutionContext, config: TaskModelConfig, storage: StorageResource, trainer: TrainerResource
    ) -> dg.MaterializeResult[Any]:
        from smalti.torch.train import TrainConfig

        place = shards_of(declared, storage)
        manifest = choose_version(context, declared, config, place)
        tag_run(context, declared, version=manifest.version, trains=manifest.digest)
        run_dir = trainer.run_dir(declared.place(context.run.root_run_id or context.run.run_id))
        options = config.options(trainer)
        chosen = TrainConfig(
            data=place.url,
            run_dir=run_dir,
            version=manifest.version,
            digest=manifest.digest,
            task=train.task,
            storage_options=place.storage_options,
            run_storage_options=storage.options_for(run_dir),
            **_splits(manifest, place.url),
            **_facts(manifest),
            **{**options, "mlflow_experiment": options["mlflow_experiment"] or declared.name},
        )

        def observe(numbers: dict[str, Any]) -> None:  # a point in the charts of the UI during the run
            context.log_event(dg.AssetObservation(spec.key, metadata=numbers))

        with kept_for_training(context, place.store(), manifest.version):
            run_id = context.run.run_id
            report = TrainingReport(context.log.info, observe, epochs=config.epochs, samples="rows", run_id=run_id)
            result = trainer.train(chosen, report)
        curves = show_curves(result.history, earlier_curves(context, spec.key, "main_value"))
        numbers = {HISTORY: curves.pop(HISTORY)}  # a long list: last
        metadata = {
            **curves,
            **_metadata(result, manifest),
            "task": train.task,
            "task_options": dg.MetadataValue.json(dict(config.task_options)),
            **lineage_of(result, manifest, run_id),
            **report.links(),
        }
        return dg.MaterializeResult(asset_key=spec.key, metadata=metadata | overrides(config) | numbers)

    return model


def _named_model(train: Train) -> str:
    """Return the declared model, as the task takes it: the shipped tasks of rows know no models by name."""
    return train.architecture if ":" in train.architecture or train.task not in TASKS else ""


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


def _facts(manifest: Manifest) -> dict[str, Any]:
    """Return the classes and the size of the images, which a task of a user's may need."""
    facts = manifest.metadata
    classes = tuple(facts.get("classes", ()))
    size = {"image_size": facts["image_size"]} if "image_size" in facts else {}
    return {"num_classes": len(classes), "class_names": classes, **size}


def _metadata(result: Any, manifest: Manifest) -> dict[str, Any]:
    last = result.history[-1]
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
        **facts_of_run(result, manifest),
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")
