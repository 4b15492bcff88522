"""Every Arrow type, in Parquet files, in other sources, and as the output of a transform: its values, or an error."""

import datetime as dt
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti import convert
from smalti.errors import SchemaError
from smalti.writer.tables.values import cast_array
from tests.combinations import nightly
from tests.conversion.rows import samples_of, table_source

MOMENT = dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc)
TEXTS = ["a", "text that is longer than a view holds", None]
NESTED_ENDS = pa.array([0, 1, 1], pa.int32())


def run_ends(values):
    kind = pa.run_end_encoded(pa.int32(), values.type)
    return pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), values, kind)


def structs(depth):
    array = pa.array([1, 2])
    for _ in range(depth):
        array = pa.StructArray.from_arrays([array], ["f"])
    return array


def lists(depth):
    array = pa.array(["a", "b"])
    for _ in range(depth):
        array = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), array)
    return array


def nested(value, depth, wrap):
    for _ in range(depth):
        value = wrap(value)
    return value


def times(unit, zone=None):
    return pa.array([1_000_000_000, -1_000_000_000], pa.timestamp(unit, zone))


NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def moments(unit):
    micros = 10**9 * NANOSECONDS[unit] // 1000
    return [np.datetime64(micros, "us"), np.datetime64(-micros, "us")]


def span(*nanoseconds):
    return [np.timedelta64(each // 1000, "us") for each in nanoseconds]


def whole(kind, *values):
    return pa.array(values, kind), list(values)


_BITS = (8, 16, 32, 64)
STORED = {
    **{f"int{n}": whole(getattr(pa, f"int{n}")(), -(1 << n - 1), (1 << n - 1) - 1) for n in _BITS},
    **{f"uint{n}": whole(getattr(pa, f"uint{n}")(), 0, (1 << n) - 1) for n in _BITS},
    "bool": whole(pa.bool_(), True, False, None),
    "half": (pa.array(np.array([0.5, 65504], np.float16)), [0.5, 65504.0]),
    "float": whole(pa.float32(), 0.5, 2.0**-149),
    "double": whole(pa.float64(), float("-inf"), 5e-324),
    **{
        f"decimal{n}": whole(getattr(pa, f"decimal{n}")(digits, 2), Decimal("1.10"), Decimal("-2.00"))
        for n, digits in ((32, 5), (64, 15), (128, 38), (256, 76))
    },
    "decimal of hundreds": (pa.array([Decimal(1100)], pa.decimal128(5, -2)), [Decimal(1100)]),
    "decimal of small parts": (
        pa.Array.from_buffers(pa.decimal128(2, 5), 1, [None, pa.py_buffer((12).to_bytes(16, "little"))]),
        [Decimal("0.00012")],
    ),
    "string": whole(pa.string(), *TEXTS),
    "large string": whole(pa.large_string(), *TEXTS),
    "string view": whole(pa.string_view(), *TEXTS),
    "binary": whole(pa.binary(), b"\xff", b"", None),
    "large binary": whole(pa.large_binary(), b"\xff", b""),
    "binary view": whole(pa.binary_view(), b"\xff", b"longer than twelve bytes"),
    "binary of fixed size": whole(pa.binary(2), b"ab", b"cd", None),
    "date32": (pa.array([dt.date(2024, 2, 29)]), [np.datetime64("2024-02-29")]),
    "date64": (pa.array([dt.date(1969, 12, 31)], pa.date64()), [np.datetime64("1969-12-31")]),
    **{f"timestamp {unit}": (times(unit), moments(unit)) for unit in NANOSECONDS},
    **{f"timestamp {unit} in a zone": (times(unit, "Europe/Berlin"), moments(unit)) for unit in NANOSECONDS},
    "time32 s": (pa.array([61], pa.time32("s")), [np.timedelta64(61 * 10**9, "ns")]),
    "time32 ms": (pa.array([61], pa.time32("ms")), [np.timedelta64(61 * 10**6, "ns")]),
    "time64 us": (pa.array([61], pa.time64("us")), [np.timedelta64(61 * 10**3, "ns")]),
    "time64 ns": (pa.array([61], pa.time64("ns")), [np.timedelta64(61, "ns")]),
    **{
        f"duration {unit}": (pa.array([1000, -1000], pa.duration(unit)), span(1000 * size, -1000 * size))
        for unit, size in NANOSECONDS.items()
    },
    "list": whole(pa.list_(pa.int64()), [1, 2], [], None),
    "large list": whole(pa.large_list(pa.int64()), [1, 2], [], None),
    "list of fixed size": whole(pa.list_(pa.int32(), 2), [1, 2], None, [3, 4]),
    "list view": whole(pa.list_view(pa.int64()), [1, 2], [], None),
    "large list view": whole(pa.large_list_view(pa.int64()), [1, 2], [], None),
    "list view in another order": (
        pa.ListViewArray.from_arrays(pa.array([2, 0], pa.int32()), pa.array([1, 2], pa.int32()), pa.array([5, 6, 7])),
        [[7], [5, 6]],
    ),
    "slice of a list view": (pa.array([[1], [2, 3], [4]], pa.list_view(pa.int64())).slice(1), [[2, 3], [4]]),
    "list of lists": whole(pa.list_(pa.list_(pa.int64())), [[1], [2]], [[3], [4]]),
    "list of text views": whole(pa.list_(pa.string_view()), TEXTS, [], None),
    "list view of text views": whole(pa.list_view(pa.string_view()), TEXTS, [], None),
    "list view of list views": whole(pa.list_view(pa.list_view(pa.string())), [["a"], []], [], None),
    "list of dictionary": whole(pa.list_(pa.dictionary(pa.int32(), pa.string())), ["a", "b"], ["a"]),
    "list of booleans": whole(pa.list_(pa.bool_()), [True, False], []),
    "list of halves": whole(pa.list_(pa.float16()), [0.5], []),
    "list of uint64": whole(pa.list_(pa.uint64()), [(1 << 64) - 1], []),
    "list of decimals": whole(pa.list_(pa.decimal128(5, 2)), [Decimal("1.10"), None], []),
    "list of binary": whole(pa.list_(pa.binary()), [b"\xff", None], []),
    "list of dates": (pa.array([[dt.date(1970, 1, 2)], []]), [[np.datetime64("1970-01-02")], []]),
    "list of run ends": (pa.ListArray.from_arrays(NESTED_ENDS, run_ends(pa.array([5, 6])).slice(0, 1)), [[5], []]),
    "list of extension": (
        pa.ListArray.from_arrays(NESTED_ENDS, pa.array([uuid.UUID(int=1).bytes], pa.uuid())),
        [[uuid.UUID(int=1).bytes], []],
    ),
    "struct": whole(pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": None}, {"a": 2, "b": ""}, None),
    "struct without fields": whole(pa.struct([]), {}, {}),
    "struct of a dictionary": (
        pa.StructArray.from_arrays([pa.array(["u", "v"]).dictionary_encode()], ["d"]), [{"d": "u"}, {"d": "v"}],
    ),
    "struct of a list view": whole(pa.struct([("a", pa.list_view(pa.int32()))]), {"a": [1]}, {"a": []}, None),
    "decimal in a struct": whole(pa.struct([("d", pa.decimal128(5, 2))]), {"d": Decimal("1.10")}, None),
    "struct of uint64": whole(pa.struct([("a", pa.uint64())]), {"a": (1 << 64) - 1}),
    "struct of infinity": whole(pa.struct([("a", pa.float64())]), {"a": float("inf")}),
    "struct of a moment": (pa.array([{"t": MOMENT}]), [{"t": np.datetime64("2024-02-29T12:00:00.000000")}]),
    "map": (pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())), [{"k": 1}, {}, None]),
    "map of numbers": (pa.array([[(1, "x")], [(2, None)]], pa.map_(pa.int64(), pa.string())), [{1: "x"}, {2: None}]),
    "map of views": (
        pa.array([[("k", ["v"])], []], pa.map_(pa.string_view(), pa.list_view(pa.string()))), [{"k": ["v"]}, {}],
    ),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
    "dictionary of numbers": (pa.array([7, 8]).dictionary_encode(), [7, 8]),
    "dictionary with a null": (pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None])), ["a", None]),
    "dictionary of lists": (pa.DictionaryArray.from_arrays([0, 1], pa.array([[1], [2]])), [[1], [2]]),
    "run ends": (run_ends(pa.array(["a", None])), ["a", None]),
    "uuid": (pa.array([uuid.UUID(int=1).bytes], pa.uuid()), [uuid.UUID(int=1).bytes]),
    "json": (pa.array(['{"a":1}'], pa.json_()), ['{"a":1}']),
    "bool8": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1], pa.int8())), [0, 1]),
    "opaque": (pa.ExtensionArray.from_storage(pa.opaque(pa.binary(), "t", "v"), pa.array([b"1"])), [b"1"]),
    "tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(4, dtype=np.float32).reshape(2, 2, 1)),
        [[0.0, 1.0], [2.0, 3.0]],
    ),
    "25 structs in each other": (structs(25), [nested(each, 25, lambda value: {"f": value}) for each in (1, 2)]),
    "45 lists in each other": (lists(45), [nested(each, 45, lambda value: [value]) for each in "ab"]),
}  # fmt: skip

REFUSED = {
    "null": (pa.nulls(2), "'x' has type null, which cannot be stored; a column of nothing: leave it out"),
    "list of nulls": (pa.array([[None], []]), r"'x', at x\[\], has type null, which cannot be stored"),
    "interval": (pa.array([pa.MonthDayNano([1, 2, 3])]), "'x' has type month_day_nano_interval, which cannot"),
    "nanoseconds": (pa.array([1], pa.timestamp("ns")), "'x', sample 0: a time of a finer unit than microseconds"),
    "duration of nanoseconds": (pa.array([1], pa.duration("ns")), "'x', sample 0: a time of a finer unit"),
    "decimal of a scale beyond its digits": (
        pa.Array.from_buffers(pa.decimal128(20, 6768), 1, [None, pa.py_buffer(bytes(16))]),
        r"'x' has type decimal128\(20, 6768\), which cannot be stored",
    ),
    "null in an array": (pa.array([[1, None]]), "'x' .*null in it cannot be stored; fill it first, or .*json"),
    "uneven lists": (pa.array([[[1], [2, 3]]]), "'x' .*uneven lengths .*can be stored as json"),
    "fields of one name": (
        pa.StructArray.from_arrays([pa.array([1]), pa.array([3])], ["a", "a"]), "'x' .*fields have one name",
    ),
    "keys of one name": (
        pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64())), "'x', sample 0: a map has a key twice",
    ),
    "keys that are structs": (
        pa.array([[({"a": 1}, 1)]], pa.map_(pa.struct([("a", pa.int64())]), pa.int64())), "'x', at x.keys, .*array",
    ),
    "dense union": (
        pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]),
        "'x' has type dense_union.*, which cannot be stored; leave it out, or cast it",
    ),
    "sparse union": (
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "'x' has type sparse_union",
    ),
    "text that is no UTF-8": (pa.array([b"\xff"]).view(pa.string()), "'x'.* UTF-8"),
    "40 structs in each other": (structs(40), "'x' has values that are nested deeper than readers accept"),
    "60 lists in each other": (lists(60), "'x' has values that are nested deeper than readers accept"),
    "5000 lists in each other": (lambda: lists(5000), "'x' is nested too deeply to be stored"),
}  # fmt: skip


SLOW = "5000 lists in each other"
"""It takes Arrow seconds to make such a column."""
UNREADABLE = ("60 lists in each other", SLOW)
"""Columns that pyarrow writes to Parquet and does not read."""


NULLS = [
    pa.array([[{"a": 1, "x": None}, {"a": 2, "x": None}], None, [{"a": 3, "x": None}]]),
    pa.array([[None, None], [None]]),
    pa.array([[[None, None], [None]]]),
    pa.array([{"x": [None, None], "y": {"z": None}}] * 3),
    pa.array([[("k", None), ("l", None)]], pa.map_(pa.string(), pa.null())),
    pa.array([{"n": 1, "x": [[None, None]]}] * 2),
]


@pytest.mark.parametrize("array", NULLS, ids=lambda array: str(array.type))
def test_a_cast_keeps_nulls_of_the_type_null_in_lists(array):
    for kind in (array.type, pa.large_list(array.type)):
        values = array if kind == array.type else pa.ListArray.from_arrays([0, len(array)], array)
        result = cast_array(values, kind)
        result.validate(full=True)
        assert result.type == kind
        assert result.to_pylist() == values.to_pylist()


def plain(value):
    """Return a value of a sample without numpy's arrays and numbers."""
    if isinstance(value, np.ndarray):
        return [plain(each) for each in value]
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":
        return value.item()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


class Give:
    """A transform that returns one batch, whatever it gets."""

    def __init__(self, batch):
        self.batch = batch

    def __call__(self, batch):
        return self.batch


def convert_table(table, door, folder, **options):
    """Convert a table that arrives through a door."""
    source = table_source(table)
    if door == "transform":
        source = table_source(pa.table({"any": [0]}))
        options |= {"transform": Give(table.to_batches()[0])}
    elif door == "parquet":
        source = folder / "a.parquet"
        pq.write_table(table, source)
    return convert(source, folder / "set", processes=1, **options)


def is_in_parquet(array):
    """Return whether pyarrow can write a column to Parquet."""
    try:
        pq.write_table(pa.table({"x": array}), pa.BufferOutputStream())
    except (pa.ArrowNotImplementedError, OSError):
        return False
    return True


DOORS = ("table", "parquet", "transform")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_values_of_each_type_come_back(tmp_path, num_rows, door):
    chosen = {
        name: (array, expected)
        for name, (array, expected) in STORED.items()
        if len(array) == num_rows and (door != "parquet" or is_in_parquet(array))
    }
    convert_table(pa.table({name: array for name, (array, _) in chosen.items()}), door, tmp_path, nulls="mask")
    rows = samples_of(tmp_path / "set")
    assert {name: [plain(row[name]) for row in rows] for name in chosen} == {
        name: expected for name, (_, expected) in chosen.items()
    }


@pytest.mark.parametrize(
    ("name", "door"),
    [
        *((name, door) for name in REFUSED for door in DOORS if name != SLOW or door == DOORS[0]),
        *nightly([pytest.param(SLOW, door) for door in DOORS[1:]]),
    ],
)
def test_a_type_or_value_that_cannot_be_stored_is_named_with_what_to_do(tmp_path, name, door):
    array, message = REFUSED[name]
    array = array() if callable(array) else array  # made here: it takes seconds
    if door == "parquet" and (not is_in_parquet(array) or name in UNREADABLE):
        return
    with pytest.raises(SchemaError, match=f"column {message}"):
        convert_table(pa.table({"x": array}), door, tmp_path)
