"""The sections of a declaration about its model: training, tracking of trainings, and tuning."""

from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field, field_validator

from smalti.errors import SchemaError
from smalti.order.mixture.planning import BATCHINGS
from smalti.torch.train.config import IMAGES, KEPT, LAUNCHERS, refuse_former_task
from smalti.torch.tuning.space import DIRECTIONS, PRUNERS, SAMPLERS, parse_space
from smalti_dagster.declaration.configuration import of_training
from smalti_dagster.declaration.values import IMPORT_PATH, Function, require_import_path


def _resolve_text(context: dg.ResolutionContext, value: str) -> str:
    return str(context.resolve_value(value, as_type=str))


class Tracking(dg.Model, dg.Resolvable):
    """Records of each training beside those of Dagster."""

    tensorboard: bool = of_training("tensorboard")
    mlflow: str = of_training("mlflow", default="")
    experiment: str = Field(default="", description="Experiment of MLflow; by default the data set's name.")


class Tuning(dg.Model, dg.Resolvable):
    """A study of hyperparameters: trainings with different values, of which the best is found."""

    space: dict[str, Any] = Field(
        description="Values by field of the training, such as learning_rate: a list of choices, or {low: 0.001, "
        "high: 0.1, log: true}, or {low: 1, high: 9, step: 2}."
    )
    metric: str = Field(default="accuracy", description="Figure of the held-out samples to compare trials by.")
    direction: Literal[DIRECTIONS] = "maximize"  # type: ignore[valid-type]  # mypy expects texts
    trials: int = Field(default=20, ge=1, description="Number of trials in a study.")
    hours: float = Field(default=0.0, ge=0, description="Hours after which no trial begins; 0: no limit.")
    parallel: int = Field(default=1, ge=1, description="Trials at once.")
    sampler: Literal[SAMPLERS] = Field(  # type: ignore[valid-type]
        default="tpe", description="tpe learns from the trials before."
    )
    pruner: Literal[PRUNERS] = Field(  # type: ignore[valid-type]
        default="median", description="median ends trials that are worse than others were at the same epoch."
    )

    @field_validator("space")
    @classmethod
    def _is_a_space(cls, space: dict[str, Any]) -> dict[str, Any]:
        try:
            parse_space(space)
        except SchemaError as error:
            raise ValueError(str(error)) from error
        return space


class Train(dg.Model, dg.Resolvable):
    """Training of a model; the fields of `smalti.torch.train.TrainConfig`."""

    task: Function = Field(
        default=IMAGES,
        description=f"{IMAGES}, or module:Class of a task of your own (docs/training.md).",
    )
    task_options: dict[str, Any] = Field(default={}, description="Options of the task, such as augment or vocabulary.")
    function: Function | None = Field(
        default=None,
        description="module:function of your own, in place of the task and its model (docs/training.md); `options` is "
        "its `context.config`.",
    )
    # `model` is a method of dg.Resolvable; only the YAML has that name.
    architecture: Annotated[str, dg.Resolver(_resolve_text, model_field_name="model", model_field_type=str)] = Field(
        default="mobilenet_v2",
        description="mobilenet_v2, module:function, or a name that a task of your own knows.",
    )
    epochs: int = of_training("epochs", default=30)
    max_steps: int | None = of_training("max_steps")
    batch_size: int = of_training("batch_size")
    eval_every: int | None = of_training("eval_every")
    patience: int | None = of_training("patience")
    keep: Literal[KEPT] = of_training("keep")  # type: ignore[valid-type]  # mypy expects texts
    streams: list[dict[str, Any]] = of_training("streams")
    batching: Literal[BATCHINGS] = of_training("batching")  # type: ignore[valid-type]
    launcher: Literal[("default", *LAUNCHERS)] = Field(  # type: ignore[valid-type]  # mypy expects texts
        default="default", description="Which processes train; default: the deployment's own launcher."
    )
    num_processes: int = Field(default=0, ge=0, description="Training processes; 0: the deployment's own number.")
    cache_limit: str = Field(
        default="", description="Size of the copies of remote shards; by default half of the free disk."
    )
    new_samples: int = Field(
        default=0,
        ge=0,
        description="Samples that a version must have beyond the one of the last model before the sensor trains on it; "
        "0: it trains on every version.",
    )
    tracking: Tracking = Tracking()
    options: dict[str, float | int | str | bool | list[str] | dict[str, Any]] = Field(
        default={}, description="Further fields that the Launchpad shows for the model, such as learning_rate."
    )

    @field_validator("function")
    @classmethod
    def _is_an_import_path(cls, function: str | None) -> str | None:
        if function is not None:
            require_import_path("train.function", function)
        return function

    @field_validator("task")
    @classmethod
    def _is_a_task(cls, task: str) -> str:
        if refuse_former_task(task) != IMAGES and not IMPORT_PATH.fullmatch(task):
            raise ValueError(f"`task` must be {IMAGES}, or module:Class of a task of your own, found {task!r}")
        return task
