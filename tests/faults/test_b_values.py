"""B: values and schemas that could change on their way through the writers and back through the readers.

The values that each encoding accepts are tested in `tests/format`, and Spark's types in `tests/spark`. These tests
check that a refused value is named and nothing is published, and that unusual values come back.
"""

import numpy as np
import pyarrow as pa
import pytest

from smalti.catalog import history
from smalti.dataset import StreamingDataset
from smalti.errors import SchemaError
from smalti.writer import MDSWriter
from tests.format.columns import image_bytes

GOOD = {
    "int32": 1,
    "str": "a",
    "float32": 0.5,
    "int": 7,
    "jpeg": image_bytes("JPEG"),
    "ndarray:int16": np.ones(2, np.int16),
}
ARROW = {"int32": pa.float64(), "str": pa.binary(), "float32": pa.float64(), "int": pa.int64(), "jpeg": pa.binary(),
         "ndarray:int16": pa.list_(pa.int32())}  # fmt: skip


def write_each(root, encoding, values):
    with MDSWriter(out=str(root), columns={"x": encoding}) as writer:
        for value in values:
            writer.write({"x": value})


def refused(root, encoding, bad, by_column):
    """Check that both ways refuse the third sample by column and row, and that nothing is visible or left."""
    good = GOOD[encoding]
    with pytest.raises(SchemaError, match=r"column 'x'.*sample 2: ") as caught:
        write_each(root / "one", encoding, [good, good, bad, good])
    assert (caught.value.column, caught.value.row) == ("x", 2)
    listed = good.tolist() if isinstance(good, np.ndarray) else good.encode() if encoding == "str" else good
    batch = pa.RecordBatch.from_arrays([pa.array([listed, listed, by_column], ARROW[encoding])], ["x"])
    with (
        pytest.raises(SchemaError, match=r"column 'x'.*sample 2: "),
        MDSWriter(out=str(root / "many"), columns={"x": encoding}) as writer,
    ):
        writer.write_batch(batch)
    assert not [path for path in root.rglob("*") if path.suffix in (".json", ".mds", ".arrow")]


@pytest.mark.parametrize("encoding", ["int", "str", "jpeg"])
def test_b3_a_null_is_named_and_publishes_nothing(tmp_path, encoding):
    refused(tmp_path, encoding, None, None)


@pytest.mark.parametrize(("encoding", "bad"), [("int32", 3.9), ("int32", 2.0**31), ("float32", 0.1)])
def test_b6_a_number_that_would_be_rounded_is_named_and_publishes_nothing(tmp_path, encoding, bad):
    refused(tmp_path, encoding, bad, bad)


@pytest.mark.parametrize(
    ("encoding", "bad", "by_column"), [("int", b"\0" * 8, None), ("ndarray:int16", b"\0" * 4, [1 << 15])]
)
def test_b7_bytes_are_refused_as_numbers_and_arrays(tmp_path, encoding, bad, by_column):
    refused(tmp_path, encoding, bad, by_column)


@pytest.mark.parametrize(
    ("bad", "by_column"), [("\ud800", b"\xff"), (b"\xc3", b"\xc3"), (b"\xed\xa0\x80", b"\xed\xa0\x80")]
)
def test_b8_text_that_is_no_utf8_is_refused_when_it_is_written(tmp_path, bad, by_column):
    refused(tmp_path, "str", bad, by_column)


@pytest.mark.parametrize("bad", [b"", image_bytes("JPEG")[:-2], image_bytes("PNG"), b"not an image"])
def test_b9_an_invalid_image_is_refused_when_it_is_written(tmp_path, bad):
    refused(tmp_path, "jpeg", bad, bad)


@pytest.mark.parametrize(
    ("encoding", "bad", "by_column"), [("ndarray:int16", np.ones(2, np.int64), [1, 1 << 20]), ("int", "7", None)]
)
def test_b13_a_type_that_changes_between_samples_is_refused_with_its_row(tmp_path, encoding, bad, by_column):
    refused(tmp_path, encoding, bad, by_column)


def test_b10_a_sample_larger_than_the_limit_is_a_shard_of_its_own_and_none_is_empty(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"x": "bytes"}, size_limit=64) as writer:
        for value in (b"x" * 10_000, b"a", b"y" * 10_000):
            writer.write({"x": value})
    dataset = StreamingDataset(remote=str(tmp_path), batch_size=1)
    assert [shard.samples for shard in dataset.manifest.shards] == [1, 1, 1]
    assert [len(sample["x"]) for sample in dataset] == [10_000, 1, 10_000]


@pytest.mark.parametrize("columns", [{"x": "int", "X": "int"}, {"": "int"}])
def test_b12_indistinguishable_columns_are_refused_before_a_sample(tmp_path, columns):
    with pytest.raises(SchemaError):
        MDSWriter(out=str(tmp_path / "set"), columns=columns)
    assert not (tmp_path / "set").exists() or not any((tmp_path / "set").iterdir())


@pytest.mark.parametrize("sample", [{}, {"x": 1, "y": 2}, {"y": 1}])
def test_b14_a_missing_and_an_unknown_field_are_refused_by_name(tmp_path, sample):
    with (
        pytest.raises(SchemaError, match=r"missing columns .*unknown columns"),
        MDSWriter(out=str(tmp_path), columns={"x": "int"}) as writer,
    ):
        writer.write(sample)


def test_b15_arrays_of_no_elements_come_back_and_one_without_axes_is_refused(tmp_path):
    values = [np.zeros(0, np.int16), np.zeros((2, 0), np.int16), np.ones((1, 1), np.int16)]
    root = tmp_path / "set"
    with MDSWriter(out=str(root), columns={"x": "ndarray"}) as writer:
        for value in values:
            writer.write({"x": value})
        with pytest.raises(SchemaError, match="expected 1 to 63 axes"):
            writer.write({"x": np.array(3, np.int16)})
    dataset = StreamingDataset(remote=str(root))
    assert [dataset[number]["x"].shape for number in range(3)] == [(0,), (2, 0), (1, 1)]
    assert [dataset[number]["x"].dtype for number in range(3)] == [np.int16] * 3


@pytest.mark.parametrize("layout", ["big-endian", "strided", "fortran"])
def test_b16_arrays_of_any_byte_order_and_layout_keep_their_numbers(tmp_path, layout):
    numbers = np.arange(12, dtype=np.int32).reshape(3, 4)
    value = {
        "big-endian": numbers.astype(">i4"),
        "strided": np.repeat(numbers, 2, axis=1)[:, ::2],
        "fortran": np.asfortranarray(numbers),
    }[layout]
    with MDSWriter(out=str(tmp_path), columns={"x": "ndarray:int32"}) as writer:
        writer.write({"x": value})
    assert StreamingDataset(remote=str(tmp_path))[0]["x"].tolist() == numbers.tolist()


ODD = "a\0b e\u0301 \U0001f60b \u05d0\u202e"


def test_b17_any_text_can_be_a_value_a_column_and_a_folder(tmp_path):
    root = tmp_path / ODD.replace("\0", "")
    with MDSWriter(out=str(root), columns={ODD: "str", f"{ODD}2": "json"}) as writer:
        writer.write({ODD: ODD, f"{ODD}2": {ODD: [ODD]}})
    assert StreamingDataset(remote=str(root))[0] == {ODD: ODD, f"{ODD}2": {ODD: [ODD]}}
    assert [info.rows for info in history(str(root))] == [1]
