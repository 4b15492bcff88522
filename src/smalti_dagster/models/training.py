"""The common parts of all assets of trained models: configuration, version of the shard set, run, and metadata."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field

from smalti.catalog import Manifest, load_manifest
from smalti.errors import CatalogError
from smalti.torch.train.config import LAUNCHERS, TrainConfig
from smalti_dagster.checks.check import DataCheck, evaluate
from smalti_dagster.declaration import Declaration, Train
from smalti_dagster.declaration.configuration import config_like, of_training, overrides
from smalti_dagster.lineage import facts_of, materialisations, tag_run, upstream
from smalti_dagster.places import Place, shards_of
from smalti_dagster.reports.evaluation import EARLIER_RUNS, HISTORY, kept_curves, show_curves
from smalti_dagster.reports.tables import table_of_facts
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource
from smalti_dagster.shard_tags import kept_for_training
from smalti_dagster.stage import stage_op, stage_spec

TRAINING_POOL = "training"
"""Pool of all trainings of the deployment: its limit is how many of them train at once."""

_CODE_VERSION = "1"
# The library's launchers; names of Dagster's enums have no hyphens.
_NAMES = ["default", *(name.replace("-", "_") for name in LAUNCHERS)]
Launcher = Enum("Launcher", {name: name for name in _NAMES})  # type: ignore[misc]  # mypy expects a literal


_DECIDED = {"data", "task", "task_options", "train_split", "eval_split", "model"}
"""Fields of the library's `TrainConfig` that an asset decides itself."""
_DECLARED = ("epochs", "max_steps", "batch_size", "eval_every", "patience", "keep", "streams", "batching")
"""Fields of the library's `TrainConfig` that a declaration has under the same name."""
_CHOSEN: Any = config_like(TrainConfig, *(name for name in TrainConfig.__annotations__ if name not in _DECIDED))


class TrainingConfig(_CHOSEN):  # type: ignore[misc]  # mypy does not know a class that is made
    """The version that a model is trained on, and the options of the training."""

    version: int | None = Field(default=None, description="Version of the shard set; empty: the one materialised last.")
    digest: str | None = Field(default=None, description="That the version must have; another one is refused.")
    weights: str = Field(default="", description="Folder or hub name of pretrained weights; empty: none.")
    epochs: int = of_training("epochs", default=30)
    affinity: float = Field(
        default=1.0, ge=0, le=1, description="Part of its shards that a host reads again in the next epoch."
    )
    cache_limit: str = Field(
        default="", description="Size of the copies of remote shards, such as 100gb; empty: half of the free disk."
    )
    launcher: Launcher = Field(default=Launcher["default"], description="default: the deployment's own.")
    num_processes: int = Field(default=0, ge=0, description="Training processes; 0: the deployment's own.")
    max_restarts: int = of_training("max_restarts")
    tensorboard: bool = of_training("tensorboard")
    mlflow: str = Field(default="", description="Address of an MLflow tracking server, or environment; empty: none.")
    mlflow_experiment: str = Field(default="", description="Experiment of MLflow; empty: the data set's name.")

    def options(self, trainer: TrainerResource) -> dict[str, Any]:
        """Return the fields of the library's `TrainConfig` that are chosen here."""
        chosen: dict[str, Any] = self.model_dump(exclude={"version", "digest", "best_of_study"})
        return {
            **chosen,
            "mlflow": self.mlflow or None,
            "progress": False,
            "weights": self.weights or None,
            "cache_limit": self.cache_limit or None,
            **launcher_fields(self, trainer),
        }


def declared_options(train: Train) -> dict[str, Any]:
    """Return the values that a declaration has for the configuration of a training."""
    return {
        "model": train.architecture,
        **{name: getattr(train, name) for name in _DECLARED},
        "launcher": Launcher(train.launcher.replace("-", "_")),
        "num_processes": train.num_processes,
        "cache_limit": train.cache_limit,
        "tensorboard": train.tracking.tensorboard,
        "mlflow": train.tracking.mlflow,
        "mlflow_experiment": train.tracking.experiment,
        **train.options,
    }


def launcher_fields(config: Any, trainer: TrainerResource) -> dict[str, Any]:
    """Return launcher, processes and restarts as a configuration chooses, or else the deployment's own."""
    is_default = config.launcher is Launcher["default"]
    return {
        "launcher": trainer.launcher if is_default else config.launcher.value.replace("_", "-"),
        "num_processes": config.num_processes or trainer.num_processes,
        "max_restarts": config.max_restarts,
    }


@dataclass(frozen=True)
class TrainingRun:
    """A run that trains the model of a data set from one version of its shard set."""

    context: dg.AssetExecutionContext
    declared: Declaration
    storage: StorageResource
    trainer: TrainerResource
    place: Place
    """The place of the shard set."""
    manifest: Manifest
    """The manifest of the version."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.context.run.run_id

    @property
    def run_dir(self) -> str:
        """Address of the folder of the training; a run that is re-executed continues in that of the first one."""
        return self.trainer.run_dir(self.declared.place(self.context.run.root_run_id or self.run_id))

    def tag(self) -> None:
        """Tag the run with the version."""
        tag_run(self.context, self.declared, version=self.manifest.version, trains=self.manifest.digest)

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """Keep the version from being removed in the body."""
        return kept_for_training(self.context, self.place.store(), self.manifest.version)

    def observe(self, numbers: dict[str, Any]) -> None:
        """Record a point of the charts that the UI shows during the run."""
        self.context.log_event(dg.AssetObservation(self.declared.key("model"), metadata=numbers))

    def result(
        self, config: dg.Config, result: Any, figure: str, metadata: Mapping[str, Any]
    ) -> dg.MaterializeResult[Any]:
        """Return the materialisation of a model that the library's trainer has made, with its curves.

        Args:
            config: Of the run.
            result: Of the training.
            figure: Key of the main figure in the metadata.
            metadata: Further metadata.
        """
        key = self.declared.key("model")
        curves = show_curves(result.history, earlier_curves(self.context, key, figure))
        numbers = {HISTORY: curves.pop(HISTORY)}  # a long list: last
        return dg.MaterializeResult(asset_key=key, metadata={**curves, **metadata} | overrides(config) | numbers)


def model_asset(
    declared: Declaration,
    description: str,
    config: type[dg.Config],
    train_model: Callable[[TrainingRun, Any], dg.MaterializeResult[Any]],
    checks: Sequence[DataCheck] = (),
) -> dg.AssetsDefinition:
    """Return the asset of a data set's model with its checks.

    Args:
        declared: The data set.
        description: Of the asset.
        config: Type of the configuration; it has the fields `version` and `digest`.
        train_model: Trains the model in a run with a configuration.
        checks: Of the model.
    """
    spec = stage_spec(
        declared,
        "model",
        code=_CODE_VERSION,
        kinds={"pytorch"},
        deps=[declared.key("shards")],
        description=description,
    )

    @stage_op(declared.model_op, [spec], [check.spec for check in checks], config=config, pool=TRAINING_POOL)
    def model(
        context: dg.AssetExecutionContext, config: Any, storage: StorageResource, trainer: TrainerResource
    ) -> Iterator[Any]:
        if spec.key in context.selected_asset_keys:
            place = shards_of(declared, storage)
            manifest = choose_version(context, declared, config, place)
            yield train_model(TrainingRun(context, declared, storage, trainer, place, manifest), config)
        yield from evaluate(context, declared, checks, storage, lambda: upstream(context, spec.key))

    return model


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
