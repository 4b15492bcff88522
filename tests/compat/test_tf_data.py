"""make_tf_dataset; where TensorFlow is not installed, only that this is said."""

import builtins
from decimal import Decimal
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti.compat.petastorm import SparkDatasetConverter, TransformSpec, make_batch_reader
from smalti.errors import MissingDependency, SchemaError
from tests.compat.parquet_files import flat, write_rows

needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs tensorflow-cpu")


def converter_of(folder, rows=120):
    return SparkDatasetConverter(f"file://{folder}", [f"file://{path}" for path in sorted(folder.iterdir())], rows)


@pytest.fixture
def folder(tmp_path):
    return write_rows(tmp_path / "set", x=float, text=str)


def test_without_tensorflow_the_error_says_what_to_install(folder, monkeypatch):
    imported = builtins.__import__
    monkeypatch.setattr("smalti.compat.petastorm.tf_utils.import_module", lambda name: imported("no_such_module"))
    with pytest.raises(MissingDependency, match="pip install tensorflow-cpu"), converter_of(folder).make_tf_dataset():
        pass


@needs_tensorflow
@pytest.mark.slow
def test_batches_are_namedtuples_of_tensors(folder):
    with converter_of(folder).make_tf_dataset(batch_size=50, num_epochs=1, seed=1) as dataset:
        batches = list(dataset)
    assert [int(batch.id.shape[0]) for batch in batches] == [50, 50, 20]
    assert sorted(flat(batch.id.numpy().tolist() for batch in batches)) == list(range(120))
    assert batches[0]._fields == ("id", "x", "text")
    assert batches[0].text.numpy()[0].decode() == str(batches[0].id.numpy()[0])


@needs_tensorflow
@pytest.mark.slow
def test_the_default_batch_has_32_rows_and_the_dataset_goes_on_without_an_end(folder):
    with converter_of(folder).make_tf_dataset() as dataset:
        sizes = [int(batch.id.shape[0]) for batch in dataset.take(9)]
    assert sizes == [32] * 9


@needs_tensorflow
@pytest.mark.slow
def test_a_second_pass_reads_the_next_epoch(folder):
    with converter_of(folder).make_tf_dataset(batch_size=120, num_epochs=1) as dataset:
        first, second = (next(iter(list(dataset))).id.numpy().tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(120))
    assert first != second


@needs_tensorflow
@pytest.mark.slow
def test_types_are_those_that_tensorflow_has(tmp_path):
    table = pa.table(
        {
            "short": pa.array([1, 65535], pa.uint16()),
            "word": pa.array([1, 2**32 - 1], pa.uint32()),
            "flag": [True, False],
            "price": [Decimal("1.10"), Decimal("2.50")],
            "data": [b"\xff", b""],
            "at": np.array(["1970-01-01T00:00:01"] * 2, "datetime64[us]"),
            "pair": [[1.0, 2.0], [3.0, 4.0]],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    with converter_of(tmp_path, 2).make_tf_dataset(num_epochs=1, shuffle_row_groups=False) as dataset:
        (batch,) = dataset
    assert {name: (each.dtype.name, each.numpy().tolist()) for name, each in batch._asdict().items()} == {
        "short": ("int32", [1, 65535]),
        "word": ("int64", [1, 2**32 - 1]),
        "flag": ("bool", [True, False]),
        "price": ("string", [b"1.1", b"2.5"]),
        "data": ("string", [b"\xff", b""]),
        "at": ("int64", [10**9, 10**9]),
        "pair": ("float64", [[1.0, 2.0], [3.0, 4.0]]),
    }


@needs_tensorflow
@pytest.mark.slow
def test_a_transforms_columns_have_their_declared_shape(folder):
    spec = TransformSpec(
        lambda frame: frame.assign(image=[np.full((4, 5, 3), row, np.uint8) for row in frame["id"]]),
        edit_fields=[("image", np.uint8, (4, 5, 3), False)],
        selected_fields=["image", "id"],
    )
    with converter_of(folder).make_tf_dataset(batch_size=10, num_epochs=1, transform_spec=spec) as dataset:
        assert dataset.element_spec.image.shape.as_list() == [None, 4, 5, 3]
        batch = next(iter(dataset))
    assert batch.image.numpy()[:, 0, 0, 0].tolist() == batch.id.numpy().tolist()


@needs_tensorflow
@pytest.mark.slow
def test_columns_that_tensorflow_has_no_type_for_are_refused_by_name(tmp_path):
    pq.write_table(pa.table({"s": [{"a": 1}]}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match="'s' has no type"), converter_of(tmp_path, 1).make_tf_dataset():
        pass


@needs_tensorflow
@pytest.mark.slow
def test_a_missing_value_ends_the_dataset_with_the_columns_name(tmp_path):
    import tensorflow as tf

    pq.write_table(pa.table({"t": ["a", None]}), tmp_path / "a.parquet")
    told = pytest.raises(tf.errors.OpError, match="'t' holds None")
    with converter_of(tmp_path, 2).make_tf_dataset(num_epochs=1) as dataset, told:
        list(dataset)


@needs_tensorflow
@pytest.mark.slow
def test_keras_trains_on_it(folder):
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    converter = converter_of(folder)
    with converter.make_tf_dataset(batch_size=10, schema_fields=["id", "x"]) as dataset:
        pairs = dataset.map(lambda batch: (tf.reshape(batch.x, (-1, 1)) / 120, batch.id / 120))
        told = model.fit(pairs, steps_per_epoch=len(converter) // 10, epochs=2, verbose=0, shuffle=False)
    assert len(told.history["loss"]) == 2


@needs_tensorflow
@pytest.mark.slow
def test_petastorms_function_makes_the_same_dataset_of_a_reader(folder):
    from smalti.compat.petastorm.tf_utils import make_petastorm_dataset

    with make_batch_reader(f"file://{folder}", batch_size=50) as reader:
        dataset = make_petastorm_dataset(reader)
        batches = list(dataset)
        rows = list(dataset.unbatch().batch(7))
    assert [int(batch.id.shape[0]) for batch in batches] == [50, 50, 20]
    assert sorted(flat(batch.id.numpy().tolist() for batch in batches)) == list(range(120))
    assert sorted(flat(batch.id.numpy().tolist() for batch in rows)) == list(range(120))
    assert int(rows[0].id.shape[0]) == 7
