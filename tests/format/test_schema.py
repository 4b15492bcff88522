"""Schemas: order, sizes, and names and encodings that are refused at open."""

import pytest

from smalti.errors import SchemaError
from smalti.format import Schema, ShardBuilder, ShardOptions


def test_columns_stand_in_code_point_order_with_their_sizes():
    schema = Schema.from_columns({"b": "str", "é": "int", "Z": "ndarray:float32:2,3", "a": "uint16"})
    assert schema.names == ("Z", "a", "b", "é")
    assert schema.encodings == ("ndarray:float32:2,3", "uint16", "str", "int")
    assert schema.sizes == (24, 2, None, 8)
    assert schema.columns() == {"Z": "ndarray:float32:2,3", "a": "uint16", "b": "str", "é": "int"}


@pytest.mark.parametrize(
    "encoding",
    [
        "pkl",
        "jpeg_array",
        "list[jpeg]",
        "unknown",
        "",
        "INT",
        "int ",
        "ndarray:",
        "ndarray:bool",
        "ndarray:int32:",
        "ndarray:int32:0",
        "ndarray:int32:-1",
        "ndarray:int32:2,",
        "ndarray:int32:2:3",
        "ndarray:float64:4000000000",
        "ndarray:float64:9999999999,9999999999",
        "ndarray:uint8:" + ",".join(["1"] * 64),
        "complex64",
        "bool",
    ],
)
def test_encoding_that_cannot_be_read_is_refused_at_once(encoding):
    with pytest.raises(SchemaError) as caught:
        Schema.from_columns({"x": encoding})
    assert caught.value.column == "x"


def test_pickle_is_refused_even_where_unsafe_types_are_allowed():
    with pytest.raises(SchemaError, match="runs code"):
        Schema.from_columns({"x": "pkl"})
    with pytest.raises(SchemaError, match="no pickle decoder"):
        Schema.from_columns({"x": "pkl"}, allow_unsafe_types=True)


@pytest.mark.parametrize("columns", [{"": "int"}, {"a": "int", "A": "int"}, {"\ud800": "int"}, {3: "int"}])
def test_unusable_names_are_refused(columns):
    with pytest.raises(SchemaError):
        Schema.from_columns(columns)


def test_writing_without_columns_is_refused():
    with pytest.raises(SchemaError, match="at least one column"):
        ShardBuilder(Schema.from_columns({}), ShardOptions())
