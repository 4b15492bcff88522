"""Tasks: what a model learns from the samples of a shard set. The shipped ones are in `tasks`; others are yours.

A task says what the built-in loop cannot know: the model, the samples as its input, the loss of each sample, and the
figures that are reported. All figures are exact: padding does not count, and the ranks' parts are summed before a
figure is computed of them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from smalti.catalog import Manifest
from smalti.errors import SchemaError, TrainingError
from smalti.torch.train.config import FORMER_TASKS, IMAGES, OBJECT_TASK, TASKS, TrainConfig, find_named
from smalti.torch.train.run.files import read_json, write_json, write_tensors

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from smalti.torch.train.ranks import Ranks

_OF_TRAINING = ("train_loss", "train_accuracy", "images_per_second", "data_fraction")
"""Figures of an epoch beside those of its evaluation."""
MARKS = ("_sample_id", "_position")
"""Columns with the number of each sample, and its place in the epoch's order; -1: padding."""


@dataclass(frozen=True)
class Batch:
    """This rank's samples of one step, on its device."""

    values: Mapping[str, Any]
    """By name: tensors, or lists, with one entry for each of n samples."""
    weights: Tensor
    """float32, shape (n,): 1, or 0 for padding."""
    sample_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    """Place in the epoch's global order; -1 = padding."""

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def num_real(self) -> int:
        """Number of samples that are not padding."""
        return int((self.positions >= 0).sum())

    def part(self, rows: slice) -> "Batch":
        """Return some of the samples."""
        values = {name: value[rows] for name, value in self.values.items()}
        return Batch(values, self.weights[rows], self.sample_ids[rows], self.positions[rows])


@dataclass(frozen=True)
class Outcome:
    """The answer of a model to a batch of n samples, judged."""

    losses: Tensor
    """Shape (n,): the loss of each sample."""
    scores: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, shape (n,): values whose means over all samples are reported, or that `Task.figures` is computed of."""
    outputs: Any = None
    """The model's output, for `Task.metrics`, `Task.report` and `Task.predictions`: a tensor with n rows."""
    targets: Any = None
    """The values that the output is compared with: a tensor with n rows."""


class Report(Protocol):
    """A report on an evaluation beside its figures, such as a confusion matrix."""

    def add(self, batch: Batch, outcome: Outcome) -> None:
        """Take one batch of this rank; samples of weight 0 must not count."""

    def summary(self, ranks: "Ranks") -> dict[str, Any]:
        """Return the report over all ranks as JSON values. Collective."""


class Task:
    """The base of tasks. A task has `build_model` and `loss`; everything else may be replaced.

    It is made in every process, and has no state that changes: a run resumes from its checkpoints alone.

    Examples:
        >>> class Regression(Task):
        ...     def build_model(self, config):
        ...         return torch.nn.Linear(1, 1)
        ...     def loss(self, model, batch, config):
        ...         number = batch.values["user_id"][:, None].float()
        ...         return Outcome(losses=(model(number) - number).square().mean(1))
        >>> config = TrainConfig(
        ...     data="s3://bucket/users", run_dir="s3://bucket/runs/8", train_split=None, eval_split=None, batch_size=5
        ... )
        >>> train(config, task=Regression()).steps  # of 5 epochs
        15
    """

    main_metric = "loss"
    """The figure by which models are compared: `loss`, or a key of what `figures` or `metrics` return."""
    higher_is_better = False
    """True if the better of two models has the higher one."""
    free_options: ClassVar[tuple[str, ...]] = ()
    """Options that may change when a run resumes, such as a loss's weights; another value of any other is refused."""
    data_options: ClassVar[tuple[str, ...] | None] = None
    """Options that say what the figures are of: Dagster compares no models that differ in one. None: all options."""

    # ------------------------------------------------------------ to be written

    def build_model(self, config: TrainConfig) -> nn.Module:
        """Return the model; its initial weights are drawn from torch's generator, or loaded."""
        raise NotImplementedError(f"{type(self).__name__} has no `build_model`")

    def loss(self, model: nn.Module, batch: Batch, config: TrainConfig) -> "Tensor | Outcome":
        """Return the loss of each sample, shape (n,), alone or with scores. `model.training` says what it is for.

        Call `model` itself: with several ranks it is the one that exchanges gradients.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `loss`")

    # ------------------------------------------------------------ data

    def configured(self, config: TrainConfig, manifest: Manifest) -> TrainConfig:  # noqa: ARG002
        """Return the configuration with what it leaves out and the version of the data says.

        Raises:
            SchemaError: they contradict each other.
        """
        return config

    def check(self, config: TrainConfig, columns: Mapping[str, str]) -> None:
        """Raise a SchemaError if the data's columns, with their encodings, are not what the task expects."""

    def transform(self, config: TrainConfig, *, training: bool) -> "Callable[[Any], Any] | None":  # noqa: ARG002
        """Return the transform of the samples of a split, as `StreamingDataset` takes it; it must pickle."""
        return None

    def batch(
        self,
        columns: Mapping[str, Any],
        config: TrainConfig,  # noqa: ARG002
        device: torch.device,
        *,
        epoch: int | None,  # noqa: ARG002
    ) -> Batch:
        """Return collated columns as a batch on the device; `epoch` is the one that is trained, None in evaluation."""
        return on_device(columns, device)

    def example(self, config: TrainConfig, device: torch.device) -> Batch | None:  # noqa: ARG002
        """Return a small batch that the model is tried on before any data are read; None for no trial."""
        return None

    # ------------------------------------------------------------ figures

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the figures to report, of the means of `loss` and of the scores over all samples. Pure."""
        return {name: value for name, value in means.items() if name != "loss"}

    def metrics(self, config: TrainConfig) -> Mapping[str, Any]:  # noqa: ARG002
        """Return new metrics of torchmetrics by name, updated with outputs and targets of an evaluation."""
        return {}

    def report(self, config: TrainConfig, device: torch.device) -> Report | None:  # noqa: ARG002
        """Return a new report of an evaluation; None for none."""
        return None

    # ------------------------------------------------------------ predictions

    def predictions(self, model: nn.Module, batch: Batch, config: TrainConfig) -> Mapping[str, Any]:
        """Return what `predict` says about each sample, by column: tensors of n rows, or lists of n values.

        By default, this is the column `output` with the outputs of `loss`, which needs the targets of the samples.
        Replace it to name your columns, or to predict samples without targets.

        Raises:
            TrainingError: the loss returned no outputs.
        """
        outputs = judged(self, model, batch, config).outputs
        if outputs is None:
            raise TrainingError(
                f"the loss of task '{config.task}' returned no outputs, so there is nothing to predict: return "
                "`Outcome(losses, outputs=...)`, or give the task a method `predictions(model, batch, config)`."
            )
        return {"output": outputs}

    # ------------------------------------------------------------ optimiser

    def optimizer(self, model: nn.Module, config: TrainConfig) -> "Optimizer | None":  # noqa: ARG002
        """Return the optimiser; None: that of the configuration. The schedule scales the rate of each group."""
        return None

    def lr_scheduler(self, optimizer: "Optimizer", config: TrainConfig) -> "LRScheduler | None":  # noqa: ARG002
        """Return a scheduler, which is stepped after each step, in place of the configuration's `schedule`."""
        return None

    # ------------------------------------------------------------ the model as files

    def save_model(self, model: nn.Module, config: TrainConfig, folder: Path) -> None:
        """Write the model into a folder that exists, `smalti.json` beside it is not the task's.

        The model of transformers is written in its own layout, which `from_pretrained` opens.
        """
        settings: Any = getattr(model, "config", None)
        if hasattr(settings, "save_pretrained"):
            # Not the model's own `save_pretrained`: it shows a progress bar and does not flush.
            settings.architectures = [type(model).__name__]
            settings.save_pretrained(str(folder))
        else:
            write_json(folder / "config.json", {"model": config.model, "task": config.task})
        write_tensors(folder / "model.safetensors", model.state_dict())

    def load_model(self, folder: Path, config: TrainConfig) -> nn.Module:
        """Return the model that `save_model` wrote."""
        model = self.build_model(dataclasses.replace(config, weights=None))
        model.load_state_dict(load_file(folder / "model.safetensors"))
        return model

    def describe(self, config: TrainConfig) -> dict[str, Any]:  # noqa: ARG002
        """Return what a user of the model has to know, as JSON values: classes, normalisation and the like."""
        return {}


def on_device(columns: Mapping[str, Any], device: torch.device) -> Batch:
    """Return collated columns as a batch: tensors on the device, everything else as it is."""
    values = {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in columns.items()
        if name not in MARKS
    }
    ids, positions = (whole_numbers(columns[name]) for name in MARKS)
    return Batch(values, sent((positions >= 0).astype(np.float32), device), ids, positions)


def sent(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on the device, without waiting for what the device computes before."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def whole_numbers(values: Any) -> NDArray[np.int64]:
    """Return a column as int64, shape (n,)."""
    # np.asarray also converts a CPU tensor, without a copy.
    return np.asarray(values).astype(np.int64, copy=False).reshape(-1)


def judged(task: Task, model: nn.Module, batch: Batch, config: TrainConfig) -> Outcome:
    """Return the outcome of a batch.

    Raises:
        TrainingError: the task's loss is not one value per sample.
    """
    found = task.loss(model, batch, config)
    outcome = found if isinstance(found, Outcome) else Outcome(found)
    named: dict[str, Any] = {"the loss": outcome.losses}
    named |= {f"score `{name}`": values for name, values in outcome.scores.items()}
    for name, values in named.items():
        if not isinstance(values, Tensor) or values.shape != (len(batch),):
            shape = f"of shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise TrainingError(
                f"{name} of task '{config.task}' is {shape}, expected one value for each of {len(batch)} samples, "
                f"({len(batch)},): use `reduction='none'`, and the mean over everything but the samples."
            )
    return outcome


def check_figures(task: Task, outcome: Outcome, config: TrainConfig) -> None:
    """Check, by the outcome of a batch in evaluation, that a task reports its main figure and that of `keep_best`.

    Raises:
        TrainingError: it does not.
    """
    values = {"loss": outcome.losses, **outcome.scores}
    means = {name: float(each.detach().float().mean()) for name, each in values.items()}
    names = {"loss": None, **task.figures(means), **task.metrics(config)}
    if task.main_metric not in names:
        raise TrainingError(
            f"the main figure '{task.main_metric}' of {type(task).__name__} is none of its figures; it has "
            f"{', '.join(names)}. Correct `main_metric`, or report it in `figures` or `metrics`."
        )
    best = (config.keep_best or "").partition(" ")[2]
    if best and best not in {*names, *_OF_TRAINING}:
        raise TrainingError(
            f"`keep_best` is '{config.keep_best}', and '{best}' is no figure of an epoch; there are "
            f"{', '.join([*names, *_OF_TRAINING])}."
        )


def model_named(config: TrainConfig) -> str:
    """Return the name of a run's model for messages; only some tasks build the one that `config.model` names."""
    named = f" (`model` '{config.model}')" if config.task == IMAGES or ":" in config.model else ""
    return f"the model of task '{config.task}'{named}"


def task_of(config: TrainConfig, task: Task | None = None) -> Task:
    """Return the task of a configuration: the object that was given with it, a shipped one, or a user's.

    Raises:
        SchemaError: it cannot be imported or made, or is no Task.
    """
    if task is not None:
        return task
    if config.task.startswith(OBJECT_TASK):
        raise SchemaError(
            f"`task` is '{config.task}': it was given as an object, which is stored nowhere; give it again, or name "
            "the task by its import path, 'module:Class'.",
            task=config.task,
        )
    shipped = TASKS.get(config.task)
    factory = find_named(shipped.factory if shipped else config.task, field="task")
    try:
        own = factory(**config.task_options)
    except (TypeError, ValueError) as error:  # pydantic's errors are ValueErrors
        raise SchemaError(
            f"`task` '{config.task}' cannot be made with the options {dict(config.task_options)}: {error}",
            task=config.task,
        ) from error
    if not isinstance(own, Task):
        raise SchemaError(
            f"`task` '{config.task}' is {type(own).__name__}; expected a subclass of smalti.torch.train.Task, or a "
            "function that returns one.",
            task=config.task,
        )
    return own


def name_of(task: Task) -> str:
    """Return the value of `TrainConfig.task` of a task that is given as an object."""
    return f"{OBJECT_TASK}{type(task).__module__}.{type(task).__qualname__}"


def save_model(model: nn.Module, config: TrainConfig, folder: Path, task: Task | None = None) -> None:
    """Write `model.safetensors`, `config.json` and `smalti.json` (classes, image size, normalisation) into `folder`.

    For transformers' models this is their own layout: `AutoModelForImageClassification.from_pretrained(folder)` opens
    it. A task that was given as an object is needed here, too.
    """
    task = task_of(config, task)
    folder.mkdir(parents=True, exist_ok=True)
    task.save_model(model, config, folder)
    write_json(folder / "smalti.json", {**task.describe(config), "train": config.public_json()})


def load_model(folder: Path, task: Task | None = None) -> tuple[nn.Module, TrainConfig]:
    """Return the model that `save_model` wrote into a local folder, and the configuration that it was trained with.

    A task that was given as an object is stored nowhere, and has to be given again.

    Raises:
        TrainingError: the folder holds no such model, or one that was saved before the configuration was.
        SchemaError: the model's task cannot be imported.
    """
    settings = read_json(folder / "smalti.json")
    if "train" not in settings:
        raise TrainingError(f"{folder} does not say how its model was made: an older version of Smalti has saved it")
    fields = settings["train"]
    if task is not None and fields.get("task") in FORMER_TASKS:
        fields = {**fields, "task": name_of(task)}
    config = TrainConfig.from_json(fields)
    return task_of(config, task).load_model(folder, config), config
