"""A saved model of any task as a function from samples to columns of predictions; it can be sent to other processes.

It is sent by its address in a store, or with its files if they are in a local folder. A process that receives several
copies, such as one for each Spark task, loads the model once. The exact evaluation of such a model on a split of a
version, by any number of ranks, is here, too.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from smalti.catalog import load_manifest
from smalti.dataset.epoch_reader import rows_of
from smalti.errors import BadImageError, SchemaError, TrainingError
from smalti.images.header import exif_orientation
from smalti.images.pixels import turn_upright
from smalti.regular_files import read_regular
from smalti.storage import LocalStore, open_store
from smalti.storage.local_files import local_files
from smalti.torch.collate import SampleCollate, columns_to_tensors
from smalti.torch.train.context import Context
from smalti.torch.train.launchers.spark import importable, read_source
from smalti.torch.train.launchers.start import Program, launch, pickled, unpickled
from smalti.torch.train.run.files import sha256_of
from smalti.torch.train.tasks.images import ImageClassification, logits_of
from smalti.torch.train.trainer.loop import open_split
from smalti.torch.train.trainer.step import evaluate
from smalti.torch.train.trainer.task import MARKS, Batch, Task, load_model, task_of

_KEPT = 2  # models that a process keeps for further copies
_UPRIGHT = 1  # EXIF orientation of an image that need not be turned
_UNKNOWN = 100.0
"""A class that the model does not know has a score so far below the lowest of those that it knows."""

Predictions = dict[str, NDArray[Any]]
"""By column, arrays with a row for each sample; texts, and arrays of different shapes, are objects.

A classifier has int64 `predicted`, texts `predicted_name` if it names its classes, and float32 `confidence` in [0, 1].
"""


class Predictor:
    """A saved model: `predictor(samples)` returns what its task predicts for each sample.

    Args:
        model: address of the folder `model` of a training run.
        options: options of its store. A copy that is sent to another process contains them, if the model is not in a
            local folder.
        batch_size: samples that the model gets at once.
        task: the task, if it was given to the training as an object.

    Raises:
        TrainingError: there is no such model.
        SchemaError: its task cannot be imported.
        StoreError: it cannot be read.

    Examples:
        >>> predictor = Predictor("s3://bucket/runs/7/model")
        >>> predictor.class_names
        ('cat', 'dog')
        >>> predictor.probabilities([Path("photos/cat/0.jpg").read_bytes()]).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        model: str | Path,
        options: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 64,
        task: Task | None = None,
    ) -> None:
        self.address, self.options, self.batch_size = str(model), dict(options or {}), batch_size
        self.sends_files = False
        """True: it is pickled with the files of its model, also of one in a store, whose options it then leaves out."""
        self._given = task
        with local_files(open_store(self.address, self.options)) as folder:
            self.digest = _digest_of(folder, self.address)
            """SHA-256 of the model's files."""
            self.model, self.config = load_model(folder, task)
        self.task = task_of(self.config, task)
        """The task that the model was trained for."""
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.eval().to(self.device)

    @property
    def classifier(self) -> ImageClassification:
        """The task of an image classifier.

        Raises:
            TrainingError: the model was trained for another task.
        """
        if not isinstance(self.task, ImageClassification):
            raise TrainingError(
                f"{self.address} was trained for the task '{self.config.task}', and this needs an image classifier. "
                "Predict from a DataFrame, or a shard set, with the columns that the task reads.",
                task=self.config.task,
            )
        return self.task

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of their numbers; empty if the model does not name them."""
        return self.task.class_names if isinstance(self.task, ImageClassification) else ()

    def __call__(self, samples: "Mapping[str, Any] | Sequence[bytes]", *, upright: bool = True) -> Predictions:
        """Return what the task predicts for each sample; for a classifier the class, its name and its probability.

        Args:
            samples: samples by column, as a shard set has them; or for a classifier encoded images.
            upright: whether these images are turned as their EXIF orientation says, as preparation does with photos.
                Samples of a shard set are not, in training neither.

        Raises:
            BadImageError: an image cannot be decoded; `index` is its place.
            SchemaError: the samples lack a column that the task reads.
            TrainingError: the task predicts nothing, or not for each sample.
        """
        if not isinstance(samples, Mapping):
            samples = {self.classifier.image_column: samples}
        else:
            upright = False
        count = len(next(iter(samples.values()), ()))
        if not count:
            return {name: values[:0] for name, values in self._of_example().items()}
        cuts = [(begin, begin + self.batch_size) for begin in range(0, count, self.batch_size)]
        parts = [
            self._part({name: values[begin:end] for name, values in samples.items()}, begin, upright=upright)
            for begin, end in cuts
        ]
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}

    def trial(self, first: Callable[[], Mapping[str, Any]]) -> Predictions:
        """Return predictions for the example of the task, or else for some samples: they show the columns there are.

        Args:
            first: returns a few samples by column; called only if the task has no example.

        Raises:
            TrainingError: there are no samples.
        """
        answers = self._of_example() or self(first())
        if not answers:
            raise TrainingError(f"there are no samples to predict with the model {self.address}.", model=self.address)
        return answers

    def probabilities(self, images: Sequence[bytes], *, upright: bool = True) -> torch.Tensor:
        """Return the probability of each class, float32 on the CPU, shape (images, classes); all images at once."""
        task = self.classifier
        with torch.inference_mode():
            pixels = self._batch({task.image_column: images}, 0, upright=upright)["pixels"]
            return task.probabilities(self.model, pixels).cpu()

    def of_pixels(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        """Return the probability of each class of decoded images, shape (n, size, size, 3), as `probabilities` does."""
        with torch.inference_mode():
            return self.classifier.of_pixels(self.model, pixels, self.config).cpu()

    def _of_example(self) -> Predictions:
        """Return the predictions for the example of the task; empty if it has none."""
        example = self.task.example(self.config, self.device)
        return {} if example is None else self._answers(example)

    def _part(self, samples: Mapping[str, Any], first: int, *, upright: bool) -> Predictions:
        """Return the predictions for some samples, of which the first has a number."""
        try:
            return self._answers(self._batch(samples, first, upright=upright))
        except KeyError as error:
            (missing,) = error.args or ("",)
            if not isinstance(missing, str) or missing in samples:
                raise
            raise SchemaError(
                f"the task '{self.config.task}' asks for {missing!r}, and the samples have the columns "
                f"{', '.join(sorted(samples))}. If these are all that there is to predict with, give the task a method "
                "`predictions` that needs no others.",
                column=missing,
            ) from error

    def _batch(self, samples: Mapping[str, Any], first: int, *, upright: bool) -> Batch:
        """Return samples by column as the task makes a batch of them in an evaluation."""
        count = len(next(iter(samples.values())))
        marks = dict.fromkeys(MARKS, np.arange(first, first + count))
        transform = self.task.transform(self.config, training=False)
        columns: Mapping[str, Any] = samples
        try:
            if getattr(transform, "on_batches", False):
                columns = transform({**samples, **marks})  # type: ignore[misc]  # it is not None then
            elif transform is not None:
                collate = SampleCollate()
                collate.stored = frozenset(samples)
                columns = collate([transform(sample) for sample in rows_of(samples, count)])
        except BadImageError as error:
            # The numbers in the message of a classifier's transform are those of samples of a shard set.
            cause = error.__cause__ if isinstance(error.__cause__, BadImageError) else error
            place = {"index": first + error.facts["index"]} if "index" in error.facts else {}
            raise BadImageError(str(cause), **{**error.facts, **place}) from error
        if upright:
            images = self.classifier.image_column
            for row, image in enumerate(samples[images]):
                if (orientation := exif_orientation(image)) != _UPRIGHT:
                    # A centred square may be turned after it was cut.
                    columns[images][row] = turn_upright(columns[images][row].copy(), orientation)
        return self.task.batch(columns_to_tensors({**columns, **marks}), self.config, self.device, epoch=None)

    def _answers(self, batch: Batch) -> Predictions:
        """Return what the task predicts for a batch.

        Raises:
            TrainingError: it is not a value for each sample.
        """
        with torch.inference_mode():
            answers = self.task.predictions(self.model, batch, self.config)
        for name, values in answers.items():
            if not hasattr(values, "__len__") or len(values) != len(batch):
                shape = tuple(values.shape) if hasattr(values, "shape") else type(values).__name__
                raise TrainingError(
                    f"the task '{self.config.task}' predicted `{name}` as {shape} for {len(batch)} samples; expected "
                    "one row for each: a tensor, array or list of that length."
                )
        return {name: _as_array(values) for name, values in answers.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        store = open_store(self.address, self.options)
        sent: tuple[Any, Any] = (self.options, None)
        if self.sends_files or isinstance(store, LocalStore):
            with local_files(store) as folder:
                sent = (None, {path.name: read_regular(path) for path in _files_in(folder)})
        own = Program(self.config, task=self._given).source_of
        task = None if self._given is None else pickled(self._given)
        facts = (self.digest, self.batch_size, own, read_source(own), task)
        return _received, (self.address, *sent, *facts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"


_loaded: dict[tuple[str, str | None], Predictor] = {}
"""Predictors that this process has received, by the digest of their files and their task, newest last."""


def _received(
    address: str,
    options: Mapping[str, Any] | None,
    files: Mapping[str, bytes] | None,
    digest: str,
    batch_size: int,
    own: Sequence[str],
    source: Mapping[str, str],
    task: str | None,
) -> Predictor:
    """Return the predictor of these files, or of those at the address.

    Args:
        address: of the model.
        options: of its store.
        files: of the model by name; None: those at the address.
        digest: of the files.
        batch_size: samples that the model gets at once.
        own: each `module:name` of the user's that the model is made with.
        source: Python files that these need.
        task: the pickled task, if it was given as an object.

    Raises:
        TrainingError: the model at the address is another one by now.
    """
    predictor = _loaded.get((digest, task))
    if predictor is None:
        with TemporaryDirectory(prefix="smalti-model-") as folder, importable(own, source):
            for name, content in (files or {}).items():
                Path(folder, name).write_bytes(content)
            given = None if task is None else unpickled(task)
            place = address if files is None else folder
            predictor = Predictor(place, options, batch_size=batch_size, task=given)
        if predictor.digest != digest:
            raise TrainingError(f"the model {address} was replaced while it was in use; start again.", model=address)
        predictor.address = address
        _loaded[digest, task] = predictor
        for key in list(_loaded)[:-_KEPT]:
            del _loaded[key]
    predictor.batch_size = batch_size
    return predictor


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _digest_of(folder: Path, address: str) -> str:
    files = _files_in(folder) if folder.is_dir() else []
    if "smalti.json" not in {path.name for path in files}:
        raise TrainingError(
            f"{address} holds no model of a training run: smalti.json is missing. Give the folder `model` of a run.",
            model=address,
        )
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


# ------------------------------------------------------------ values


def _as_array(values: Any) -> NDArray[Any]:
    """Return the values of some samples as an array with one row for each."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        # numpy has no bfloat16, and shards have no bool.
        kinds = {torch.bfloat16: torch.float32, torch.bool: torch.uint8}
        return np.asarray(values.to(kinds.get(values.dtype, values.dtype)))
    if isinstance(values, np.ndarray):
        return values.astype(np.uint8) if values.dtype == bool else values
    return _objects([_as_array(value) if isinstance(value, torch.Tensor) else value for value in values])


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the values of all samples; of different shapes, such as of padded batches, as objects."""
    if len({(part.shape[1:], part.dtype) for part in parts}) == 1:
        return np.concatenate(parts)
    return _objects([row for part in parts for row in part])


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):  # assigned at once, arrays of one shape would be taken for further axes
        array[place] = value
    return array


# ------------------------------------------------------------ evaluation


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
    names, classes = class_names or manifest.metadata.get("classes") or (), []
    if isinstance(predictor.task, ImageClassification):
        if names and not predictor.class_names:
            raise TrainingError(
                f"{predictor.address} does not name its classes: they cannot be compared with those of {data}"
            )
        # Those of the data, and after them those that only the model knows.
        known = predictor.class_names or tuple(map(str, range(predictor.task.num_classes)))
        classes = list(dict.fromkeys([*names, *known]))
    predictor.sends_files = True
    argument = {"model": predictor, "split": split, "classes": classes, "batch_size": batch_size}
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
    predictor: Predictor = given["model"]
    task: Task = predictor.task
    model: nn.Module = predictor.model.to(context.device)
    trained = dataclasses.replace(predictor.config, data=context.run.data)
    config = dataclasses.replace(trained, batch_size=given["batch_size"] or trained.batch_size)
    loader = open_split(context, config, task, given["split"], training=False)
    task.check(config, loader.streaming_dataset.manifest.schema.columns())
    known, classes = predictor.class_names, given["classes"]
    if known and list(known) != classes:  # compared by name, in the classes of the data
        model = _InClasses(model, [classes.index(name) for name in known], len(classes))
        options = {"num_classes": len(classes), "class_names": classes}
        config = dataclasses.replace(config, task_options={**config.task_options, **options})
        task = dataclasses.replace(predictor.classifier, num_classes=len(classes), class_names=tuple(classes))
    scores = evaluate(model, loader, config, context._ranks, task)
    return dataclasses.asdict(scores)


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
