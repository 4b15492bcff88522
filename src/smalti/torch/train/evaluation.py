"""The exact evaluation of a saved model of any task on a split of a version, by any number of ranks."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from smalti.catalog import load_manifest
from smalti.errors import TrainingError
from smalti.storage import open_store
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.context import Context
from smalti.torch.train.launchers.start import launch
from smalti.torch.train.predictor import Predictor
from smalti.torch.train.tasks.images import ImageClassification
from smalti.torch.train.trainer.loop import open_split
from smalti.torch.train.trainer.models import logits_of
from smalti.torch.train.trainer.scoring import evaluate
from smalti.torch.train.trainer.task import Task

_UNKNOWN = 100.0
"""A class that the model does not know has a score so far below the lowest of those that it knows."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The figures of a model on the samples of a split. The counts are equal for every number of ranks."""

    version: int | None
    """Version of the shard set."""
    samples: int
    loss: float
    """Mean loss; for classifiers the cross entropy."""
    metrics: Mapping[str, float]
    """All figures of the task by name, and `loss`."""
    report: Mapping[str, Any]
    """The report of the task beside its figures, as JSON values; for classifiers the confusion and the most wrong."""
    accuracy: float | None
    """Share of the samples that are classified correctly; None if the task has no such figure."""
    classes: tuple[str, ...] = ()
    """Names of the classes of the data, and after them those that only the model knows; empty for other tasks."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """Numbers of samples by [true class][predicted class]; empty for other tasks."""
    most_wrong: tuple[Mapping[str, float], ...] = ()
    """The misclassified samples with the largest losses, largest first: `sample_id`, `label`, `predicted`, `confidence`
    in that prediction, and `loss`; empty for other tasks."""


def evaluate_model(
    model: str,
    data: str,
    *,
    version: int | None = None,
    split: str | None = "validation",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = None,
    task: Task | None = None,
    model_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate a saved model on the samples of a split, each of them once, with the figures of its task.

    Classes are compared by name: a sample of a class that the model does not know is classified wrongly.

    Args:
        model: address of the folder `model` of a training run.
        data: address of the shard set.
        version: version of it; None: the newest.
        split: its samples; None: all.
        class_names: for classifiers, names of the set's classes in the order of its labels; None: those in the
            version's metadata, or else those of the model.
        batch_size: samples per step over all ranks; None: as in the training.
        task: the task, if it was given to the training as an object.
        model_options: options of the store of the model.
        options: fields of `RunConfig`, such as `launcher`, `num_processes`, `storage_options` (those of the data) and
            `run_dir` (a folder for logs; by default a temporary one).

    Raises:
        TrainingError: there is no model, it does not name its classes although those of the data are named, or a rank
            failed.
        SchemaError: the split has no samples, the data lack a column that the task reads, or the task cannot be
            imported.
        SmaltiError: model or data cannot be read; see the classes.

    Examples:
        >>> evaluation = evaluate_model("s3://bucket/runs/7/model", "s3://bucket/photos")
        >>> evaluation.samples, evaluation.classes
        (8, ('cat', 'dog'))
    """
    predictor = Predictor(model, model_options, task=task)
    manifest = load_manifest(open_store(data, options.get("storage_options")), version=version)
    classes = _classes_of(predictor, class_names or manifest.metadata.get("classes") or (), data)
    argument = {"model": predictor.with_files(), "split": split, "classes": classes, "batch_size": batch_size}
    with TemporaryDirectory(prefix="smalti-evaluation-") as folder:
        run = {"run_dir": folder, "version": manifest.version or version, **options}
        figures = launch(_evaluate, argument, data=data, **run)
    report = figures["report"]
    return Evaluation(
        version=manifest.version,
        samples=figures["samples"],
        loss=figures["loss"],
        metrics=figures["metrics"],
        report=report,
        accuracy=figures["metrics"].get("accuracy"),
        classes=tuple(classes),
        confusion=tuple(map(tuple, report.get("confusion", ()))),
        most_wrong=tuple(report.get("most_wrong", ())),
    )


def _evaluate(context: Context) -> dict[str, Any]:
    """Evaluate the model on this rank's samples; return the figures of all ranks. Collective."""
    given: Any = context.config
    sent: Any = given["model"]
    predictor: Predictor = sent if isinstance(sent, Predictor) else sent.predictor
    task, model = predictor.task, predictor.model.to(context.device)
    trained = dataclasses.replace(predictor.config, data=context.run.data)
    config = dataclasses.replace(trained, batch_size=given["batch_size"] or trained.batch_size)
    loader = open_split(context, config, task, given["split"], training=False)
    task.check(config, loader.streaming_dataset.manifest.schema.columns())
    if given["classes"]:
        model, config, task = _in_classes(model, config, predictor, given["classes"])
    scores = evaluate(model, loader, config, context._ranks, task)
    return {"samples": scores.samples, "loss": scores.loss, "metrics": scores.metrics, "report": scores.report}


# ------------------------------------------------------------ classes


def _classes_of(predictor: Predictor, names: Sequence[str], data: str) -> list[str]:
    """Return the names of the classes of the data, and after them those that only the model knows.

    There are none if the model is no classifier.

    Args:
        predictor: the model.
        names: of the classes of the data, as far as they are known.
        data: their address.

    Raises:
        TrainingError: the classes of the data are named, and those of the model are not.
    """
    if not isinstance(predictor.task, ImageClassification):
        return []
    if names and not predictor.class_names:
        raise TrainingError(
            f"{predictor.address} does not name its classes: they cannot be compared with those of {data}"
        )
    known = predictor.class_names or tuple(map(str, range(predictor.task.num_classes)))
    return list(dict.fromkeys([*names, *known]))


def _in_classes(
    model: nn.Module, config: TrainConfig, predictor: Predictor, classes: Sequence[str]
) -> tuple[nn.Module, TrainConfig, Task]:
    """Return a classifier, its configuration and its task for the classes of the data, compared by name."""
    known = predictor.class_names
    if not known or list(known) == list(classes):
        return model, config, predictor.task
    options = {**config.task_options, "num_classes": len(classes), "class_names": list(classes)}
    task = dataclasses.replace(predictor.classifier, num_classes=len(classes), class_names=tuple(classes))
    moved = _InClasses(model, [classes.index(name) for name in known], len(classes))
    return moved, dataclasses.replace(config, task_options=options), task


class _InClasses(nn.Module):
    """A classifier whose scores are moved to the places of other classes, of which it need not know all."""

    def __init__(self, model: nn.Module, places: Sequence[int], count: int) -> None:
        super().__init__()
        self.model, self._places, self._count = model, list(places), count

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        scores = logits_of(self.model(pixels))
        unknown = scores.amin(dim=1, keepdim=True) - _UNKNOWN
        moved = unknown.expand(-1, self._count).clone()
        moved[:, self._places] = scores[:, : len(self._places)]
        return moved
