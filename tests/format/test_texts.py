"""Text, bytes, JSON and numbers as digits."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given

from smalti.errors import SchemaError
from smalti.format import parse_encoding
from tests.format.columns import json_values, text


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("bytes", bytearray(b"\x00\xff"), b"\x00\xff"),
        ("str", "héllo0", b"h\xc3\xa9llo0"),
        ("str", "a\x00b", b"a\x00b"),
        ("str", "héllo".encode(), b"h\xc3\xa9llo"),
        ("str_int", -(10**30), b"-1000000000000000000000000000000"),
        ("str_float", 0.1, b"0.1"),
        ("str_float", np.float32(0.1), b"0.10000000149011612"),
        ("str_decimal", Decimal("1.50"), b"1.50"),
        ("json", {"é": [1, None, True, 1.5]}, b'{"\\u00e9": [1, null, true, 1.5]}'),
        ("json", np.array([[1, 2]]), b"[[1, 2]]"),
        ("json", b'{"a": 1}', b'{"a": 1}'),
        ("json", "text", b'"text"'),
        ("json", (1, 2), b"[1, 2]"),
    ],
)
def test_stored_bytes(name, value, stored):
    assert parse_encoding(name).encode(value) == stored


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes", "text"),
        ("bytes", None),
        ("str", "\ud800"),
        ("str", b"\xff\xfe"),
        ("str", 3),
        ("str", None),
        ("str_int", True),
        ("str_int", 1.0),
        pytest.param("str_int", 10**5000, id="too many digits"),
        ("str_float", 1),
        ("str_decimal", 1.5),
        ("json", float("nan")),
        ("json", {"a": [float("inf")]}),
        ("json", {1: "a"}),
        ("json", {"a": {None: 1}}),
        ("json", {1, 2}),
        ("json", np.int64(3)),
        ("json", np.array([np.nan])),
        ("json", b"{"),
        ("json", b"NaN"),
        ("json", b"\xff"),
        ("json", None),
    ],
)
def test_value_that_would_change_is_refused(name, value):
    with pytest.raises(SchemaError):
        parse_encoding(name).encode(value)


def test_json_nested_without_end_is_refused():
    value: list = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(SchemaError):
        parse_encoding("json").encode(value)


@given(text)
def test_text_comes_back(value):
    codec = parse_encoding("str")
    assert codec.decode(codec.encode(value)) == value


@given(json_values)
def test_json_comes_back(value):
    codec = parse_encoding("json")
    assert codec.decode(codec.encode(value)) == value


def test_message_names_types_and_never_the_content():
    with pytest.raises(SchemaError) as caught:
        parse_encoding("int8").encode("my secret")
    assert "str" in str(caught.value)
    assert "secret" not in str(caught.value)
