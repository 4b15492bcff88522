"""The encoding of each Spark type, and types that are refused before a row is read."""

import pytest
from pyspark.ml.linalg import MatrixUDT, VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import types as sql
from pyspark.sql.types import StructType

from smalti.errors import SchemaError
from smalti.spark.writing.dataframe import plan_table

IMAGE = (
    StructType()
    .add("origin", sql.StringType())
    .add("height", sql.IntegerType())
    .add("width", sql.IntegerType())
    .add("nChannels", sql.IntegerType())
    .add("mode", sql.IntegerType())
    .add("data", sql.BinaryType())
)
PAIR = StructType().add("a", sql.LongType()).add("b", sql.StringType())


def plan(kind, asked=None, nulls="reject"):
    return plan_table(StructType().add("id", sql.LongType()).add("x", kind), {"x": asked}, nulls)


def listed(kind, contains_null=True):
    return sql.ArrayType(kind, contains_null)


@pytest.mark.parametrize(
    ("kind", "encoding", "logical"),
    [
        (sql.ByteType(), "int8", None),
        (sql.ShortType(), "int16", None),
        (sql.IntegerType(), "int32", None),
        (sql.LongType(), "int64", None),
        (sql.FloatType(), "float32", None),
        (sql.DoubleType(), "float64", None),
        (sql.StringType(), "str", None),
        (sql.CharType(3), "str", None),
        (sql.VarcharType(10), "str", None),
        (sql.BinaryType(), "bytes", None),
        (sql.BooleanType(), "uint8", {"type": "bool"}),
        (sql.DecimalType(10, 2), "str_decimal", {"type": "decimal", "precision": 10, "scale": 2}),
        (sql.DateType(), "int32", {"type": "date"}),
        (sql.TimestampType(), "int64", {"type": "timestamp", "unit": "us", "zone": "UTC"}),
        (sql.TimestampNTZType(), "int64", {"type": "timestamp", "unit": "us", "zone": None}),
        (sql.DayTimeIntervalType(), "int64", {"type": "duration", "unit": "us"}),
        (sql.DayTimeIntervalType(1, 2), "int64", {"type": "duration", "unit": "us"}),
        (sql.YearMonthIntervalType(), "int32", {"type": "duration", "unit": "M"}),
        (sql.YearMonthIntervalType(0, 0), "int32", {"type": "duration", "unit": "M"}),
        (listed(sql.ByteType()), "ndarray:int8", None),
        (listed(sql.IntegerType(), False), "ndarray:int32", None),
        (listed(listed(sql.FloatType())), "ndarray:float32", None),
        (listed(sql.BooleanType()), "ndarray:uint8", {"type": "array", "of": {"type": "bool"}}),
        (listed(listed(sql.DateType())), "ndarray:int32", {"type": "array", "of": {"type": "date"}}),
        (listed(sql.StringType()), "json", {"type": "list", "of": {"type": "text"}}),
        (PAIR, "json", {"type": "struct", "fields": {"a": {"type": "int"}, "b": {"type": "text"}}}),
        (sql.MapType(sql.StringType(), sql.DoubleType()), "json",
         {"type": "map", "keys": {"type": "text"}, "values": {"type": "float"}}),
        (sql.MapType(sql.DateType(), listed(sql.BinaryType())), "json",
         {"type": "map", "keys": {"type": "date"}, "values": {"type": "list", "of": {"type": "binary"}}}),
        (VectorUDT(), "ndarray:float64", {"type": "vector"}),
        (OldVectorUDT(), "ndarray:float64", {"type": "vector"}),
    ],
)  # fmt: skip
def test_b18_every_type_has_a_lossless_default(kind, encoding, logical):
    found = plan(kind)
    assert found.encodings == {"x": encoding}
    assert found.logical == ({} if logical is None else {"x": logical})


def test_the_image_schema_is_an_array_of_pixels_and_where_it_came_from():
    found = plan(IMAGE)
    assert found.names == ("x",)
    assert found.encodings == {"x": "ndarray:uint8", "x__origin": "str"}
    assert found.logical == {"x": {"type": "image", "channels": "BGR"}}
    assert plan(IMAGE, "png").encodings == {"x": "png", "x__origin": "str"}
    with pytest.raises(
        SchemaError, match="cannot be stored as 'jpeg'; it can be stored as ndarray, ndarray:uint8, png"
    ):
        plan(IMAGE, "jpeg")


def test_a_mask_is_a_column_of_its_own():
    found = plan(sql.LongType(), nulls="mask")
    assert found.encodings == {"x": "int64", "x__is_null": "uint8"}
    assert found.logical == {"x": {"type": "plain", "mask": True}}
    assert plan(sql.DateType(), nulls={"x": "mask"}).logical == {"x": {"type": "date", "mask": True}}


@pytest.mark.parametrize("name", ["x__is_null", "X__IS_NULL"])
def test_a_mask_whose_name_is_taken_is_refused(name):
    schema = StructType().add("x", sql.LongType()).add(name, sql.LongType())
    with pytest.raises(SchemaError, match="x__is_null"):
        plan_table(schema, None, {"x": "mask"})


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (sql.LongType(), "int"),
        (sql.LongType(), "int32"),
        (sql.IntegerType(), "uint8"),
        (sql.ByteType(), "str_int"),
        (sql.DoubleType(), "float32"),
        (sql.BinaryType(), "jpeg"),
        (sql.BinaryType(), "png"),
        (sql.BooleanType(), "uint8"),
        (sql.DateType(), "int32"),
        (sql.TimestampType(), "int64"),
        (sql.StringType(), "json"),
        (listed(sql.FloatType()), "ndarray:float32:3,4"),
        (listed(sql.FloatType()), "ndarray"),
        (listed(sql.IntegerType()), "ndarray:int64"),
        (listed(sql.BooleanType()), "ndarray:uint8:4"),
    ],
)
def test_an_encoding_that_is_named_gives_its_own_values(kind, asked):
    found = plan(kind, asked)
    assert found.encodings == {"x": asked}
    assert found.logical == {}


@pytest.mark.parametrize("kind", [PAIR, sql.MapType(sql.StringType(), sql.DateType()), listed(sql.StringType())])
def test_json_that_is_named_equals_the_default(kind):
    assert plan(kind, "json") == plan(kind)


def test_an_array_of_numbers_may_be_json():
    assert plan(listed(sql.DateType()), "json").logical == {"x": {"type": "list", "of": {"type": "date"}}}


class PointUDT(sql.UserDefinedType):
    @classmethod
    def sqlType(cls):  # noqa: N802 - Spark's name
        return sql.ArrayType(sql.DoubleType())


INTERVAL = "has type interval, which cannot be stored; a calendar interval has no fixed length"


def test_a_refused_type_has_advice_that_fits_it():
    for kind, says in [
        (sql.NullType(), "has type void, which cannot be stored; a column of nothing"),
        *([(sql.CalendarIntervalType(), INTERVAL)] if hasattr(sql, "CalendarIntervalType") else []),  # not in 3.5.0
        (MatrixUDT(), "take its `values` as an array of numbers"),
        (PointUDT(), "a user-defined type: turn it into plain columns first"),
        (listed(VectorUDT()), r"column 'x', at x\[\], has type .*vector_to_array"),
        (listed(sql.YearMonthIntervalType()), r"at x\[\], has type .*a number of months"),
        (StructType().add("a", PAIR).add("b", sql.NullType()), "column 'x', at x.b, has type void"),
        (sql.MapType(PAIR, sql.LongType()), "column 'x', at x.keys, has type .*keys of a dict are single values"),
        (StructType().add("a", sql.LongType()).add("a", sql.LongType()), "two fields have one name"),
    ]:
        with pytest.raises(SchemaError, match=says) as caught:
            plan(kind)
        assert caught.value.column == "x"


@pytest.mark.parametrize("name", ["VariantType", "GeometryType"])
def test_types_of_later_spark_releases_are_refused(name):
    if not hasattr(sql, name):
        pytest.skip(f"this Spark has no {name}")
    kind = sql.VariantType() if name == "VariantType" else sql.GeometryType(4326)
    with pytest.raises(SchemaError, match=r"variant_get|st_asbinary"):
        plan(kind)


def test_times_of_day_are_nanoseconds_since_midnight():
    if not hasattr(sql, "TimeType"):
        pytest.skip("this Spark has no type for times of day")
    assert plan(sql.TimeType(6)).encodings == {"x": "int64"}
    assert plan(sql.TimeType(6)).logical == {"x": {"type": "time", "unit": "ns"}}


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (sql.StringType(), "int"),
        (sql.LongType(), "float64"),
        (sql.DoubleType(), "int64"),
        (sql.BinaryType(), "str"),
        (sql.StringType(), "jpeg"),
        (sql.TimestampType(), "str"),
        (sql.DecimalType(10, 2), "float64"),
        (sql.LongType(), "ndarray"),
        (PAIR, "str"),
        (listed(sql.StringType()), "ndarray:int8"),
    ],
)
def test_an_encoding_that_does_not_fit_is_refused(kind, asked):
    with pytest.raises(SchemaError, match=f"column 'x' .* cannot be stored as '{asked}'"):
        plan(kind, asked)


@pytest.mark.parametrize("asked", ["int3", "ndarray:int3", "ndarray:float32:0", "pkl", "ndarray:"])
@pytest.mark.parametrize("kind", [sql.LongType(), listed(sql.FloatType())])
def test_an_unknown_encoding_is_refused(kind, asked):
    with pytest.raises(SchemaError, match="encoding"):
        plan(kind, asked)


def test_only_the_named_columns_are_stored():
    schema = StructType().add("a", sql.LongType()).add("b", sql.StringType()).add("c", sql.NullType())
    found = plan_table(schema, {"b": "str", "a": None})
    assert found.encodings == {"b": "str", "a": "int64"}
    assert found.names == ("b", "a")


def test_a_missing_column_is_refused_with_those_there_are():
    schema = StructType().add("label", sql.LongType()).add("image", sql.BinaryType())
    with pytest.raises(SchemaError, match="names 'labl', the DataFrame has label, image"):
        plan_table(schema, {"labl": "int"})


def test_b12_a_duplicate_column_is_refused():
    with pytest.raises(SchemaError, match="'x' more than once"):
        plan_table(StructType().add("x", sql.LongType()).add("x", sql.StringType()))


def test_b12_columns_that_differ_in_case_alone_are_refused():
    with pytest.raises(SchemaError, match="differ only in case"):
        plan_table(StructType().add("x", sql.LongType()).add("X", sql.StringType()))
