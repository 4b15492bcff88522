"""A reader's batches as a tf.data.Dataset of namedtuples. TensorFlow is imported on first use."""

from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from typing import Any

import numpy as np

from smalti.compat.petastorm.reading.batch_reader import BatchReader
from smalti.compat.petastorm.refused import refused_function
from smalti.compat.petastorm.unischema import UnischemaField
from smalti.errors import MissingDependency, SchemaError

_PROMOTED: dict[Any, Any] = {np.uint16: np.int32, np.uint32: np.int64, np.datetime64: np.int64}


def load_tensorflow() -> Any:
    """Import and return the module `tensorflow`.

    Raises:
        MissingDependency: TensorFlow is not installed.
    """
    try:
        return import_module("tensorflow")
    except ImportError as error:
        raise MissingDependency(
            "make_tf_dataset needs TensorFlow, which is not installed: pip install tensorflow-cpu (or tensorflow)",
            module="tensorflow",
        ) from error


tf_tensors = refused_function("tf_tensors", "It is of TensorFlow 1: use make_petastorm_dataset.")


def make_petastorm_dataset(reader: BatchReader) -> Any:
    """Return a tf.data.Dataset of namedtuples of tensors, one for each batch of the reader, as `make_tf_dataset` has.

    The rows of a batch are one by one in `dataset.unbatch()`. Further iterations read the reader's next epochs.

    Raises:
        MissingDependency: TensorFlow is not installed.
        SchemaError: a column has no type in TensorFlow, or a name that is not a Python identifier.
    """
    return tf_dataset(reader, shuffle=None, prefetch=None)


def tf_dataset(reader: BatchReader, *, shuffle: int | None, prefetch: int | None) -> Any:
    """Return a dataset of namedtuples of tensors, one for each batch of the reader, of which none may have been read.

    Each further iteration of the dataset reads its next epochs. `shuffle` is the minimal number of rows to mix.

    Raises:
        MissingDependency: TensorFlow is not installed.
        SchemaError: a column has no type in TensorFlow, or a name that is not a Python identifier.
    """
    tf = load_tensorflow()
    reader.configure(shuffle_rows_within=shuffle or 0)
    batch_type = reader.schema.namedtuple
    signature = batch_type(
        *(
            tf.TensorSpec((None, *field.shape), _tf_type(tf, field), name=None)
            for field in reader.schema.fields.values()
        )
    )

    def batches() -> Iterator[Any]:
        if reader.last_row_consumed:
            reader.reset()
        for columns in reader.batches():
            yield batch_type(**{name: _array(name, values) for name, values in columns.items()})

    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)


def _tf_type(tf: Any, field: UnischemaField) -> Any:
    kind = field.numpy_dtype
    if kind in {str, bytes, Decimal, np.str_, np.bytes_}:
        return tf.string
    if kind is not object:
        dtype = np.dtype(_PROMOTED.get(kind if isinstance(kind, type) else np.dtype(kind).type, kind))
        if dtype.kind in "biufc":
            return tf.dtypes.as_dtype(dtype)
    raise SchemaError(
        f"column {field.name!r} has no type in TensorFlow (it holds {getattr(kind, '__name__', kind)}): exclude it "
        "with `schema_fields`, or convert it in a TransformSpec.",
        column=field.name,
    )


def _array(name: str, values: np.ndarray[Any, Any]) -> Any:
    if values.dtype.kind in "biufc":
        return values.astype(_PROMOTED.get(values.dtype.type, values.dtype), copy=False)
    if values.dtype.kind == "M":
        return values.astype("datetime64[ns]").astype(np.int64)
    if values.dtype.kind == "O":
        return [_cell(name, value) for value in values.tolist()]
    return values


def _cell(name: str, value: Any) -> Any:
    if value is None:
        raise SchemaError(
            f"column {name!r} holds None, which TensorFlow does not support: remove those rows with `filters` or a "
            "predicate, or fill them.",
            column=name,
        )
    if isinstance(value, np.ndarray):
        raise SchemaError(
            f"column {name!r} holds arrays of different shapes in one batch: give them one shape in a TransformSpec.",
            column=name,
        )
    return str(value.normalize()) if isinstance(value, Decimal) else value
