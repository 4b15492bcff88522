"""Logical types: restoring what stored values represent, and malformed manifests."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import FormatError, SchemaError
from smalti.format.logical import parse_logical


def read_as(kind, encoding, values):
    """Return a column `x` as a reader gets it: sample by sample, and by column."""
    types = parse_logical({"x": kind}, {"x": encoding})
    one = [types.sample({"x": value})["x"] for value in values]
    return one, types.batch({"x": values})["x"]


@pytest.mark.parametrize(
    ("kind", "encoding", "values", "wanted"),
    [
        ({"type": "bool"}, "uint8", np.array([0, 1], np.uint8), np.array([False, True])),
        ({"type": "date"}, "int32", np.array([-1, 0], np.int32), np.array(["1969-12-31", "1970-01-01"], "M8[D]")),
        (
            {"type": "timestamp", "unit": "us", "zone": "UTC"},
            "int64",
            np.array([1, -1_000_000]),
            np.array(["1970-01-01T00:00:00.000001", "1969-12-31T23:59:59"], "M8[us]"),
        ),
        (
            {"type": "duration", "unit": "us"},
            "int64",
            np.array([86_400_000_000]),
            np.array([1], "m8[D]").astype("m8[us]"),
        ),
        ({"type": "duration", "unit": "M"}, "int32", np.array([14], np.int32), np.array([14], "m8[M]")),
        (
            {"type": "time", "unit": "ns"},
            "int64",
            np.array([3_600_000_000_000]),
            np.array([1], "m8[h]").astype("m8[ns]"),
        ),
    ],
)
def test_numbers_represent_booleans_and_times(kind, encoding, values, wanted):
    one, many = read_as(kind, encoding, values)
    assert many.dtype == wanted.dtype
    assert many.tolist() == wanted.tolist()
    assert [type(value) for value in one] == [wanted.dtype.type] * len(wanted)
    assert [value.dtype for value in one] == [wanted.dtype] * len(wanted)
    assert one == list(wanted)


def test_times_by_column_are_no_copy():
    values = np.arange(5)
    types = parse_logical({"x": {"type": "timestamp", "unit": "us", "zone": None}}, {"x": "int64"})
    assert np.shares_memory(types.batch({"x": values})["x"], values)


@pytest.mark.parametrize(
    ("kind", "encoding", "wanted"),
    [({"type": "bool"}, "uint8", np.bool_), ({"type": "date"}, "int32", "M8[D]"),
     ({"type": "time", "unit": "ns"}, "int64", "m8[ns]")],
)  # fmt: skip
@pytest.mark.parametrize("values", [[], [1, 0, 1]])
def test_numbers_that_an_encoding_of_the_user_returns_as_a_list_come_as_one_array(kind, encoding, wanted, values):
    types = parse_logical({"x": {**kind, "mask": True}}, {"x": encoding, "x__is_null": "uint8"})
    is_null = np.arange(len(values), dtype=np.uint8) == 1
    found = types.batch({"x": values, "x__is_null": is_null.astype(np.uint8)})["x"]
    assert isinstance(found, np.ma.MaskedArray)
    assert (found.dtype, found.mask.tolist()) == (np.dtype(wanted), is_null.tolist())
    assert found.data.astype(np.int64).tolist() == values


def test_arrays_without_axes_stay_arrays():
    types = parse_logical({"x": {"type": "array", "of": {"type": "date"}}}, {"x": "ndarray:int32"})
    stored = np.array(1, np.int32)
    for found in (types.sample({"x": stored})["x"], types.batch({"x": [stored]})["x"][0]):
        assert (type(found), found.shape, found.dtype) == (np.ndarray, (), np.dtype("M8[D]"))


def test_arrays_of_numbers_represent_arrays_of_times():
    lists = [np.array([[0, 1]], np.int32), np.zeros((0, 2), np.int32)]
    _, many = read_as({"type": "array", "of": {"type": "date"}}, "ndarray:int32", lists)
    assert [each.dtype for each in many] == ["M8[D]", "M8[D]"]
    assert [each.shape for each in many] == [(1, 2), (0, 2)]
    block = np.array([[0, 1], [1, 1]], np.uint8)
    one, many = read_as({"type": "array", "of": {"type": "bool"}}, "ndarray:uint8:2", block)
    assert many.tolist() == [[False, True], [True, True]]
    assert [each.tolist() for each in one] == [[False, True], [True, True]]


def test_nulls_are_masked_in_arrays_and_none_elsewhere():
    types = parse_logical(
        {
            "n": {"type": "plain", "mask": True},
            "t": {"type": "plain", "mask": True},
            "d": {"type": "date", "mask": True},
        },
        {"n": "int64", "n__is_null": "uint8", "t": "str", "t__is_null": "uint8", "d": "int32", "d__is_null": "uint8"},
    )
    mask = np.array([0, 1], np.uint8)
    batch = types.batch(
        {
            "n": np.array([7, 0]),
            "n__is_null": mask,
            "t": ["a", ""],
            "t__is_null": mask,
            "d": np.array([1, 0], np.int32),
            "d__is_null": mask,
        }
    )
    assert sorted(batch) == ["d", "n", "t"]
    assert isinstance(batch["n"], np.ma.MaskedArray)
    assert batch["n"].tolist() == [7, None]
    assert batch["d"].dtype == "M8[D]"
    assert batch["d"].mask.tolist() == [False, True]
    assert batch["t"] == ["a", None]
    sample = {"n": 0, "n__is_null": 1, "t": "a", "t__is_null": 0, "d": np.int32(1), "d__is_null": 0}
    assert types.sample(sample) == {"n": None, "t": "a", "d": np.datetime64("1970-01-02")}


def test_a_masked_array_of_arrays_hides_whole_rows():
    types = parse_logical({"x": {"type": "plain", "mask": True}}, {"x": "ndarray:int8:2", "x__is_null": "uint8"})
    batch = types.batch({"x": np.array([[1, 2], [0, 0]], np.int8), "x__is_null": np.array([0, 1], np.uint8)})
    assert batch["x"].tolist() == [[1, 2], [None, None]]


@pytest.mark.parametrize(
    ("kind", "stored", "wanted"),
    [
        ({"type": "list", "of": {"type": "float"}}, [1.5, "NaN", "-Infinity", None], [1.5, "nan", float("-inf"), None]),
        (
            {"type": "struct", "fields": {"d": {"type": "decimal"}, "n": {"type": "int"}}},
            {"d": "1.50", "n": 1},
            {"d": Decimal("1.50"), "n": 1},
        ),
        (
            {"type": "map", "keys": {"type": "text"}, "values": {"type": "binary"}},
            {"a": "/w==", "b": None},
            {"a": b"\xff", "b": None},
        ),
        (
            {"type": "map", "keys": {"type": "int"}, "values": {"type": "text"}},
            [[1, "a"], [2, None]],
            {1: "a", 2: None},
        ),
        (
            {"type": "map", "keys": {"type": "date"}, "values": {"type": "int"}},
            [[0, 1]],
            {np.datetime64("1970-01-01"): 1},
        ),
    ],
)
def test_json_represents_types_that_json_lacks(kind, stored, wanted):
    one, many = read_as(kind, "json", [stored, stored])
    assert one == many
    found = one[0]
    if isinstance(found, list):
        found = [str(each) if isinstance(each, float) and each != each else each for each in found]
    assert found == wanted


@pytest.mark.parametrize(
    "types",
    [
        {},
        {"x": {"type": "decimal", "precision": 5, "scale": 2}},
        {"x": {"type": "vector"}},
        {"x": {"type": "plain"}},
        {"x": {"type": "list", "of": {"type": "int"}}},
        {"x": {"type": "struct", "fields": {"a": {"type": "text"}, "b": {"type": "list", "of": {"type": "bool"}}}}},
        {"x": {"type": "map", "keys": {"type": "text"}, "values": {"type": "int"}}},
    ],
)
def test_types_returned_as_stored_need_no_restoration(types):
    assert parse_logical(types, {"x": "json"}) is None


@pytest.mark.parametrize(
    ("kind", "encoding", "stored", "row"),
    [
        ({"type": "bool"}, "uint8", np.array([0, 2], np.uint8), 1),
        ({"type": "array", "of": {"type": "bool"}}, "ndarray:uint8:2", np.array([[0, 1], [1, 7]], np.uint8), 1),
        (
            {"type": "array", "of": {"type": "bool"}},
            "ndarray:uint8",
            [np.array([1], np.uint8), np.array([9], np.uint8)],
            1,
        ),
        ({"type": "list", "of": {"type": "float"}}, "json", [[1.0], ["nan"]], 1),
        ({"type": "list", "of": {"type": "float"}}, "json", [[1.0], {}], 1),
        ({"type": "list", "of": {"type": "date"}}, "json", [[1], [True]], 1),
        ({"type": "list", "of": {"type": "date"}}, "json", [[1], [2**70]], 1),
        ({"type": "list", "of": {"type": "decimal"}}, "json", [["1"], [1.5]], 1),
        ({"type": "list", "of": {"type": "decimal"}}, "json", [["1"], ["one"]], 1),
        ({"type": "list", "of": {"type": "binary"}}, "json", [["/w=="], ["/w"]], 1),
        ({"type": "struct", "fields": {"a": {"type": "date"}}}, "json", [{"a": 1}, {}], 1),
        ({"type": "struct", "fields": {"a": {"type": "date"}}}, "json", [{"a": 1}, 3], 1),
        ({"type": "map", "keys": {"type": "int"}, "values": {"type": "int"}}, "json", [[[1, 2]], [[1]]], 1),
        ({"type": "map", "keys": {"type": "int"}, "values": {"type": "int"}}, "json", [[], [[1, 2], [1, 3]]], 1),
        ({"type": "map", "keys": {"type": "int"}, "values": {"type": "int"}}, "json", [[], [[[], 2]]], 1),
        ({"type": "map", "keys": {"type": "text"}, "values": {"type": "date"}}, "json", [{}, [1]], 1),
    ],
)
def test_a_stored_value_outside_its_logical_type_is_an_error_with_its_place(kind, encoding, stored, row):
    types = parse_logical({"x": kind}, {"x": encoding})
    with pytest.raises(FormatError, match="column 'x': a stored value is not a value of its logical type") as caught:
        types.batch({"x": stored})
    assert caught.value.column == "x"
    assert caught.value.sample == row
    types.sample({"x": stored[0]})
    with pytest.raises(FormatError, match="`logical=False`"):
        types.sample({"x": stored[row]})


@pytest.mark.parametrize(
    ("types", "encodings"),
    [
        ({"y": {"type": "date"}}, {"x": "int32"}),
        ({"x": {"type": "date"}}, {"x": "int64"}),
        ({"x": {"type": "bool"}}, {"x": "json"}),
        ({"x": {"type": "timestamp", "unit": "ns", "zone": None}}, {"x": "int64"}),
        ({"x": {"type": "timestamp"}}, {"x": "int64"}),
        ({"x": {"type": "colour"}}, {"x": "int64"}),
        ({"x": {"type": ["date"]}}, {"x": "int32"}),
        ({"x": "date"}, {"x": "int32"}),
        ({"x": None}, {"x": "int32"}),
        ({"x": {}}, {"x": "int32"}),
        ({"x": {"type": "plain", "mask": True}}, {"x": "int32"}),
        ({"x": {"type": "plain", "mask": True}}, {"x": "int32", "x__is_null": "int8"}),
        ({"x": {"type": "list", "of": {"type": "date"}}}, {"x": "str"}),
        ({"x": {"type": "list", "of": 3}}, {"x": "json"}),
        ({"x": {"type": "list", "of": {"type": ["int"]}}}, {"x": "json"}),
        ({"x": {"type": "list"}}, {"x": "json"}),
        ({"x": {"type": "struct"}}, {"x": "json"}),
        ({"x": {"type": "struct", "fields": ["a"]}}, {"x": "json"}),
        ({"x": {"type": "map", "keys": {"type": "x"}, "values": {"type": "int"}}}, {"x": "json"}),
        ({"x": {"type": "array", "of": {"type": "date"}}}, {"x": "int32"}),
        ({"x": {"type": "array", "of": "date"}}, {"x": "ndarray:int32"}),
    ],
)
def test_an_unknown_or_unfitting_type_is_refused_when_the_set_is_opened(types, encodings):
    with pytest.raises(
        SchemaError, match=r"column '[xy]'.*Update smalti, or read what is stored by .* `logical=False`"
    ):
        parse_logical(types, encodings)


def test_a_type_nested_too_deeply_is_refused():
    kind = {"type": "int"}
    for _ in range(5000):
        kind = {"type": "list", "of": kind}
    with pytest.raises(SchemaError, match="nested more than 100 deep"):
        parse_logical({"x": kind}, {"x": "json"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3),
)
WORDS = st.sampled_from(["list", "struct", "map", "date", "float", "binary", "decimal", "int", "text", "bool", "array"])
KINDS = st.recursive(
    st.fixed_dictionaries({"type": WORDS}, optional={"unit": st.sampled_from(["us", "M"])}) | JSON,
    lambda each: st.fixed_dictionaries(
        {"type": WORDS},
        optional={"of": each, "keys": each, "values": each, "fields": st.dictionaries(st.text(max_size=2), each)},
    ),
    max_leaves=6,
)


def refused_row(types, values):
    """Return the row that the error names; None if all rows are restored."""
    try:
        types.batch({"x": list(values)})
    except FormatError as error:
        return error.sample
    return None


@given(KINDS, st.lists(JSON, max_size=3))
def test_any_manifest_and_any_json_give_values_or_a_typed_error(kind, values):
    try:
        types = parse_logical({"x": kind}, {"x": "json"})
    except SchemaError:
        return
    if types is not None:
        assert refused_row(types, values) in (None, *range(len(values)))
