"""The fourth stage: a classifier trained from one version of the shard set."""

import itertools
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field

from assets.checks.check import evaluate
from assets.checks.model import build_model_checks
from assets.configuration import overrides, with_defaults
from assets.declaration import Declaration, Train
from assets.lineage import facts_of, latest, materialisations, tag_run, upstream
from assets.places import Place, shards_of
from assets.reports.evaluation import EARLIER_RUNS, HISTORY, kept_curves, show_confusion, show_curves, show_most_wrong
from assets.reports.tables import rounded, table_of_facts
from assets.reports.training import TrainingReport
from assets.shard_tags import kept_for_training
from assets.stage import stage_op, stage_spec
from resources.storage import StorageResource
from resources.training import TrainerResource
from smalti.catalog import Manifest, load_manifest
from smalti.dataset import StreamingDataset
from smalti.errors import CatalogError, SmaltiError
from smalti.torch.train.config import LAUNCHERS
from smalti.torch.tuning.space import with_params

TRAINING_POOL = "training"
"""Pool of all trainings of the deployment: its limit is how many of them train at once."""

TUNED = "tuned"
"""In the metadata of a model: the hyperparameters that were taken from a study."""

_CODE_VERSION = "1"
# The library's launchers; names of Dagster's enums have no hyphens.
_NAMES = ["default", *(name.replace("-", "_") for name in LAUNCHERS)]
Launcher = Enum("Launcher", {name: name for name in _NAMES})  # type: ignore[misc]  # mypy expects a literal


class TrainingConfig(dg.Config):
    """The version that a model is trained on, and the options of the training."""

    version: int | None = Field(default=None, description="Of the shard set; empty: the one materialised last.")
    digest: str | None = Field(default=None, description="That the version must have; another one is refused.")
    weights: str = Field(default="", description="Folder or hub name of pretrained weights; empty: none.")
    freeze: list[str] = Field(default=[], description="Parameters that are not trained: names, or patterns with *.")
    epochs: int = Field(default=30, ge=1)
    batch_size: int = Field(default=32, ge=1, description="Samples per step over all processes.")
    micro_batches: int = Field(default=1, ge=1, description="Gradient accumulation: parts of a process's share.")
    optimizer: str = Field(default="adamw", description="adamw, or module:Class such as torch.optim:SGD.")
    optimizer_options: dict[str, Any] = Field(default={}, description="Its further arguments.")
    learning_rate: float = Field(default=4e-3, gt=0, description="Its peak.")
    schedule: str = Field(default="cosine", description="Of the rate: cosine, constant, step, or module:function.")
    warmup: float = Field(default=0.1, ge=0, lt=1, description="Share of the run during which the rate rises.")
    weight_decay: float = Field(default=0.05, ge=0)
    clip_norm: float = Field(default=5.0, ge=0, description="Largest norm of a gradient; 0: not clipped.")
    label_smoothing: float = Field(default=0.1, ge=0, lt=1, description="Of classes and tokens.")
    precision: str = Field(default="auto", description="float32, bfloat16, or auto: bfloat16 on GPUs.")
    seed: int = Field(default=17, ge=0)
    num_workers: int = Field(default=0, ge=0, description="Loader processes per training process; 0: threads.")
    checkpoint_every: int = Field(default=50, ge=1, description="Steps between two checkpoints.")
    cache_limit: str = Field(
        default="", description="Of copies of remote shards, such as 100gb; empty: half of the disk that is free."
    )
    launcher: Launcher = Field(default=Launcher["default"], description="default: the deployment's own.")
    num_processes: int = Field(default=0, ge=0, description="Training processes; 0: the deployment's own.")
    max_restarts: int = Field(default=0, ge=0, description="Restarts from the newest checkpoint after a rank failed.")
    tensorboard: bool = Field(default=False, description="Write TensorBoard's files into the run's folder.")
    mlflow: str = Field(default="", description="Address of an MLflow tracking server, or environment; empty: none.")
    mlflow_experiment: str = Field(default="", description="Of MLflow; empty: the data set's name.")

    def options(self, trainer: TrainerResource) -> dict[str, Any]:
        """Return the fields of the library's `TrainConfig` that are chosen here."""
        return {
            **self.model_dump(exclude={"version", "digest", "best_of_study"}),
            "mlflow": self.mlflow or None,
            "progress": False,
            "weights": self.weights or None,
            "cache_limit": self.cache_limit or None,
            **launcher_fields(self, trainer),
        }


class ModelConfig(TrainingConfig):
    """The classifier, the version that it is trained on, and the options of the training."""

    model: str = Field(default="mobilenet_v2", description="mobilenet_v2, module:function, or a known model's name.")
    width: float = Field(default=0.35, gt=0, description="Width multiplier of mobilenet_v2.")
    image_size: int = Field(default=0, ge=0, le=4096, description="Side in pixels that the model sees; 0: as stored.")
    augment: bool = Field(default=True, description="Random crops, flips and colours.")
    best_of_study: bool = Field(
        default=False, description="Take the best hyperparameters of the newest study, in place of those given here."
    )

    def fields(self, trainer: TrainerResource, *, stored_size: int) -> dict[str, Any]:
        """Return the fields of the library's `TrainConfig` that are chosen here, for images stored in a size."""
        return {**self.options(trainer), "image_size": self.image_size or stored_size}


def launcher_fields(config: Any, trainer: TrainerResource) -> dict[str, Any]:
    """Return launcher, processes and restarts as a configuration chooses, or else the deployment's own."""
    is_default = config.launcher is Launcher["default"]
    return {
        "launcher": trainer.launcher if is_default else config.launcher.value.replace("_", "-"),
        "num_processes": config.num_processes or trainer.num_processes,
        "max_restarts": config.max_restarts,
    }


def model_config(train: Train) -> type[ModelConfig]:
    """Return the configuration with the values of a declaration.

    Raises:
        ValueError: an option that is no field of the configuration.
    """
    return with_defaults(ModelConfig, **declared_options(train))


def declared_options(train: Train) -> dict[str, Any]:
    """Return the values that a declaration has for the configuration of a training."""
    return {
        "model": train.architecture,
        "epochs": train.epochs,
        "batch_size": train.batch_size,
        "launcher": Launcher(train.launcher.replace("-", "_")),
        "num_processes": train.num_processes,
        "cache_limit": train.cache_limit,
        "tensorboard": train.tracking.tensorboard,
        "mlflow": train.tracking.mlflow,
        "mlflow_experiment": train.tracking.experiment,
        **train.options,
    }


def build_model(declared: Declaration, train: Train) -> dg.AssetsDefinition:
    """Return the asset of the model that is trained from a data set."""
    spec = stage_spec(
        declared,
        "model",
        code=_CODE_VERSION,
        kinds={"pytorch"},
        deps=[declared.key("shards")],
        description="A model, its checkpoints and its figures; a run that is re-executed continues from its newest "
        "checkpoint.",
    )
    checks = build_model_checks(declared)

    @stage_op(
        declared.model_op, [spec], [check.spec for check in checks], config=model_config(train), pool=TRAINING_POOL
    )
    def model(
        context: dg.AssetExecutionContext, config: Any, storage: StorageResource, trainer: TrainerResource
    ) -> Iterator[Any]:
        if spec.key in context.selected_asset_keys:
            yield make(context, config, storage, trainer)
        yield from evaluate(context, declared, checks, storage, lambda: upstream(context, spec.key))

    def make(
        context: dg.AssetExecutionContext, config: ModelConfig, storage: StorageResource, trainer: TrainerResource
    ) -> dg.MaterializeResult[Any]:
        place = shards_of(declared, storage)
        manifest = choose_version(context, declared, config, place)
        check_facts(manifest, declared, place)
        tag_run(context, declared, version=manifest.version, trains=manifest.digest)
        run_dir = trainer.run_dir(declared.place(context.run.root_run_id or context.run.run_id))
        chosen = train_config(config, manifest, place, storage, trainer, run_dir=run_dir)
        tuned = best_of_study(context, declared) if config.best_of_study else {}
        chosen = with_params(chosen, {**tuned, "mlflow_experiment": chosen.mlflow_experiment or declared.name})

        def observe(numbers: dict[str, Any]) -> None:  # a point in the charts of the UI during the run
            context.log_event(dg.AssetObservation(declared.key("model"), metadata=numbers))

        with kept_for_training(context, place.store(), manifest.version):
            report = TrainingReport(context.log.info, observe, epochs=chosen.epochs, run_id=context.run.run_id)
            result = trainer.train(chosen, report)
            wrong = _most_wrong(context, result.history[-1], manifest, chosen)
        curves = show_curves(result.history, earlier_curves(context, spec.key, "accuracy"))
        numbers = {HISTORY: curves.pop(HISTORY)}  # a long list: last
        metadata = {
            **curves,
            **_metadata(result, manifest),
            **lineage_of(result, manifest, context.run.run_id),
            **wrong,
            **report.links(),
            **({TUNED: dg.MetadataValue.json(dict(tuned))} if tuned else {}),
        }
        return dg.MaterializeResult(asset_key=spec.key, metadata=metadata | overrides(config) | numbers)

    return model


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

    classes = manifest.metadata["classes"]
    return TrainConfig(
        data=place.url,
        run_dir=run_dir,
        version=manifest.version,
        digest=manifest.digest,
        num_classes=len(classes),
        class_names=tuple(classes),
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


def choose_version(context: dg.AssetExecutionContext, declared: Declaration, config: Any, place: Place) -> Manifest:
    """Return the version that a configuration pins, or the one that the stage before has made.

    Raises:
        CatalogError: it has another digest.
    """
    version, shards = config.version, declared.key("shards").to_user_string()
    digest = config.digest
    if version is None:
        facts = upstream(context, declared.key("shards"))
        version, digest = int(facts["version"]), digest or str(facts["digest"])
    manifest = load_manifest(place.store(), version=version)
    if digest is not None and manifest.digest != digest:
        raise CatalogError(
            f"version {version} of {place.url} has digest {manifest.digest}, expected {digest}: the set was "
            f"replaced; materialise {shards}, or pin another version",
            expected=digest,
            found=manifest.digest,
        )
    return manifest


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
    last = result.history[-1]
    counts = manifest.metadata["counts"].get("validation") or manifest.metadata["counts"]["train"]
    return {
        "accuracy": round(result.accuracy, 4),
        "loss": rounded(result.loss),
        "chance": round(chance_level(counts), 4),
        "held_out_images": int(last["eval_samples"]),
        **show_confusion(last.get("confusion") or [], manifest.metadata["classes"]),
        "images_per_second": round(result.images_per_second, 1),
        **facts_of_run(result, manifest),
    }


def facts_of_run(result: Any, manifest: Manifest) -> dict[str, Any]:
    """Return what a training took, where its model is, and of which version it was made."""
    return {
        "seconds": round(result.seconds, 1),
        "steps": result.steps,
        "epochs": result.epochs,
        "model": dg.MetadataValue.path(result.model_dir),
        "checkpoint": dg.MetadataValue.path(result.checkpoint),
        "shards_version": manifest.version,
        "shards_digest": manifest.digest,
        "source": manifest.lineage.get("source", ""),
        **({"resumed_at_step": result.resumed_from["step"]} if result.resumed_from else {}),
    }


def lineage_of(result: Any, manifest: Manifest, run_id: str) -> dict[str, Any]:
    """Return from which source and version, and in which run, a model was made."""
    source = str(manifest.lineage.get("source", ""))
    facts = {"source": source, "version": manifest.version, "run": run_id[:8], "model": result.model_dir}
    return {"run": dg.MetadataValue.dagster_run(run_id), "lineage": table_of_facts({"this model": facts})}


def earlier_curves(context: dg.AssetExecutionContext, model: dg.AssetKey, figure: str) -> dict[str, Any]:
    """Return the curves of the trainings before this one, newest first, by a text for the legend."""
    newest = (facts_of(event) | {"run": event.run_id} for event in materialisations(context.instance, model))
    runs = [each for each in itertools.islice(newest, EARLIER_RUNS) if HISTORY in each]
    return {
        f"run {str(run['run'])[:8]}, version {run.get('shards_version')}: {figure} {run.get(figure)}": kept_curves(
            run[HISTORY]
        )
        for run in runs
    }


def _most_wrong(context: dg.AssetExecutionContext, last: Any, manifest: Manifest, trained: Any) -> dict[str, Any]:
    """Return the images that the model is most wrong about; nothing if they cannot be read, the training counts."""
    try:
        data = StreamingDataset(
            remote=trained.data,
            split=trained.eval_split,
            version=manifest.version,
            cache_limit=trained.cache_limit,
            storage_options=dict(trained.storage_options),
        )
        return dict(show_most_wrong(last.get("most_wrong") or [], manifest.metadata["classes"], data))
    except SmaltiError as error:
        context.log.warning("the images that the model is most wrong about are not shown: %s", error)
        return {}
