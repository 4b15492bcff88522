"""Predictions of a saved model: for a folder of images, a DataFrame of pandas or Spark, or a shard set.

On Spark's executors, the model is loaded once in each Python process, not once for each task or batch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from smalti.catalog import Manifest, load_manifest
from smalti.catalog.verify import open_checked
from smalti.errors import BadImageError, SchemaError, StoreNotFound
from smalti.format import parse_encoding
from smalti.format.logical import parse_logical
from smalti.process import use_driver_python
from smalti.sources.image_folder import is_hidden_name
from smalti.sources.listing import list_source
from smalti.spark import add_columns
from smalti.storage import Store, open_store
from smalti.torch.train.predictor import Predictions, Predictor
from smalti.torch.train.tasks.images import ImageClassification
from smalti.torch.train.trainer.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

_IMAGES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif")
_READERS = 8  # threads that read files; a store answers many requests at once
_TRIED = 2  # samples that show which columns a task predicts
_SPARK_TYPES = {
    "int8": "byte", "int16": "short", "int32": "int", "int64": "long", "uint8": "short", "uint16": "int",
    "uint32": "long", "float16": "float", "float32": "float", "float64": "double",
}  # fmt: skip
"""Spark's type by numpy's; Spark has no unsigned numbers, and no half precision."""


def predict(
    model: "str | Path | Predictor",
    source: "str | Path | pd.DataFrame | DataFrame",
    *,
    column: str | None = None,
    prefix: str = "",
    task: Task | None = None,
    model_options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    spark: "SparkSession | None" = None,
) -> "pa.Table | pd.DataFrame | DataFrame | Manifest":
    """Predict with a saved model for each sample of a source.

    The columns of the result are those that `predictions` of the model's task returns. For image classification these
    are `predicted` (the number of the class), `predicted_name` if the model names its classes, and `confidence` (the
    probability of that class).

    Args:
        model: address of the folder `model` of a training run; or a predictor.
        source: the samples. The result depends on it:

            - a DataFrame of pandas: a copy with the columns added;
            - a DataFrame of Spark: a DataFrame with the columns added, computed lazily;
            - the address of a shard set: a new version with the columns added, and its manifest; shards are not
              rewritten (see `smalti.add_columns`);
            - for image classifiers, the address of another folder: a table of Arrow with the `path` of each image file
              below it, sorted.
        column: for image classifiers, the column with encoded images; None: that which the model was trained on. Other
            tasks get all columns.
        prefix: text before the names of the added columns.
        task: the task, if it was given to the training as an object.
        model_options: options of the store of the model.
        storage_options: options of the store of the source.
        spark: session whose executors predict for a shard set; None: this process.

    Raises:
        BadImageError: an image cannot be decoded; the message names it.
        SchemaError: a column does not exist or has no images, or a column exists already.
        TrainingError: there is no such model, its task predicts nothing, or it cannot predict for such a source.
        StoreError: model or source cannot be read.

    Examples:
        >>> predict("s3://bucket/runs/7/model", "s3://bucket/photos", column="image").version
        2
        >>> smalti.open_dataset("s3://bucket/photos", split="train")[0]["predicted_name"] in ("cat", "dog")
        True
    """
    predictor = model if isinstance(model, Predictor) else Predictor(model, model_options, task=task)
    if column is not None or isinstance(predictor.task, ImageClassification):
        image_column = predictor.classifier.image_column
        column = column or image_column
    work = _Predicting(predictor, column, prefix)
    if not isinstance(source, str | Path):
        return _predict_frame(work, source)
    store = open_store(source, storage_options)
    try:
        manifest = load_manifest(store)
    except StoreNotFound:
        manifest = None
    if manifest is None:
        return _predict_files(work, store)
    transform = predictor.task.transform(predictor.config, training=False)
    if transform is not None and not getattr(transform, "on_batches", False):
        columns = manifest.schema.columns()
        opened = {name: encoding for name, encoding in columns.items() if encoding in ("jpeg", "png")}
        work = replace(work, opened=opened)
    samples = predictor.trial(lambda: work.read(_first_samples(store, manifest)))
    added = {f"{prefix}{name}": _encoding_of(values) for name, values in samples.items()}
    return add_columns(source, added, work.for_samples, spark=spark, storage_options=storage_options)


@dataclass(frozen=True)
class _Predicting:
    """The predictions of a model, with errors that name the samples."""

    predictor: Predictor
    column: str | None
    """That of images; None: the task is no image classification, and gets all columns."""
    prefix: str
    """Before the names of the columns of predictions."""
    opened: Mapping[str, str] = field(default_factory=dict)
    """Encodings of the columns of a shard set that the task's transform gets as images of Pillow."""

    def __call__(
        self, samples: Mapping[str, Any], name_of: Callable[[int], str], *, upright: bool = True
    ) -> Predictions:
        """Return predictions by their final names; errors name an image by its place.

        Args:
            samples: by column.
            name_of: returns the name of the image at a place.
            upright: whether images are turned as their EXIF orientation says.
        """
        self.check_column(samples)
        images = samples if self.column is None else samples[self.column]
        for place, image in enumerate(() if self.column is None else images):
            if not isinstance(image, bytes | bytearray | memoryview):
                raise SchemaError(f"{name_of(place)} is {type(image).__name__}, expected the bytes of an encoded image")
        try:
            answers = self.predictor(images, upright=upright)
        except BadImageError as error:
            if self.column is None or "index" not in error.facts:  # of a transform of the user's
                raise
            raise BadImageError(f"{name_of(error.facts['index'])}: {error}", **error.facts) from error
        return {f"{self.prefix}{name}": values for name, values in answers.items()}

    def check_column(self, names: Iterable[Any]) -> None:
        """Check that the column of images is among those of the source."""
        known = [str(name) for name in names]
        if self.column is not None and self.column not in known:
            raise SchemaError(
                f"there is no column {self.column!r} of images; the columns are {', '.join(known)}",
                column=self.column,
            )

    def for_samples(self, samples: Mapping[str, Any]) -> dict[str, Any]:
        """Return predictions for samples of a shard set by column, as `add_columns` takes them."""
        answers = self(self.read(samples), lambda _: f"a sample's {self.column!r}", upright=False)
        return {name: values.tolist() if values.ndim == 1 else values for name, values in answers.items()}

    def read(self, samples: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return samples of a shard set by column as a dataset gives them to the task's transform."""
        decoders = {name: parse_encoding(encoding).decode for name, encoding in self.opened.items()}
        images = {name: [decode(data) for data in samples[name]] for name, decode in decoders.items()}
        return {**samples, **images}


def _first_samples(store: Store, manifest: Manifest) -> Mapping[str, Any]:
    """Return a few samples of a version by column; none if it has none."""
    types = parse_logical(manifest.logical, manifest.schema.columns())
    for info in manifest.shards:
        with open_checked(store, info) as shard:
            stored = shard.batch(np.arange(min(_TRIED, info.samples)))
            return stored if types is None else types.batch(stored)
    return {}


def _predict_files(work: _Predicting, store: Store) -> pa.Table:
    column = work.column or work.predictor.classifier.image_column  # other tasks cannot predict from files
    objects, left_out = list_source(store, is_hidden_name, lambda key: key.lower().endswith(_IMAGES))
    left_out.warn(store.url)
    paths = [item.key for item in objects]
    if not paths:
        raise StoreNotFound(
            f"{store.url} has neither a shard set nor images ({', '.join(_IMAGES)}); check the address", url=store.url
        )
    parts: list[dict[str, Any]] = []
    with ThreadPoolExecutor(_READERS, thread_name_prefix="smalti-predict") as pool:
        ahead = 2 * work.predictor.batch_size
        for begin in range(0, len(paths), ahead):
            some = paths[begin : begin + ahead]
            images = list(pool.map(store.get, some))
            parts.append({"path": some, **work({column: images}, some.__getitem__)})
    return pa.concat_tables([pa.table(part) for part in parts])


def _predict_frame(work: _Predicting, frame: Any) -> Any:
    def first() -> Mapping[str, Any]:
        few = frame.limit(_TRIED).toPandas() if hasattr(frame, "mapInArrow") else frame[:_TRIED]
        return _columns_of(few)

    names = list(frame.columns)
    work.check_column(names)
    samples = work.predictor.trial(first)
    taken = [name for name in (f"{work.prefix}{each}" for each in samples) if name in names]
    if taken:
        raise SchemaError(
            f"there is a column {taken[0]!r} already; the columns are {', '.join(map(str, names))}", column=taken[0]
        )
    if hasattr(frame, "mapInArrow"):
        return _predict_spark(work, frame, samples)
    inputs = frame if work.column is None else frame[[work.column]]
    answers = work(_columns_of(inputs), lambda row: f"row {frame.index[row]!r} of {work.column!r}")
    return frame.assign(**{name: values if values.ndim == 1 else list(values) for name, values in answers.items()})


def _predict_spark(work: _Predicting, frame: "DataFrame", samples: Predictions) -> "DataFrame":
    import pandas as pd
    from pyspark.sql import functions

    use_driver_python(frame.sparkSession)
    fields = ",".join(f"`{name}`:{_spark_type_of(name, values)}" for name, values in samples.items())
    bare = replace(work, prefix="")

    def of_frames(batches: "Iterator[pd.DataFrame]") -> "Iterator[pd.DataFrame]":  # is pickled by value
        for frames in batches:
            answers = bare(_columns_of(frames), lambda _: f"an image of column {bare.column!r}")
            yield pd.DataFrame({name: _nested(values) for name, values in answers.items()})

    of_frames.__annotations__ = {"batches": Iterator[pd.DataFrame], "return": Iterator[pd.DataFrame]}
    predicted = functions.pandas_udf(of_frames, f"struct<{fields}>")
    place = f"_{work.prefix}prediction"
    added = [functions.col(f"`{place}`.`{name}`").alias(f"{work.prefix}{name}") for name in samples]
    own = [functions.col(f"`{name}`") for name in frame.columns]
    inputs = own if work.column is None else [functions.col(f"`{work.column}`")]
    whole = frame.withColumn(place, predicted(functions.struct(*inputs)))
    return whole.select(*own, *added)


# ------------------------------------------------------------ values


def _columns_of(frame: "pd.DataFrame") -> dict[str, Any]:
    """Return the columns of a DataFrame of pandas as those of a shard set: arrays of numbers, and lists."""
    return {
        str(name): frame[name].to_numpy() if frame[name].dtype.kind in "biuf" else frame[name].tolist()
        for name in frame.columns
    }


def _nested(values: NDArray[Any]) -> Any:
    """Return predictions as a column that Arrow can take: arrays of several axes as nested lists."""
    if values.ndim == 1 and values.dtype != object:
        return values
    return [row.tolist() if isinstance(row, np.ndarray) else row for row in values]


def _encoding_of(values: NDArray[Any]) -> str:
    """Return the encoding of a column of predictions, by some of them."""
    first = values[0]
    if isinstance(first, np.ndarray):
        return f"ndarray:{first.dtype}"
    if values.dtype == object:
        return "str" if isinstance(first, str) else "bytes" if isinstance(first, bytes) else "json"
    return "int" if values.dtype == np.int64 else str(values.dtype)


def _spark_type_of(name: str, values: NDArray[Any]) -> str:
    """Return Spark's type of a column of predictions, by some of them.

    Raises:
        SchemaError: it has none.
    """
    first = values[0]
    if isinstance(first, str | bytes):
        return "string" if isinstance(first, str) else "binary"
    kind = _SPARK_TYPES.get(np.asarray(first).dtype.name)
    if kind is None:
        raise SchemaError(
            f"the task predicts {name!r} as {type(first).__name__}, which a DataFrame of Spark cannot hold: return "
            "numbers, texts, bytes or arrays from `predictions`, or predict for a shard set.",
            column=name,
        )
    return "array<" * np.ndim(first) + kind + ">" * np.ndim(first)
