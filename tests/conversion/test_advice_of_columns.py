"""Advice of messages about columns: each refused table is converted when the advice is followed."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from smalti import convert
from smalti.errors import SchemaError, SmaltiError
from tests.conversion.rows import samples_of, table_source


def rounded(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "x", pc.cast(batch["x"], pa.timestamp("us"), safe=False))


def dropped(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns(["x"]).append_column(
        "day", pc.cast(pa.array([0] * batch.num_rows, pa.int32()), pa.date32())
    )


def as_array(batch: pa.RecordBatch) -> pa.RecordBatch:
    pairs = [[{"key": key, "value": value} for key, value in row] for row in batch["x"].to_pylist()]
    return pa.RecordBatch.from_pydict({"x": pairs})


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": [json.dumps(value) for value in batch["x"].to_pylist()]})


def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column(0).flatten()[0]], ["x"])


def nested(depth):
    array = pa.array([1])
    for _ in range(depth):
        array = pa.StructArray.from_arrays([array], ["f"])
    return array


NESTED_KEY = pa.array([[({"a": 1}, 2)]], pa.map_(pa.struct([("a", pa.int64())]), pa.int64()))
DEEP = {"x": json.dumps(nested(40)[0].as_py())}
TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
INFINITE = {"x": [float("inf")]}
CASES = {
    "a column of nothing: leave it out": ({"x": pa.nulls(1), "y": [1]}, {}, {"columns": {"y": None}}, {"y": 1}),
    "round it before writing": (
        {"x": pa.array([1_001], pa.timestamp("ns"))}, {}, {"transform": rounded}, {"x": np.datetime64(1, "us")},
    ),
    "or store it as json": ({"x": [[1, None]]}, {}, {"columns": {"x": "json"}}, {"x": [1, None]}),
    "the column can be stored as json": ({"x": [[[1], [2, 3]]]}, {}, {"columns": {"x": "json"}}, {"x": [[1], [2, 3]]}),
    "leave it out, or cast it": (
        {"x": pa.array([pa.MonthDayNano([1, 2, 3])])}, {}, {"transform": dropped}, {"day": np.datetime64("1970-01-01")},
    ),
    "store it as an array": ({"x": NESTED_KEY}, {}, {"transform": as_array}, {"x": [{"key": {"a": 1}, "value": 2}]}),
    "store the inner ones as text": ({"x": nested(40)}, {}, {"transform": as_text}, DEEP),
    "two fields have one name: rename one": (
        {"x": TWICE}, {}, {"transform": renamed}, {"x": 1},
    ),
    'say what to do with `nulls={\'x\': "mask"}`': ({"x": [None, 1]}, {}, {"nulls": {"x": "mask"}}, {"x": None}),
    'or `{"default": ...}`': ({"x": [None, 1]}, {}, {"nulls": {"x": {"default": 7}}}, {"x": 7}),
    "clean the column, or keep them": (
        INFINITE, {"nulls": {"x": {"nan": "reject"}}}, {"nulls": {"x": {"nan": "keep"}}}, {"x": float("inf")},
    ),
    "it can be stored as int, int8": ({"x": [True]}, {"columns": {"x": "str"}}, {"columns": {"x": "int"}}, {"x": 1}),
}  # fmt: skip


def plain(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) and value.dtype.kind not in "mM" else value


@pytest.mark.parametrize("advice", CASES)
def test_advice_works_when_it_is_followed(tmp_path, advice):
    columns, refused, followed, expected = CASES[advice]
    table = pa.table(columns)
    with pytest.raises(SchemaError) as caught:
        convert(table_source(table), tmp_path / "refused", processes=1, **refused)
    assert advice in str(caught.value)
    convert(table_source(table), tmp_path / "set", processes=1, **followed)
    assert {name: plain(value) for name, value in samples_of(tmp_path / "set")[0].items()} == expected


def test_files_that_do_not_fit_each_other_are_converted_on_their_own_or_with_one_type(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us"))}), folder / "a.parquet")
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us", "UTC"))}), folder / "b.parquet")
    with pytest.raises(SmaltiError, match=r"b\.parquet has other columns than a\.parquet.*Convert them on their own"):
        convert(folder, tmp_path / "set", processes=1)
    assert convert(folder / "a.parquet", tmp_path / "a", processes=1).rows == 1
    assert convert(folder / "b.parquet", tmp_path / "b", processes=1).rows == 1
