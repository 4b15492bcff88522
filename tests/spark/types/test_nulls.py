"""Nulls and NaN, column by column: refused, masked, or replaced; never silently another value."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as sql
from pyspark.sql.types import StructType

from smalti.errors import SchemaError
from smalti.spark.writing.dataframe import kind_of_spark, plan_table
from smalti.writer.tables.types import arrow_type
from tests.format.columns import image_bytes
from tests.spark.types.test_types import IMAGE
from tests.spark.types.typed_rows import stored

PIXELS = {"origin": "a.jpg", "height": 1, "width": 2, "nChannels": 3, "mode": 16, "data": bytes(range(6))}
KINDS = {
    "byte": (sql.ByteType(), 7),
    "long": (sql.LongType(), 2**53 + 1),
    "float": (sql.FloatType(), 1.5),
    "bool": (sql.BooleanType(), True),
    "text": (sql.StringType(), "é"),
    "blob": (sql.BinaryType(), b"\xff"),
    "decimal": (sql.DecimalType(10, 2), Decimal("1.50")),
    "date": (sql.DateType(), dt.date(2024, 2, 29)),
    "time": (sql.TimestampType(), dt.datetime(2024, 2, 29, tzinfo=dt.timezone.utc)),
    "span": (sql.DayTimeIntervalType(), dt.timedelta(days=-1)),
    "months": (sql.YearMonthIntervalType(), 14),
    "array": (sql.ArrayType(sql.IntegerType()), [1, 2]),
    "grid": (sql.ArrayType(sql.ArrayType(sql.BooleanType())), [[True], [False]]),
    "list": (sql.ArrayType(sql.StringType()), ["a", None]),
    "map": (sql.MapType(sql.IntegerType(), sql.StringType()), [(1, "a")]),
    "struct": (StructType().add("a", sql.DoubleType()), {"a": None}),
    "vector": (VectorUDT(), {"type": 1, "size": None, "indices": None, "values": [0.5]}),
    "image": (IMAGE, PIXELS),
}


def rows(name, values, **options):
    kind = KINDS[name][0]
    return stored(StructType().add("x", kind), [pa.array(values, arrow_type(kind_of_spark(kind)))], **options)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_b3_a_null_is_refused_with_column_and_row(name):
    value = KINDS[name][1]
    row = "(x=None|one without plain values)"
    told = rf"^column 'x', sample 2: a null cannot be stored.*\"mask\".* The row is {row}\.(\nHelp: .*)?$"
    with pytest.raises(SchemaError, match=told) as caught:
        rows(name, [value, value, None])
    assert (caught.value.column, caught.value.row) == ("x", 2)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_b2_a_null_that_is_marked_is_none_and_its_neighbours_are_as_without_it(name):
    value = KINDS[name][1]
    found, alone = rows(name, [value, None, value], nulls="mask"), rows(name, [value])
    assert [sample["x"] is None for sample in found.samples] == [False, True, False]
    for place in (0, 2):
        assert np.array_equal(found.samples[place]["x"], alone.samples[0]["x"])
        assert type(found.samples[place]["x"]) is type(alone.samples[0]["x"])
    assert [sample["x__is_null"] for sample in found.raw] == [0, 1, 0]
    assert "x__is_null" not in found.samples[0]
    batch = found.batch["x"]
    is_null = np.ma.getmaskarray(batch).tolist() if isinstance(batch, np.ma.MaskedArray) else [v is None for v in batch]
    assert is_null == [False, True, False]
    assert "x__is_null" not in found.batch


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_a_masked_image_is_stored_as_a_placeholder_that_every_reader_opens(encoding):
    good = image_bytes(encoding.upper())
    found = stored(
        StructType().add("x", sql.BinaryType()), [pa.array([good, None])], columns={"x": encoding}, nulls="mask"
    )
    assert found.batch["x"] == [good, None]
    assert found.raw[1]["x"].size == (1, 1)
    assert found.samples[1]["x"] is None


@pytest.mark.parametrize("encoding", ["ndarray:float32:2", "ndarray", "json"])
def test_masked_arrays_are_stored_in_every_encoding(encoding):
    kind = sql.ArrayType(sql.FloatType())
    array = pa.array([[1, 2], None], pa.list_(pa.float32()))
    found = stored(StructType().add("x", kind), [array], columns={"x": encoding}, nulls="mask")
    assert [None if sample["x"] is None else list(sample["x"]) for sample in found.samples] == [[1, 2], None]


@pytest.mark.parametrize(
    ("name", "default", "given"),
    [
        ("byte", -128, -128),
        ("long", 2**63 - 1, 2**63 - 1),
        ("float", float("inf"), float("inf")),
        ("bool", False, False),
        ("text", "", ""),
        ("decimal", Decimal("-0.01"), Decimal("-0.01")),
        ("date", dt.date(1, 1, 1), np.datetime64("0001-01-01")),
        ("time", dt.datetime(1970, 1, 2, tzinfo=dt.timezone.utc), np.datetime64("1970-01-02T00:00:00.000000")),
        ("span", dt.timedelta(1), np.timedelta64(86_400_000_000, "us")),
        ("months", 3, np.timedelta64(3, "M")),
        ("list", ["z"], ["z"]),
        ("map", {1: "z"}, {1: "z"}),
        ("struct", {"a": 2.0}, {"a": 2.0}),
    ],
)
def test_a_default_replaces_a_null(name, default, given):
    found = rows(name, [None, KINDS[name][1]], nulls={"x": {"default": default}})
    assert found.samples[0] == {"x": given}
    assert found.samples[1] == rows(name, [KINDS[name][1]]).samples[0]
    assert sorted(found.plan.encodings) == ["x"]


def test_arrays_and_vectors_have_defaults():
    assert rows("array", [None], nulls={"x": {"default": []}}).samples[0]["x"].shape == (0,)
    assert rows("vector", [None], nulls={"x": {"default": [1, 2]}}).samples[0]["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("byte", 128),
        ("long", "one"),
        ("long", 0.5),
        ("text", 3),
        ("decimal", Decimal("0.001")),
        ("date", "today"),
        ("date", dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone.utc)),
        ("array", [0.5]),
        ("array", [1, None]),
        ("grid", [[True], []]),
        ("struct", 3),
        ("vector", 3),
        ("image", PIXELS),
    ],
)
def test_a_default_that_does_not_fit_is_refused_before_a_row_is_read(name, default):
    with pytest.raises(SchemaError, match="the default in `nulls` for column 'x' is no ") as caught:
        plan_table(StructType().add("x", KINDS[name][0]), None, {"x": {"default": default}})
    assert caught.value.column == "x"


@pytest.mark.parametrize(
    "nulls",
    [
        "drop",
        {"x": "drop"},
        {"x": None},
        {"x": {"default": None}},
        {"x": {"default": 1, "mask": True}},
        {"x": {"mask": 1}},
        {"x": {"nan": "drop"}},
        {"x": {"fill": 1}},
        {"y": "mask"},
    ],
)
def test_an_unknown_policy_is_refused(nulls):
    with pytest.raises(SchemaError, match="`nulls`"):
        plan_table(StructType().add("x", sql.DoubleType()), None, nulls)


def test_columns_that_are_not_named_refuse_nulls():
    schema = StructType().add("a", sql.LongType()).add("b", sql.LongType())
    with pytest.raises(SchemaError, match="column 'b', sample 1: a null"):
        stored(schema, [pa.array([1, None]), pa.array([1, None])], nulls={"a": "mask"})


HARD = pa.array([0.5, float("nan"), None, float("inf")])


def floats(nan, **more):
    return stored(StructType().add("x", sql.DoubleType()), [HARD], nulls={"x": {"nan": nan, **more}})


def test_b4_nan_is_kept_refused_or_counted_as_a_null():
    assert np.isnan(floats("keep", mask=True).samples[1]["x"])
    assert [sample["x"] for sample in floats("null", mask=True).samples] == [0.5, None, None, float("inf")]
    assert [sample["x"] for sample in floats("null", default=-1.0).samples] == [0.5, -1.0, -1.0, float("inf")]
    with pytest.raises(SchemaError, match="column 'x', sample 1: NaN and infinities are refused"):
        floats("reject", mask=True)
    with pytest.raises(SchemaError, match="column 'x', sample 1: NaN and infinities"):
        stored(
            StructType().add("x", sql.DoubleType()), [pa.array([1.0, float("-inf")])], nulls={"x": {"nan": "reject"}}
        )


def test_b4_only_floats_have_a_policy_for_nan():
    with pytest.raises(SchemaError, match="says what to do with NaN, and bigint has none"):
        plan_table(StructType().add("x", sql.LongType()), None, {"x": {"nan": "reject"}})


def test_b4_nan_within_json_is_strict_json_that_stands_for_it():
    kind = sql.MapType(sql.StringType(), sql.DoubleType())
    found = stored(StructType().add("x", kind), [pa.array([[("a", float("nan"))]], arrow_type(kind_of_spark(kind)))])
    assert found.raw == [{"x": {"a": "NaN"}}]  # what MosaicML's reader gives
    assert np.isnan(found.samples[0]["x"]["a"])


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1))
@settings(max_examples=40)
def test_b2_integers_beside_nulls_stay_exact(values):
    found = rows("long", values, nulls="mask")
    assert [sample["x"] for sample in found.samples] == values
    assert found.batch["x"].dtype == np.int64
    assert found.batch["x"].tolist() == values


@given(st.lists(st.none() | st.floats(width=32), min_size=1))
@settings(max_examples=40)
def test_b1_a_null_among_floats_is_no_nan(values):
    found = rows("float", values, nulls="mask")
    assert [sample["x"] is None for sample in found.samples] == [value is None for value in values]
    assert np.isnan(found.batch["x"].filled(0)).tolist() == [value is not None and value != value for value in values]


def test_messages_count_rows_from_the_first_of_the_task():
    plan = plan_table(StructType().add("x", sql.LongType()))
    with pytest.raises(SchemaError, match="column 'x', sample 1001: ") as caught:
        plan.prepare(pa.RecordBatch.from_arrays([pa.array([1, None])], ["x"]), first_row=1000)
    assert caught.value.row == 1001


def test_other_columns_of_a_batch_are_left_out():
    plan = plan_table(StructType().add("x", sql.LongType()).add("y", sql.LongType()), {"y": "int8"})
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["x", "y"])
    assert plan.prepare(batch).to_pydict() == {"y": [2]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"height": -1, "width": -1, "nChannels": -1, "mode": -1, "data": b""}, "an image that Spark could not read"),
        ({"height": None}, "an image that Spark could not read"),
        ({"data": None}, "an image that Spark could not read"),
        ({"data": b"12345"}, "an image of OpenCV type 16 with 3 channels and 5 bytes for 1 x 2 pixels"),
        ({"mode": 21}, "expected one byte a channel"),
        ({"nChannels": 2, "mode": 8, "data": b"1234"}, "expected one byte a channel"),
    ],
)
def test_an_invalid_image_is_refused_with_its_row(change, says):
    with pytest.raises(SchemaError, match=f"column 'x', sample 1: .*{says}"):
        rows("image", [PIXELS, PIXELS | change])


def test_images_are_arrays_in_sparks_order_of_channels_or_png_files():
    found = rows("image", [PIXELS, PIXELS | {"origin": None, "nChannels": 1, "mode": 0, "height": 3}])
    assert found.samples[0]["x"].tolist() == [[[0, 1, 2], [3, 4, 5]]]
    assert found.samples[1]["x"].shape == (3, 2, 1)
    assert [sample["x__origin"] for sample in found.samples] == ["a.jpg", ""]
    png = rows("image", [PIXELS, PIXELS | {"nChannels": 1, "mode": 0, "height": 3}], columns={"x": "png"})
    assert np.asarray(png.samples[0]["x"]).tolist() == [[[2, 1, 0], [5, 4, 3]]]
    assert png.samples[0]["x"].mode == "RGB"
    assert png.samples[1]["x"].mode == "L"


@pytest.mark.parametrize(
    ("kind", "arrow", "values", "says"),
    [
        (
            sql.MapType(sql.StringType(), sql.LongType()),
            pa.map_(pa.string(), pa.int64()),
            [[], [("a", 1), ("a", 2)]],
            "key twice",
        ),
        (sql.ArrayType(sql.IntegerType()), pa.list_(pa.int32()), [[1], [2, None]], "null in it cannot be stored"),
        (
            sql.ArrayType(sql.ArrayType(sql.IntegerType())),
            pa.list_(pa.list_(pa.int32())),
            [[], [[1], []]],
            "uneven lengths",
        ),
        (sql.TimestampType(), pa.timestamp("ns", "UTC"), [1000, 1001], "a finer unit than microseconds"),
        (sql.TimestampNTZType(), pa.timestamp("us"), [0, -(2**63)], "takes for no time"),
        (
            sql.ArrayType(sql.TimestampNTZType()),
            pa.list_(pa.timestamp("us")),
            [[0, 1], [-(2**63)]],
            "takes for no time",
        ),
    ],
)
def test_a_value_that_cannot_be_read_back_is_refused_with_its_row(kind, arrow, values, says):
    with pytest.raises(SchemaError, match=rf"column 'x'.*sample 1: .*{says}"):
        stored(StructType().add("x", kind), [pa.array(values, arrow)])


def test_b8_text_that_is_no_utf8_is_refused_inside_json_too():
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    )
    array = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), broken)
    with pytest.raises(SchemaError, match="column 'x', sample 1: expected text that is valid UTF-8"):
        stored(StructType().add("x", sql.ArrayType(sql.StringType())), [array])


def test_units_of_a_transforms_output_are_converted_to_sparks():
    schema = StructType().add("x", sql.TimestampType()).add("y", sql.DateType()).add("z", sql.DayTimeIntervalType())
    arrays = [
        pa.array([5], pa.timestamp("s", "UTC")),
        pa.array([86_400_000], pa.date64()),
        pa.array([5], pa.duration("ms")),
    ]
    assert stored(schema, arrays).samples == [
        {"x": np.datetime64(5, "s"), "y": np.datetime64("1970-01-02"), "z": np.timedelta64(5, "ms")}
    ]
