"""A study of hyperparameters as an asset: trials of the training, and the best configuration as metadata."""

from typing import Any, Literal

import dagster as dg
from pydantic import Field

from smalti.torch.tuning.space import with_params
from smalti_dagster.declaration import Declaration, Train, Tuning
from smalti_dagster.declaration.configuration import overrides, with_defaults
from smalti_dagster.lineage import tag_run
from smalti_dagster.models.model import check_facts, model_config, study_key, train_config
from smalti_dagster.models.training import TRAINING_POOL, choose_version
from smalti_dagster.places import shards_of
from smalti_dagster.reports.tuning import StudyReport, show_study
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource
from smalti_dagster.shard_tags import kept_for_training


class StudyConfig(dg.Config):
    """The budget of a study, and the version that its trials are trained on."""

    version: int | None = Field(default=None, description="Version of the shard set; empty: the one materialised last.")
    trials: int = Field(default=20, ge=1, description="Number of trials.")
    hours: float = Field(default=0.0, ge=0, description="After these no trial begins any more; 0: no limit.")
    parallel: int = Field(default=1, ge=1, description="Trials at once.")
    trials_on: Literal["processes", "inline"] = Field(
        default="processes", description="processes: children of the step; inline: in the step, one after the other."
    )
    seed: int = Field(default=17, ge=0, description="Seed of the proposals.")


def study_config(tuning: Tuning) -> type[StudyConfig]:
    """Return the configuration with the values of a declaration."""
    return with_defaults(StudyConfig, trials=tuning.trials, hours=tuning.hours, parallel=tuning.parallel)


def build_study(declared: Declaration, train: Train, tuning: Tuning) -> dg.AssetsDefinition:
    """Return the asset of the study: to materialise it is to run one; a run that is re-executed continues its own."""

    def study(
        context: dg.AssetExecutionContext, config: Any, storage: StorageResource, trainer: TrainerResource
    ) -> dg.MaterializeResult[Any]:
        from smalti.torch.tuning import StudyOptions

        place, fixed = shards_of(declared, storage), model_config(train)(version=config.version)
        manifest = choose_version(context, declared, fixed, place)
        check_facts(manifest, declared, place)
        tag_run(context, declared, version=manifest.version)
        folder = trainer.run_dir(declared.place(f"study-{context.run.root_run_id or context.run.run_id}"))
        base = train_config(fixed, manifest, place, storage, trainer, run_dir=folder)
        # A trial is a process of the step; the deployment's launcher may be Spark's.
        launcher = "processes" if base.num_processes > 1 else "inline"
        base = with_params(base, {"launcher": launcher, "mlflow_experiment": base.mlflow_experiment or declared.name})
        options = StudyOptions(
            study_dir=folder,
            trials=config.trials,
            seconds=config.hours * 3600 or None,
            parallel=config.parallel,
            trials_on=config.trials_on,
            seed=config.seed,
            storage_options=storage.options_for(folder) or {},
            metric=tuning.metric,
            direction=tuning.direction,
            sampler=tuning.sampler,
            pruner=tuning.pruner,
        )
        report = StudyReport(
            context.log.info,
            lambda facts: context.log_event(dg.AssetObservation(study_key(declared), metadata=facts)),
            metric=tuning.metric,
            direction=tuning.direction,
        )
        with kept_for_training(context, place.store(), manifest.version):
            found = trainer.study(base, tuning.space, options, report)
        return dg.MaterializeResult(
            metadata={
                **show_study(found.to_json()),
                "shards_version": manifest.version,
                "study": dg.MetadataValue.path(folder),
                **overrides(config),
            }
        )

    study.__annotations__["config"] = study_config(tuning)
    return dg.asset(
        key=study_key(declared),
        deps=[declared.key("shards")],
        group_name=declared.group or declared.name,
        owners=declared.owners or None,
        tags={"data_set": declared.name, **declared.tags},
        kinds={"pytorch"},
        pool=TRAINING_POOL,
        description=f"Hyperparameters of {declared.name}/model, tried out. The job {declared.name}_train_best_job "
        "trains the best of the newest study.",
    )(with_resources(study))
