"""The fourth stage with a training function of the user's in place of the shipped trainer: `train.function`.

The function is one that `smalti.torch.train.launch` runs. The run's own folder makes it resume: a run that is
re-executed, and a step that Dagster retries, continue from the newest checkpoint.
"""

import time
from collections.abc import Callable
from typing import Any

import dagster as dg
from pydantic import Field

from smalti.catalog import Manifest
from smalti_dagster.declaration import Declaration, Train
from smalti_dagster.declaration.configuration import of_training, overrides, with_defaults
from smalti_dagster.models.training import Launcher, TrainingRun, launcher_fields, model_asset
from smalti_dagster.reports.training import TrainingReport
from smalti_dagster.sources.functions import load_function


class FunctionConfig(dg.Config):
    """The version that a function trains on, its own configuration, and the processes that call it."""

    version: int | None = Field(default=None, description="Version of the shard set; empty: the one materialised last.")
    digest: str | None = Field(default=None, description="That the version must have; another one is refused.")
    options: dict[str, Any] = Field(default={}, description="The function's own: `context.config`.")
    cache_limit: str = Field(
        default="", description="Size of the copies of remote shards, such as 100gb; empty: half of the free disk."
    )
    launcher: Launcher = Field(default=Launcher["default"], description="default: the deployment's own.")
    num_processes: int = Field(default=0, ge=0, description="Training processes; 0: the deployment's own.")
    max_restarts: int = of_training("max_restarts")


def build_function_model(declared: Declaration, train: Train, function: str) -> dg.AssetsDefinition:
    """Return the asset of the model that a function trains."""
    description = (
        f"What {function} has trained, with its checkpoints; a run that is re-executed continues from its newest "
        "checkpoint."
    )
    defaults = with_defaults(
        FunctionConfig,
        options=dict(train.options),
        cache_limit=train.cache_limit,
        launcher=Launcher(train.launcher.replace("-", "_")),
        num_processes=train.num_processes,
    )

    def train_model(run: TrainingRun, config: FunctionConfig) -> dg.MaterializeResult[Any]:
        run.tag()
        place, manifest = run.place, run.manifest
        report = FunctionReport(run.context.log.info, run.observe, run_id=run.run_id)
        with run.kept():
            result = run.trainer.launch(
                load_function(function),
                dict(config.options),
                report,
                data=place.url,
                version=manifest.version,
                digest=manifest.digest,
                run_dir=run.run_dir,
                storage_options=place.storage_options,
                run_storage_options=run.storage.options_for(run.run_dir),
                cache_limit=config.cache_limit or None,
                progress=False,
                tensorboard=train.tracking.tensorboard,
                mlflow=train.tracking.mlflow or None,
                mlflow_experiment=train.tracking.experiment or declared.name,
                **launcher_fields(config, run.trainer),
            )
        metadata = {**_shown(result), **report.facts, **report.links(), **_about(manifest, run.run_dir, run.run_id)}
        return dg.MaterializeResult(asset_key=declared.key("model"), metadata=metadata | overrides(config))

    return model_asset(declared, description, defaults, train_model)


class FunctionReport(TrainingReport):
    """Takes the events of a function, and keeps what its materialisation says of them."""

    def __init__(
        self,
        say: Callable[[str], None],
        observe: Callable[[dict[str, Any]], None],
        *,
        run_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(say, observe, epochs=1, samples="samples", run_id=run_id, clock=clock)
        self.facts: dict[str, Any] = {}

    def _on_start(self, event: dict[str, Any]) -> None:
        super()._on_start(event)
        self.facts |= {"resumed_at_step": event["step"]} if event["step"] else {}

    def _on_checkpoint(self, event: dict[str, Any]) -> None:
        self.facts["checkpoint"] = dg.MetadataValue.path(str(event["path"]))


def _shown(result: Any) -> dict[str, Any]:
    """Return the result of a function as metadata: each value under its name, or the whole as `result`."""
    named = result if isinstance(result, dict) else {} if result is None else {"result": result}
    return {
        str(name): value if isinstance(value, bool | int | float | str) else dg.MetadataValue.json(value)
        for name, value in named.items()
    }


def _about(manifest: Manifest, run_dir: str, run_id: str) -> dict[str, Any]:
    return {
        "run_dir": dg.MetadataValue.path(run_dir),
        "shards_version": manifest.version,
        "shards_digest": manifest.digest,
        "source": str(manifest.lineage.get("source", "")),
        "run": dg.MetadataValue.dagster_run(run_id),
    }
