"""Schemas: order, sizes, and names and encodings that are refused when a set is opened."""

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
        "list[int]",
        "list[jpeg]:3",
        "list",
        "jpeg_array:2",
        "pkl:5",
        "float",
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


def test_pickle_is_parsed_and_decoded_only_where_unsafe_types_are_allowed():
    with pytest.raises(SchemaError, match="runs code") as caught:
        Schema.from_columns({"x": "pkl"})
    assert caught.value.column == "x"
    schema = Schema.from_columns({"x": "pkl"}, allow_unsafe_types=True)
    assert schema.sizes == (None,)
    assert [codec.name for codec in schema.codecs(allow_unsafe_types=True)] == ["pkl"]
    with pytest.raises(SchemaError, match="allow_unsafe_types=True"):
        schema.codecs()


def test_every_name_of_mds_stays_as_it_is_written():
    names = ["jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]", "ndarray:uint8:3,2", "str_decimal"]
    schema = Schema.from_columns({f"c{i}": name for i, name in enumerate(names)})
    assert list(schema.encodings) == names


def test_name_of_an_encoding_must_be_text():
    with pytest.raises(SchemaError, match="must be text, found NoneType"):
        Schema.from_columns({"x": None})


def test_messages_show_little_of_a_long_name():
    for columns in (
        {"x": "y" * 10**6},
        {"x" * 10**6: "nothing"},
        {"x": "ndarray:" + "y" * 10**6},
        {"A" * 9999: "int", "a" * 9999: "int"},
    ):
        with pytest.raises(SchemaError) as caught:
            Schema.from_columns(columns)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("columns", [{"": "int"}, {"a": "int", "A": "int"}, {"\ud800": "int"}, {3: "int"}])
def test_unusable_names_are_refused(columns):
    with pytest.raises(SchemaError):
        Schema.from_columns(columns)


def test_writing_without_columns_is_refused():
    with pytest.raises(SchemaError, match="at least one column"):
        ShardBuilder(Schema.from_columns({}), ShardOptions())
