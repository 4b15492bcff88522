"""Values of every Spark type, stored and read again: what comes back is what went in, as numpy or Python has it.

Arrow batches are built as Spark hands them over, so that thousands of values take seconds; `test_every_type.py` has
Spark make a few.
"""

import datetime as dt
import decimal
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as sql

from smalti.errors import SchemaError
from tests import seeds
from tests.spark.types.typed_rows import stored

FEW = settings(max_examples=seeds.sized(50))
DAYS = st.integers(-719_162, 2_932_896)  # the years 1 to 9999, as Python has them
MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
INT64 = st.integers(-(2**63), 2**63 - 1)
SPANS = st.integers(-(2**63) + 1, 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
FLOAT32 = st.floats(width=32)
DECIMALS = st.decimals(-(10**20), 10**20, places=6)
INTEGERS = {
    "int8": (sql.ByteType(), pa.int8()),
    "int16": (sql.ShortType(), pa.int16()),
    "int32": (sql.IntegerType(), pa.int32()),
    "int64": (sql.LongType(), pa.int64()),
}


def column(kind, arrow, values, **options):
    """Store one column `x` of these values, and read it in every way."""
    return stored(sql.StructType().add("x", kind), [pa.array(values, arrow)], **options)


def same(found, wanted):
    """Return whether both are the same value of the same type; NaN equals itself, and zero has a sign."""
    if isinstance(wanted, np.ndarray):
        return type(found) is np.ndarray and found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(same(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, float | np.floating):
        return (math.isnan(found) and math.isnan(wanted)) or (
            found == wanted and math.copysign(1, found) == math.copysign(1, wanted)
        )
    if isinstance(wanted, decimal.Decimal):
        return found.as_tuple() == wanted.as_tuple()
    return found == wanted


def check(found, wanted, *, as_array=True):
    """Check every sample, and the batch."""
    assert [same(sample["x"], value) for sample, value in zip(found.samples, wanted, strict=True)] == [True] * len(
        wanted
    )
    values = found.batch["x"]
    assert isinstance(values, np.ndarray if as_array else list)
    assert all(map(same, list(values), wanted))


@pytest.mark.parametrize("name", sorted(INTEGERS))
@given(st.data())
@FEW
def test_integers_come_back(name, data):
    kind, arrow = INTEGERS[name]
    limits = np.iinfo(name)
    values = data.draw(st.lists(st.integers(int(limits.min), int(limits.max)), min_size=1))
    check(column(kind, arrow, values), [np.dtype(name).type(value) for value in values])


@pytest.mark.parametrize("name", ["int8", "int16"])
def test_b5_every_byte_and_every_short_keeps_its_sign(name):
    kind, arrow = INTEGERS[name]
    values = range(np.iinfo(name).min, np.iinfo(name).max + 1)
    found = column(kind, arrow, list(values)).batch["x"]
    assert found.dtype == name
    assert found.tolist() == list(values)


@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "uint64"])
@given(st.data())
@FEW
def test_integers_come_back_from_unsigned_encodings(name, data):
    values = data.draw(st.lists(st.integers(0, min(int(np.iinfo(name).max), 2**63 - 1)), min_size=1))
    found = column(sql.LongType(), pa.int64(), values, columns={"x": name})
    check(found, [np.dtype(name).type(value) for value in values])


@FEW
@given(st.lists(st.floats(), min_size=1), st.lists(FLOAT32, min_size=1))
def test_floats_with_nan_infinities_and_both_zeros_come_back(doubles, singles):
    check(column(sql.DoubleType(), pa.float64(), doubles), [np.float64(value) for value in doubles])
    check(column(sql.FloatType(), pa.float32(), singles), [np.float32(value) for value in singles])


@FEW
@given(st.lists(st.booleans(), min_size=1))
def test_booleans_come_back(values):
    check(column(sql.BooleanType(), pa.bool_(), values), [np.bool_(value) for value in values])


@FEW
@given(st.lists(DAYS, min_size=1))
def test_dates_come_back(days):
    values = [dt.date(1970, 1, 1) + dt.timedelta(days=day) for day in days]
    check(column(sql.DateType(), pa.date32(), values), [np.datetime64(value.isoformat(), "D") for value in values])


@FEW
@given(st.lists(MICROS, min_size=1), st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns"]))
def test_timestamps_are_the_same_moment_in_every_zone(micros, zone):
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    values = [(epoch + dt.timedelta(microseconds=each)).replace(tzinfo=None) for each in micros]
    wanted = [np.datetime64(value.isoformat(), "us") for value in values]
    found = stored(sql.StructType().add("x", sql.TimestampType()), [pa.array(micros, pa.timestamp("us", tz=zone))])
    check(found, wanted)
    check(column(sql.TimestampNTZType(), pa.timestamp("us"), values), wanted)


@FEW
@given(st.lists(SPANS, min_size=1), st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_durations_come_back(micros, months):
    found = column(sql.DayTimeIntervalType(), pa.duration("us"), micros)
    check(found, [np.timedelta64(value, "us") for value in micros])
    # Spark has cast these to numbers of months: Arrow cannot carry them.
    found = column(sql.YearMonthIntervalType(), pa.int32(), months)
    check(found, [np.timedelta64(value, "M") for value in months])


@FEW
@given(st.lists(TEXT, min_size=1), st.lists(st.binary(max_size=20), min_size=1))
def test_b17_text_and_bytes_come_back(texts, blobs):
    check(column(sql.StringType(), pa.string(), texts), texts, as_array=False)
    check(column(sql.VarcharType(12), pa.large_string(), texts), texts, as_array=False)
    check(column(sql.BinaryType(), pa.binary(), blobs), blobs, as_array=False)


@FEW
@given(st.lists(DECIMALS, min_size=1))
def test_decimals_keep_their_scale(values):
    check(column(sql.DecimalType(30, 6), pa.decimal128(30, 6), values), values, as_array=False)


@pytest.mark.parametrize(
    ("kind", "arrow", "dtype", "items"),
    [
        (sql.ByteType(), pa.int8(), "int8", st.integers(-128, 127)),
        (sql.LongType(), pa.int64(), "int64", INT64),
        (sql.FloatType(), pa.float32(), "float32", FLOAT32),
        (sql.BooleanType(), pa.bool_(), "bool", st.booleans()),
        (sql.DateType(), pa.date32(), "M8[D]", DAYS),
        (sql.TimestampNTZType(), pa.timestamp("us"), "M8[us]", MICROS),
        (sql.DayTimeIntervalType(), pa.duration("us"), "m8[us]", SPANS),
    ],
)
@given(st.data())
@FEW
def test_b15_arrays_that_may_be_empty_come_back(kind, arrow, dtype, items, data):
    values = data.draw(st.lists(st.lists(items, max_size=5), min_size=1))
    wanted = [np.array(value, "int64" if "8[" in dtype else dtype).astype(dtype) for value in values]
    for contains_null in (False, True):
        check(column(sql.ArrayType(kind, contains_null), pa.list_(arrow), values), wanted, as_array=False)


@FEW
@given(st.data())
def test_nested_arrays_of_even_lengths_come_back(data):
    rows, values = data.draw(st.integers(1, 5)), []
    for _ in range(rows):
        shape = data.draw(st.tuples(*[st.integers(0, 3)] * 3))
        numbers = data.draw(st.lists(st.integers(-9, 9), min_size=math.prod(shape), max_size=math.prod(shape)))
        values.append(np.array(numbers, np.int32).reshape(shape))
    kind = sql.ArrayType(sql.ArrayType(sql.ArrayType(sql.IntegerType())))
    arrow = pa.list_(pa.list_(pa.list_(pa.int32())))
    found = column(kind, arrow, [value.tolist() for value in values])
    assert [sample["x"].tolist() for sample in found.samples] == [value.tolist() for value in values]
    assert [sample["x"].ndim for sample in found.samples] == [3] * rows


NESTED = sql.StructType(
    [
        sql.StructField("n", sql.LongType()),
        sql.StructField("f", sql.DoubleType()),
        sql.StructField("s", sql.StringType()),
        sql.StructField("b", sql.BinaryType()),
        sql.StructField("d", sql.DecimalType(30, 6)),
        sql.StructField("day", sql.DateType()),
        sql.StructField("at", sql.TimestampType()),
        sql.StructField("span", sql.DayTimeIntervalType()),
        sql.StructField("yes", sql.BooleanType()),
        sql.StructField("list", sql.ArrayType(sql.ArrayType(sql.FloatType()))),
        sql.StructField("names", sql.MapType(sql.StringType(), sql.DateType())),
        sql.StructField("counts", sql.MapType(sql.IntegerType(), sql.ArrayType(sql.StringType()))),
        sql.StructField("inner", sql.StructType().add("z", sql.MapType(sql.DateType(), sql.BinaryType()))),
    ]
)
NESTED_ARROW = pa.struct(
    [
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("d", pa.decimal128(30, 6)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="Asia/Tokyo")),
        ("span", pa.duration("us")),
        ("yes", pa.bool_()),
        ("list", pa.list_(pa.list_(pa.float32()))),
        ("names", pa.map_(pa.string(), pa.date32())),
        ("counts", pa.map_(pa.int32(), pa.list_(pa.string()))),
        ("inner", pa.struct([("z", pa.map_(pa.date32(), pa.binary()))])),
    ]
)


def days(number):
    return np.datetime64(number, "D")


MAYBE = {
    "n": INT64,
    "f": st.floats(),
    "s": TEXT,
    "b": st.binary(max_size=9),
    "d": DECIMALS,
    "day": DAYS,
    "at": MICROS,
    "span": SPANS,
    "yes": st.booleans(),
    "list": st.lists(st.none() | st.lists(st.none() | FLOAT32, max_size=3), max_size=3),
    "names": st.dictionaries(TEXT, st.none() | DAYS, max_size=3),
    "counts": st.dictionaries(st.integers(-9, 9), st.lists(st.none() | TEXT, max_size=2), max_size=3),
    "inner": st.fixed_dictionaries({"z": st.dictionaries(DAYS, st.none() | st.binary(max_size=3))}),
}
STRUCTS = st.fixed_dictionaries({name: st.none() | items for name, items in MAYBE.items()})


def for_arrow(value):
    """Return the struct as Arrow takes it: numbers for times, pairs for maps."""
    pairs = {name: list(value[name].items()) for name in ("names", "counts") if value[name] is not None}
    inner = {"inner": {"z": list(value["inner"]["z"].items())}} if value["inner"] is not None else {}
    return value | pairs | inner


def as_given(value):
    """Return the struct as a reader must get it."""
    wanted = {
        "day": days,
        "at": lambda number: np.datetime64(number, "us"),
        "span": lambda number: np.timedelta64(number, "us"),
        "names": lambda its: {key: None if day is None else days(day) for key, day in its.items()},
        "inner": lambda its: {"z": {days(key): blob for key, blob in its["z"].items()}},
    }
    found = value | {name: restore(value[name]) for name, restore in wanted.items() if value[name] is not None}
    return {name: found[name] for name in MAYBE}


@FEW
@given(st.lists(STRUCTS, min_size=1, max_size=3))
def test_structs_maps_and_lists_of_anything_come_back(values):
    """The values are also stored as slices, which begin in the middle of Arrow's buffers."""
    array = pa.array(list(map(for_arrow, values)), NESTED_ARROW)
    for begin in range(len(values)):
        found = stored(sql.StructType().add("x", NESTED), [array[begin:]])
        check(found, list(map(as_given, values[begin:])), as_array=False)


@FEW
@given(st.lists(st.lists(st.none() | TEXT, max_size=3), min_size=1))
def test_arrays_of_text_with_nulls_come_back(values):
    check(column(sql.ArrayType(sql.StringType()), pa.list_(pa.string()), values), values, as_array=False)


@FEW
@given(st.lists(st.lists(st.lists(st.none() | st.integers(-9, 9), max_size=3), max_size=3), min_size=1))
def test_uneven_arrays_with_nulls_can_be_stored_as_json(values):
    kind, arrow = sql.ArrayType(sql.ArrayType(sql.IntegerType())), pa.list_(pa.list_(pa.int32()))
    check(column(kind, arrow, values, columns={"x": "json"}), values, as_array=False)


VECTOR = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
)


@st.composite
def vectors(draw):
    """Draw a vector as Spark sends it, and all its numbers."""
    numbers = draw(st.lists(st.floats() | st.just(0.0), max_size=6))
    if draw(st.booleans()):
        return {"type": 1, "size": None, "indices": None, "values": numbers}, np.array(numbers, float)
    places = sorted(draw(st.sets(st.integers(0, len(numbers) - 1)))) if numbers else []
    dense = np.zeros(len(numbers))
    dense[places] = [numbers[place] for place in places]
    return {"type": 0, "size": len(numbers), "indices": places, "values": [numbers[at] for at in places]}, dense


@FEW
@given(st.lists(vectors(), min_size=1))
def test_dense_and_sparse_vectors_come_back(drawn):
    array = pa.array([vector for vector, _ in drawn], VECTOR)
    for begin in range(len(drawn)):
        found = stored(sql.StructType().add("x", VectorUDT()), [array[begin:]])
        check(found, [dense for _, dense in drawn[begin:]], as_array=False)


@pytest.mark.parametrize(
    "vector",
    [
        {"type": 0, "size": 2, "indices": [2], "values": [1.0]},
        {"type": 0, "size": 2, "indices": [-1], "values": [1.0]},
        {"type": 0, "size": 2, "indices": [0, 1], "values": [1.0]},
        {"type": 0, "size": 1 << 28, "indices": [], "values": []},
    ],
)
def test_a_vector_that_contradicts_itself_or_fills_the_memory_is_refused_with_its_row(vector):
    good = {"type": 1, "size": None, "indices": None, "values": [1.0]}
    with pytest.raises(SchemaError, match="column 'x', sample 1: ") as caught:
        stored(sql.StructType().add("x", VectorUDT()), [pa.array([good, vector], VECTOR)])
    assert caught.value.row == 1
