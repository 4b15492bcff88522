"""Text, bytes, JSON and numbers as digits."""

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given

from smalti.errors import FormatError, SchemaError
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
        ("json", b'"\\ud83d\\ude00 \\\\ud800"', b'"\\ud83d\\ude00 \\\\ud800"'),
        ("json", "text", b'"text"'),
        ("json", (1, 2), b"[1, 2]"),
        ("json", None, b"null"),
        ("str_int", b"-12", b"-12"),
        ("str_float", b"1e+22", b"1e+22"),
        ("str_decimal", b"1.50", b"1.50"),
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
        ("json", b'{"a": [1e999]}'),
        ("json", b"-1e999"),
        ("json", b'{"a": ["\\ud800"]}'),
        ("json", b'{"\\uDFFF": 1}'),
        ("json", {"a": ["x\ud800"]}),
        ("json", b'{"a": 1, "a": 2}'),
        pytest.param("json", b"[" * 513 + b"]" * 513, id="json too deep"),
        ("str_int", b"1_0"),
        ("str_int", b"01"),
        ("str_int", b"one"),
        ("str_int", b"\xff"),
        ("str_float", b"1.50"),
        ("str_decimal", b"1,5"),
    ],
)
def test_value_that_would_change_is_refused(name, value):
    with pytest.raises(SchemaError):
        parse_encoding(name).encode(value)


def nested(depth):
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_json_nested_too_deeply_is_refused():
    for depth in (513, 900, 100_000):
        with pytest.raises(SchemaError):
            parse_encoding("json").encode(nested(depth))
        with pytest.raises(FormatError, match="512 levels"):
            parse_encoding("json").decode(b"[" * depth + b"]" * depth)
        with pytest.raises(FormatError, match="512 levels"):
            parse_encoding("json").decode(b'{"a":' * depth + b"1" + b"}" * depth)


def test_json_at_the_limits_of_depth_and_size_comes_back():
    codec = parse_encoding("json")
    for value in (nested(512), [[]] * 100_000, [{"a": [1]}] * 1000):
        assert codec.decode(codec.encode(value)) == value


def test_json_above_the_size_limit_is_refused():
    codec = parse_encoding("json")
    with pytest.raises(FormatError, match="67108865 bytes"):
        codec.decode(b" " * (1 << 26) + b"1")
    with pytest.raises(SchemaError, match="67108866 bytes"):
        codec.encode("a" * (1 << 26))


def test_number_that_json_changes_is_refused_with_its_place():
    class Odd(int):
        def __ne__(self, other):
            return True

        def __eq__(self, other):
            return False

        __hash__ = int.__hash__

    with pytest.raises(SchemaError, match=r"Odd at \$\.\*\[\*\] would be changed by JSON"):
        parse_encoding("json").encode({"a": [Odd(3)]})


def test_lax_json_of_other_writers_is_read():
    assert math.isnan(parse_encoding("json").decode(b"[NaN]")[0])


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


@pytest.mark.parametrize("name", ["str_int", "str_float", "str_decimal"])
def test_damaged_digits_are_refused_without_being_shown(name):
    for data in (b"", b"secret", b"\xff", b"0x10"):
        with pytest.raises(FormatError) as caught:
            parse_encoding(name).decode(data)
        assert "secret" not in str(caught.value)
