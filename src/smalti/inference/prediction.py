"""Predictions of a saved model: for a folder of images, a DataFrame of pandas or Spark, or a shard set.

On Spark's executors, the model is loaded once in each Python process, not once for each task or batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.catalog import Manifest, load_manifest
from smalti.errors import BadImageError, SchemaError, StoreNotFound
from smalti.process import use_driver_python
from smalti.sources.image_folder import is_hidden_name
from smalti.sources.listing import list_source
from smalti.spark import add_columns
from smalti.storage import Store, open_store
from smalti.torch.train.predictor import CONFIDENCE, NAME, PREDICTED, Predictions, Predictor

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

_IMAGES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif")
_READERS = 8  # threads that read files; a store answers many requests at once
_SPARK_TYPES = {PREDICTED: "long", NAME: "string", CONFIDENCE: "float"}


def predict(
    model: "str | Path | Predictor",
    source: "str | Path | pd.DataFrame | DataFrame",
    *,
    column: str | None = None,
    prefix: str = "",
    model_options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    spark: "SparkSession | None" = None,
) -> "pa.Table | pd.DataFrame | DataFrame | Manifest":
    """Predict the class of each image of a source, with a saved model.

    The columns of the result are `predicted` (the number of the class), `predicted_name` if the model names its
    classes, and `confidence` (the probability of that class).

    Args:
        model: address of the folder `model` of a training run; or a predictor.
        source: the images. The result depends on it:

            - a DataFrame of pandas: a copy with the columns added;
            - a DataFrame of Spark: a DataFrame with the columns added, computed lazily;
            - the address of a shard set: a new version with the columns added, and its manifest; shards are not
              rewritten (see `smalti.add_columns`);
            - the address of another folder: a table of Arrow with the `path` of each image file below it, sorted.
        column: the column with encoded images; None: that which the model was trained on.
        prefix: text before the names of the added columns.
        model_options: options of the store of the model.
        storage_options: options of the store of the source.
        spark: session whose executors predict for a shard set; None: this process.

    Raises:
        BadImageError: an image cannot be decoded; the message names it.
        SchemaError: the column does not exist or has no images, or a column exists already.
        TrainingError: there is no such model.
        StoreError: model or source cannot be read.
    """
    predictor = model if isinstance(model, Predictor) else Predictor(model, model_options)
    column = column or predictor.task.image_column
    if not isinstance(source, str | Path):
        return _predict_frame(predictor, source, column, prefix)
    store = open_store(source, storage_options)
    if not _is_shard_set(store):
        return _predict_files(predictor, store, prefix)
    added = {f"{prefix}{name}": encoding for name, encoding in predictor.columns.items()}
    values = _OfColumns(predictor, column, prefix)
    return add_columns(source, added, values, spark=spark, storage_options=storage_options)


def _is_shard_set(store: Store) -> bool:
    try:
        load_manifest(store)
    except StoreNotFound:
        return False
    return True


def _predict_files(predictor: Predictor, store: Store, prefix: str) -> pa.Table:
    listing = list_source(store, is_hidden_name, lambda key: key.lower().endswith(_IMAGES))
    listing.left_out.warn(store.url)
    paths = [item.key for item in listing.objects]
    if not paths:
        raise StoreNotFound(
            f"{store.url} has neither a shard set nor images ({', '.join(_IMAGES)}); check the address", url=store.url
        )
    parts: list[dict[str, Any]] = []
    with ThreadPoolExecutor(_READERS, thread_name_prefix="smalti-predict") as pool:
        ahead = 2 * predictor.batch_size
        for begin in range(0, len(paths), ahead):
            some = paths[begin : begin + ahead]
            found = _predicted(predictor, list(pool.map(store.get, some)), some.__getitem__)
            parts.append({"path": some, **{f"{prefix}{name}": values for name, values in found.items()}})
    return pa.concat_tables([pa.table(part) for part in parts])


def _predict_frame(predictor: Predictor, frame: Any, column: str, prefix: str) -> Any:
    names = [f"{prefix}{name}" for name in predictor.columns]
    taken = [name for name in names if name in frame.columns]
    if column not in frame.columns or taken:
        what = f"there is a column {taken[0]!r} already" if taken else f"there is no column {column!r} of images"
        raise SchemaError(f"{what}; the columns are {', '.join(map(str, frame.columns))}", column=column)
    if hasattr(frame, "mapInArrow"):
        return _predict_spark(predictor, frame, column, prefix)
    found = _predicted(predictor, frame[column].tolist(), lambda row: f"row {frame.index[row]!r} of {column!r}")
    return frame.assign(**{f"{prefix}{name}": values for name, values in found.items()})


def _predict_spark(predictor: Predictor, frame: "DataFrame", column: str, prefix: str) -> "DataFrame":
    from pyspark.sql import functions

    use_driver_python(frame.sparkSession)
    of_series = _pandas_function(predictor, column)
    fields = ",".join(f"{name}:{_SPARK_TYPES[name]}" for name in predictor.columns)
    predicted = functions.pandas_udf(of_series, f"struct<{fields}>")
    place = f"_{prefix}prediction"
    added = [functions.col(f"`{place}`.{name}").alias(f"{prefix}{name}") for name in predictor.columns]
    whole = frame.withColumn(place, predicted(functions.col(f"`{column}`")))
    return whole.select(*(functions.col(f"`{name}`") for name in frame.columns), *added)


def _pandas_function(predictor: Predictor, column: str) -> Any:
    """Return a function for Spark, which is pickled by value; the predictor is unpickled once in each process."""
    import pandas as pd

    def of_series(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        for images in batches:
            yield pd.DataFrame(_predicted(predictor, images.tolist(), lambda _: f"an image of column {column!r}"))

    of_series.__annotations__ = {"batches": Iterator[pd.Series], "return": Iterator[pd.DataFrame]}
    return of_series


class _OfColumns:
    """A function from samples, by column, to the columns of predictions, as `add_columns` takes it."""

    def __init__(self, predictor: Predictor, column: str, prefix: str) -> None:
        self._predictor, self._column, self._prefix = predictor, column, prefix

    def __call__(self, samples: Mapping[str, Any]) -> dict[str, Any]:
        if self._column not in samples:
            raise SchemaError(
                f"there is no column {self._column!r} of images; the columns are {', '.join(sorted(samples))}",
                column=self._column,
            )
        images, name = samples[self._column], f"a sample's {self._column!r}"
        found = _predicted(self._predictor, images, lambda _: name, upright=False)
        return {f"{self._prefix}{name}": values.tolist() for name, values in found.items()}


def _predicted(
    predictor: Predictor, images: Sequence[Any], name_of: Callable[[int], str], *, upright: bool = True
) -> Predictions:
    """Return predictions; errors name the image by its place."""
    for place, image in enumerate(images):
        if not isinstance(image, bytes | bytearray | memoryview):
            raise SchemaError(f"{name_of(place)} is {type(image).__name__}, expected the bytes of an encoded image")
    try:
        return predictor(images, upright=upright)
    except BadImageError as error:
        raise BadImageError(f"{name_of(error.facts['index'])}: {error}", **error.facts) from error
