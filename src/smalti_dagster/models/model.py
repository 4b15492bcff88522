"""The fourth stage: a classifier trained from one version of the shard set."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from smalti.cache import CacheOptions
from smalti.catalog import Manifest
from smalti.dataset import StreamingDataset
from smalti.errors import CatalogError, SmaltiError
from smalti.torch.train.config import ImageOptions
from smalti.torch.tuning.space import with_params
from smalti_dagster.checks.model import build_model_checks
from smalti_dagster.declaration import Declaration, Train
from smalti_dagster.declaration.configuration import config_like, with_defaults
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.models.training import (
    TrainingConfig,
    TrainingRun,
    declared_options,
    facts_of_run,
    lineage_of,
    model_asset,
)
from smalti_dagster.places import Place
from smalti_dagster.reports.evaluation import show_confusion, show_most_wrong
from smalti_dagster.reports.tables import rounded
from smalti_dagster.reports.training import TrainingReport
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource

TUNED = "tuned"
"""In the metadata of a model: the hyperparameters that were taken from a study."""


_OPTIONS: Any = config_like(ImageOptions, "width", "label_smoothing", "augment", "class_weights")


class ImageTaskOptions(_OPTIONS):  # type: ignore[misc]  # mypy does not know a class that is made
    """The options of image classification that the shard set does not decide."""

    image_size: int = Field(default=0, ge=0, le=4096, description="Side in pixels that the model sees; 0: as stored.")


class ModelConfig(TrainingConfig):
    """The classifier, the version that it is trained on, and the options of the training."""

    model: str = Field(default="mobilenet_v2", description="mobilenet_v2, or module:function.")
    task_options: ImageTaskOptions = Field(default=ImageTaskOptions(), description="Options of image classification.")
    best_of_study: bool = Field(
        default=False, description="Take the best hyperparameters of the newest study, in place of those given here."
    )

    def fields(self, trainer: TrainerResource, *, stored_size: int) -> dict[str, Any]:
        """Return the fields of the library's `TrainConfig` that are chosen here, for images stored in a size."""
        size = self.task_options.image_size or stored_size
        return {**self.options(trainer), "task_options": {**self.task_options.model_dump(), "image_size": size}}


def model_config(train: Train) -> type[ModelConfig]:
    """Return the configuration with the values of a declaration.

    Raises:
        ValueError: an option that is no field of the configuration.
    """
    options = with_defaults(ImageTaskOptions, **train.task_options)()
    return with_defaults(ModelConfig, **declared_options(train), task_options=options)


def build_model(declared: Declaration, train: Train) -> dg.AssetsDefinition:
    """Return the asset of the model that is trained from a data set."""
    description = (
        "A model, its checkpoints and its figures; a run that is re-executed continues from its newest checkpoint."
    )

    def train_model(run: TrainingRun, config: ModelConfig) -> dg.MaterializeResult[Any]:
        manifest = run.manifest
        check_facts(manifest, declared, run.place)
        run.tag()
        chosen = train_config(config, manifest, run.place, run.storage, run.trainer, run_dir=run.run_dir)
        tuned = best_of_study(run.context, declared) if config.best_of_study else {}
        chosen = with_params(chosen, {**tuned, "mlflow_experiment": chosen.mlflow_experiment or declared.name})
        with run.kept():
            report = TrainingReport(run.context.log.info, run.observe, epochs=chosen.epochs, run_id=run.run_id)
            result = run.trainer.train(chosen, report)
            wrong = _most_wrong(run.context, result.evaluation, manifest, chosen)
        return run.result(
            config,
            result,
            "accuracy",
            {
                **_metadata(result, manifest),
                **lineage_of(result, manifest, run.run_id),
                **wrong,
                **report.links(),
                **({TUNED: dg.MetadataValue.json(dict(tuned))} if tuned else {}),
            },
        )

    return model_asset(declared, description, model_config(train), train_model, build_model_checks(declared))


def train_config(
    config: ModelConfig,
    manifest: Manifest,
    place: Place,
    storage: StorageResource,
    trainer: TrainerResource,
    *,
    run_dir: str,
) -> Any:
    """Return the library's `TrainConfig` of a training on a version of the shard set."""
    from smalti.torch.train import TrainConfig

    return TrainConfig(
        data=place.url,
        run_dir=run_dir,
        version=manifest.version,
        digest=manifest.digest,
        storage_options=place.storage_options,
        run_storage_options=storage.options_for(run_dir),
        **config.fields(trainer, stored_size=manifest.metadata["image_size"]),
    )


def study_key(declared: Declaration) -> dg.AssetKey:
    """Return the key of the asset of a data set's newest study of hyperparameters."""
    return dg.AssetKey([declared.name, "study"])


def best_of_study(context: dg.AssetExecutionContext, declared: Declaration) -> dict[str, Any]:
    """Return the best hyperparameters of the newest study.

    Raises:
        dg.Failure: there is no study with a complete trial.
    """
    newest = latest(context.instance, study_key(declared))
    found = facts_of(newest).get("best_configuration") if newest is not None else None
    if not found:
        key = study_key(declared).to_user_string()
        raise dg.Failure(f"{key} has no complete trial: declare `tuning`, and materialise {key}", allow_retries=False)
    return dict(found)


def check_facts(manifest: Manifest, declared: Declaration, place: Place) -> None:
    """Check that a version says what a classifier needs to know of it.

    Raises:
        CatalogError: it was not written by the asset.
    """
    missing = [name for name in ("classes", "counts", "image_size") if name not in manifest.metadata]
    if missing:
        raise CatalogError(
            f"version {manifest.version} of {place.url} does not say its {', '.join(missing)}: it was not written by "
            f"the asset {declared.key('shards').to_user_string()}; materialise that first",
            missing=missing,
        )


def chance_level(counts: Mapping[str, int]) -> float:
    """Return the accuracy of always naming the largest class."""
    return max(counts.values()) / sum(counts.values())


def _metadata(result: Any, manifest: Manifest) -> dict[str, Any]:
    last = result.evaluation
    counts = manifest.metadata["counts"].get("validation") or manifest.metadata["counts"]["train"]
    return {
        "accuracy": round(result.accuracy, 4),
        "loss": rounded(result.loss),
        "chance": round(chance_level(counts), 4),
        "held_out_images": int(last["eval_samples"]),
        **show_confusion(last.get("confusion") or [], manifest.metadata["classes"]),
        "images_per_second": round(result.images_per_second, 1),
        "data_fraction": round(result.data_fraction, 4),
        **facts_of_run(result, manifest),
    }


def _most_wrong(context: dg.AssetExecutionContext, last: Any, manifest: Manifest, trained: Any) -> dict[str, Any]:
    """Return the images that the model is most wrong about; nothing if they cannot be read, the training counts."""
    try:
        data = StreamingDataset(
            remote=trained.data,
            split=trained.eval_split,
            version=manifest.version,
            cache=CacheOptions(cache_limit=trained.cache_limit),
            storage_options=dict(trained.storage_options),
        )
        return dict(show_most_wrong(last.get("most_wrong") or [], manifest.metadata["classes"], data))
    except SmaltiError as error:
        context.log.warning("the images that the model is most wrong about are not shown: %s", error)
        return {}
