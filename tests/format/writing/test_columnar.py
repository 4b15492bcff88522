"""Arrow batches give the same shard bytes as samples one at a time (invariant I8), and refuse the same values."""

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.errors import SchemaError
from smalti.format import Schema, ShardBuilder, ShardOptions, parse_encoding
from tests.format.columns import COLUMNS, NAMES, SCALARS, image_bytes

NO_HASH = ShardOptions(hashes=(), size_limit=None)


def payloads(columns, options, pieces):
    """Shards of `pieces`, each a batch or a list of samples."""
    builder, built = ShardBuilder(Schema.from_columns(columns), options), []
    for piece in pieces:
        if isinstance(piece, pa.RecordBatch):
            built += builder.add_batch(piece)
        else:
            for sample in piece:
                built += builder.add(sample)
    return [(shard.info, bytes(shard.payloads[0])) for shard in (filled.seal() for filled in built + builder.finish())]


@st.composite
def tables(draw):
    encodings = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
    columns = {f"c{i}": encoding for i, encoding in enumerate(encodings)}
    rows = draw(st.integers(1, 12))
    values = {
        name: draw(st.lists(COLUMNS[encoding][0], min_size=rows, max_size=rows)) for name, encoding in columns.items()
    }
    arrays = [pa.array(values[name], COLUMNS[encoding][1]) for name, encoding in columns.items()]
    samples = [{name: values[name][row] for name in columns} for row in range(rows)]
    return columns, pa.record_batch(arrays, list(columns)), samples


@settings(max_examples=150, deadline=None)
@given(tables(), st.integers(0, 12), st.sampled_from([None, 1, 300, 500, 900]), st.sampled_from([None, "zstd:1"]))
def test_same_rows_give_same_bytes_however_they_arrive(table, cut, limit, compression):
    columns, batch, samples = table
    options = ShardOptions(compression=compression, hashes=("xxh3_64",), size_limit=limit)
    expected = payloads(columns, options, [samples])
    assert payloads(columns, options, [batch]) == expected
    assert payloads(columns, options, [batch.slice(0, cut), samples[cut:]]) == expected
    assert payloads(columns, options, [samples[:cut], batch.slice(cut)]) == expected


@pytest.mark.parametrize(
    ("encoding", "array", "values"),
    [
        ("int", pa.array([1, 2], pa.uint8()), [1, 2]),
        ("int", pa.array([True, False]), [True, False]),
        ("int16", pa.array([1.0, -3.0]), [1, -3]),
        ("float64", pa.array([1, 2], pa.int16()), [1.0, 2.0]),
        ("float64", pa.array([0.5, float("nan")], pa.float32()), [0.5, float("nan")]),
        ("float16", pa.array(np.array([1.5, 2], np.float16)), [1.5, 2.0]),
        ("str", pa.array(["a", "é", "a"]).dictionary_encode(), ["a", "é", "a"]),
        ("str", pa.array(["a", "é"], pa.large_string()), ["a", "é"]),
        ("str", pa.array(["a", "é"], pa.string_view()), ["a", "é"]),
        ("str", pa.array([b"a", "é".encode()]), ["a", "é"]),
        ("bytes", pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
        ("bytes", pa.array([b"ab", b""], pa.binary_view()), [b"ab", b""]),
        ("json", pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())), [{"a": 1}, {}]),
        ("json", pa.array([{"m": [("a", None)], "l": [[("b", 2)]]}],
                          pa.struct({"m": pa.map_(pa.string(), pa.int32()),
                                     "l": pa.list_(pa.map_(pa.string(), pa.int8()))})),
         [{"m": {"a": None}, "l": [{"b": 2}]}]),
        ("ndarray", pa.array([[1, 2], [3]], pa.list_(pa.int16())), [np.array([1, 2], "i2"), np.array([3], "i2")]),
        ("ndarray", pa.array([[[1], [2]]], pa.list_(pa.list_(pa.float32()))), [np.array([[1], [2]], "f4")]),
        ("ndarray:int32", pa.array([[1, 2], [3]], pa.list_(pa.int64())), [[1, 2], [3]]),
        ("ndarray:int32", pa.array([[[1, 2]], [[3], [4]]], pa.list_(pa.list_(pa.int64()))), [[[1, 2]], [[3], [4]]]),
        ("ndarray:uint8", pa.array([[0] * 255, [0] * 256, [1]], pa.list_(pa.uint8())), [[0] * 255, [0] * 256, [1]]),
        ("ndarray:float32:2,2", pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8, dtype="f4").reshape(2, 2, 2)),
         list(np.arange(8, dtype="f4").reshape(2, 2, 2))),
        ("ndarray:float32", pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8, dtype="f4").reshape(2, 2, 2)),
         list(np.arange(8, dtype="f4").reshape(2, 2, 2))),
    ],
)  # fmt: skip
def test_every_arrow_kind_of_a_value_is_stored_like_the_value(encoding, array, values):
    for begin in range(len(values)):  # a slice has an offset into its buffers
        batch = pa.record_batch([array[begin:]], ["x"])
        assert payloads({"x": encoding}, NO_HASH, [batch]) == payloads(
            {"x": encoding}, NO_HASH, [[{"x": value} for value in values[begin:]]]
        )


BROKEN_TEXT = pa.Array.from_buffers(
    pa.string(), 3, [None, pa.py_buffer(np.array([0, 1, 2, 3], np.int32)), pa.py_buffer(b"a\xffb")]
)


@pytest.mark.parametrize(
    ("encoding", "array", "row"),
    [
        ("int", pa.array([1, None, 3]), 1),
        ("float64", pa.array([1.0, 2.0, None]), 2),
        ("str", pa.array(["a", None]), 1),
        ("bytes", pa.array([None, b"a"]), 0),
        ("json", pa.array([[1], None]), 1),
        ("ndarray:int32", pa.array([[1], None], pa.list_(pa.int32())), 1),
        ("jpeg", pa.array([image_bytes("JPEG"), None]), 1),
        ("int", pa.nulls(2), 0),
        ("int8", pa.array([1, 128]), 1),
        ("uint8", pa.array([0, 255, -1]), 2),
        ("int32", pa.array([1.0, 3.9]), 1),
        ("float32", pa.array([0.5, 0.1]), 1),
        ("float64", pa.array([0, 2**53 + 1]), 1),
        ("int64", pa.array([0, 2**63], pa.uint64()), 1),
        ("int", pa.array(["1"]), 0),
        ("int", pa.array([0], pa.timestamp("us")), 0),
        ("int", pa.array([0], pa.date32()), 0),
        ("str", BROKEN_TEXT, 1),
        ("str", pa.array([b"a", b"b", b"\xff"]), 2),
        ("str", pa.array([1]), 0),
        ("bytes", pa.array(["a"]), 0),
        ("json", pa.array([1.0, float("nan")]), 1),
        ("json", pa.array([[], [(1, 1)]], pa.map_(pa.int8(), pa.int8())), 1),
        ("json", pa.array([[], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())), 1),
        ("str_int", pa.array([True]), 0),
        ("jpeg", pa.array([image_bytes("JPEG"), b""]), 1),
        ("png", pa.array([image_bytes("JPEG")]), 0),
        ("ndarray:int32", pa.array([[1], [2, None]], pa.list_(pa.int32())), 1),
        ("ndarray:int32", pa.array([[1], [2, 2**31]], pa.list_(pa.int64())), 1),
        ("ndarray:int32", pa.array([1]), 0),
        ("ndarray:int32", pa.array([[[1]], [[1], [2, 3]]], pa.list_(pa.list_(pa.int32()))), 1),
        ("ndarray", pa.array([[[1]], [[None]]], pa.list_(pa.list_(pa.int32()))), 1),
        ("ndarray", pa.array([[True]]), 0),
        ("ndarray:int32:2", pa.array([[1, 2], [3]], pa.list_(pa.int32())), 1),
        ("ndarray:int32:2", pa.array([[1, 2], [3, None]], pa.list_(pa.int32())), 1),
        ("ndarray:int32:1,2", pa.array([[1, 2]], pa.list_(pa.int32())), 0),
        ("ndarray:int32:2,1", pa.array([[[1], [2]], [[3], [4, 5]]], pa.list_(pa.list_(pa.int32()))), 1),
        ("ndarray:int8:2", pa.array([[1, 2], [3, 128]], pa.list_(pa.int32())), 1),
    ],
)
def test_value_that_would_change_is_refused_with_its_column_and_row(encoding, array, row):
    builder = ShardBuilder(Schema.from_columns({"x": encoding, "a": "int"}), NO_HASH)
    first = pa.record_batch([pa.array([1, 2, 3])], ["n"])
    assert first.num_rows == 3
    with pytest.raises(SchemaError) as caught:
        builder.add_batch(pa.record_batch([array, pa.array(range(len(array)))], ["x", "a"]))
    assert (caught.value.column, caught.value.row) == ("x", row)
    assert builder.finish() == []


def test_rows_are_counted_over_all_batches():
    builder = ShardBuilder(Schema.from_columns({"x": "int8"}), NO_HASH)
    builder.add_batch(pa.record_batch([pa.array([1, 2, 3])], ["x"]))
    builder.add({"x": 4})
    with pytest.raises(SchemaError, match="sample 5") as caught:
        builder.add_batch(pa.record_batch([pa.array([1, 300])], ["x"]))
    assert caught.value.row == 5
    assert builder.finish()[0].seal().info.samples == 4


@pytest.mark.parametrize("names", [["x"], ["x", "y", "z"], ["x", "z"], ["x", "x"]])
def test_batch_has_exactly_the_columns_of_the_set(names):
    builder = ShardBuilder(Schema.from_columns({"x": "int", "y": "int"}), NO_HASH)
    with pytest.raises(SchemaError):
        builder.add_batch(pa.record_batch([pa.array([1])] * len(names), names))


def test_columns_may_come_in_any_order_and_empty_batches_change_nothing():
    columns = {"x": "int", "y": "str"}
    batch = pa.record_batch([pa.array(["a"]), pa.array([1])], ["y", "x"])
    pieces = [batch.slice(0, 0), batch, batch.slice(1)]
    assert payloads(columns, NO_HASH, pieces) == payloads(columns, NO_HASH, [[{"x": 1, "y": "a"}]])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), st.sampled_from(sorted(SCALARS)))
def test_integers_are_accepted_or_refused_alike_by_sample_and_by_column(values, name):
    codec, stored = parse_encoding(name), None
    with suppress(SchemaError):
        stored = b"".join(codec.encode(value) for value in values)
    builder = ShardBuilder(Schema.from_columns({"x": name}), NO_HASH)
    batch = pa.record_batch([pa.array(values, pa.int64())], ["x"])
    if stored is None:
        with pytest.raises(SchemaError):
            builder.add_batch(batch)
    else:
        builder.add_batch(batch)
        assert bytes(builder.finish()[0].seal().payloads[0]).endswith(stored)
