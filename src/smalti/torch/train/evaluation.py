"""The exact evaluation of a saved model on a split of a version, by any number of ranks."""

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
from smalti.storage.local_files import local_files
from smalti.torch.train.context import Context
from smalti.torch.train.launchers.start import launch
from smalti.torch.train.predictor import Predictor
from smalti.torch.train.trainer.loop import open_split
from smalti.torch.train.trainer.models import load_model, logits_of
from smalti.torch.train.trainer.scoring import evaluate
from smalti.torch.train.trainer.task import task_of

_UNKNOWN = 100.0
"""A class that the model does not know has a score so far below the lowest of those that it knows."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The figures of a model on the samples of a split. The counts are equal for every number of ranks."""

    version: int | None
    """Version of the shard set."""
    samples: int
    accuracy: float
    """Share of the samples that are classified correctly."""
    loss: float
    """Mean cross entropy."""
    classes: tuple[str, ...]
    """Names of the classes of the data, and after them those that only the model knows."""
    confusion: tuple[tuple[int, ...], ...]
    """Numbers of samples by [true class][predicted class]."""
    most_wrong: tuple[Mapping[str, float], ...]
    """The misclassified samples with the largest losses, largest first: `sample_id`, `label`, `predicted`, `confidence`
    in that prediction, and `loss`."""


def evaluate_model(
    model: str,
    data: str,
    *,
    version: int | None = None,
    split: str | None = "validation",
    class_names: Sequence[str] | None = None,
    batch_size: int = 64,
    model_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate a saved model on the samples of a split, each of them once.

    Classes are compared by name: a sample of a class that the model does not know is classified wrongly.

    Args:
        model: address of the folder `model` of a training run.
        data: address of the shard set.
        version: version of it; None: the newest.
        split: its samples; None: all.
        class_names: names of the set's classes, in the order of its labels; None: those in the version's metadata, or
            else those of the model.
        batch_size: samples per step over all ranks.
        model_options: options of the store of the model.
        options: fields of `RunConfig`, such as `launcher`, `num_processes`, `storage_options` (those of the data) and
            `run_dir` (a folder for logs; by default a temporary one).

    Raises:
        TrainingError: there is no model, it does not name its classes although those of the data are named, the split
            has no samples, or a rank failed.
        SmaltiError: model or data cannot be read; see the classes.
    """
    predictor = Predictor(model, model_options)
    manifest = load_manifest(open_store(data, options.get("storage_options")), version=version)
    names = tuple(class_names or manifest.metadata.get("classes") or ())
    if names and not predictor.class_names:
        raise TrainingError(f"{model} does not name its classes: they cannot be compared with those of {data}")
    names = names or predictor.class_names or tuple(map(str, range(predictor.task.num_classes)))
    argument = {"model": predictor.with_files(), "split": split, "classes": names, "batch_size": batch_size}
    with TemporaryDirectory(prefix="smalti-evaluation-") as folder:
        run = {"run_dir": folder, "version": manifest.version or version, **options}
        found = launch(_evaluate, argument, data=data, **run)
    if not found["samples"]:
        raise TrainingError(f"split {split!r} of version {manifest.version} of {data} has no samples")
    return Evaluation(
        version=manifest.version,
        samples=found["samples"],
        accuracy=found["accuracy"],
        loss=found["loss"],
        classes=tuple(found["classes"]),
        confusion=tuple(map(tuple, found["confusion"])),
        most_wrong=tuple(found["most_wrong"]),
    )


def _evaluate(context: Context) -> dict[str, Any]:
    """Evaluate the model on this rank's samples; return the figures of all ranks. Collective."""
    given: Any = context.config
    sent: Any = given["model"]
    predictor: Predictor = sent if isinstance(sent, Predictor) else sent.predictor
    trained, known = predictor.config, predictor.class_names or given["classes"]
    classes = list(dict.fromkeys([*given["classes"], *known]))
    model = _InClasses(predictor.model.to(context.device), [classes.index(name) for name in known], len(classes))
    loader = context.dataloader(
        given["split"],
        batch_size=given["batch_size"],
        shuffle=False,
        transform=predictor.task.transform(trained, training=False),
        include_ids=True,
    )
    options = {**trained.task_options, "num_classes": len(classes), "class_names": classes}
    config = dataclasses.replace(trained, task_options=options)
    scores = evaluate(model, loader, config, context._ranks, task_of(config))
    figures = {"samples": scores.samples, "loss": scores.loss, "accuracy": scores.metrics["accuracy"]}
    return {**figures, **scores.report, "classes": classes}


def measure_saved_task(
    model_dir: str,
    data: str,
    *,
    version: int,
    split: str = "validation",
    model_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Return the figures of a saved model, of any task, on the samples of a split of a version.

    Args:
        model_dir: Address of the folder `model` of a training run.
        data: Address of the shard set.
        version: Version of it.
        split: Its samples.
        model_options: Options of the store of the model.
        data_options: Options of the store of the shard set.

    Raises:
        SchemaError: the model's task cannot be imported.
        SmaltiError: model or data cannot be read.
    """
    argument = {"model": model_dir, "model_options": model_options, "split": split}
    with TemporaryDirectory(prefix="smalti-evaluation-") as folder:
        options = data_options or {}
        figures = launch(_measure, argument, run_dir=folder, data=data, version=version, storage_options=options)
    return dict(figures)


def _measure(context: Context) -> dict[str, float]:
    given: Any = context.config
    with local_files(open_store(given["model"], given["model_options"])) as folder:
        model, trained = load_model(folder)
    config = dataclasses.replace(trained, data=context.run.data)
    task = task_of(config)
    loader = open_split(context, config, task, given["split"], training=False)
    return evaluate(model.to(context.device), loader, config, context._ranks, task).metrics


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
