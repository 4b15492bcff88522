"""Numbers are stored exactly or refused."""

import math
import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import SchemaError
from smalti.format import parse_encoding
from smalti.format.encodings.numbers import cast_exact
from tests.format.columns import SCALARS, same


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("int", -2, "feffffffffffffff"),
        ("int", True, "0100000000000000"),
        ("int8", -1, "ff"),
        ("uint16", 0x1234, "3412"),
        ("int32", np.int64(7), "07000000"),
        ("int32", 3.0, "03000000"),
        ("uint64", 2**64 - 1, "ffffffffffffffff"),
        ("float16", 1.5, "003e"),
        ("float32", np.float32(0.1), "cdcccc3d"),
        ("float64", 0.1, "9a9999999999b93f"),
        ("float32", 1 << 24, "0000804b"),
    ],
)
def test_number_is_stored_little_endian(name, value, stored):
    assert parse_encoding(name).encode(value).hex() == stored


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int8", 128),
        ("int8", -129),
        ("uint8", -1),
        ("uint8", 256),
        ("int", 2**63),
        ("int32", 3.9),
        ("int32", -0.0),
        ("int32", math.nan),
        ("int32", math.inf),
        ("int64", 2.0**63),
        ("uint64", 2.0**64),
        ("float32", 0.1),
        ("float32", 2**24 + 1),
        ("float32", 1e39),
        ("float16", 65520),
        ("float64", 2**53 + 1),
        ("float64", 2**63 - 1),
        ("float64", 10**400),
        ("int", None),
        ("int", "3"),
        ("int", b"12345678"),
        ("float64", b"12345678"),
        ("int", Decimal(3)),
        ("int", [3]),
        ("int", np.array([3, 4])),
        ("float32", 1j),
        ("int64", np.datetime64("2020-01-01")),
    ],
)
def test_number_that_would_change_is_refused(name, value):
    with pytest.raises(SchemaError):
        parse_encoding(name).encode(value)


@given(st.data())
def test_every_number_of_the_range_comes_back(data):
    name = data.draw(st.sampled_from(sorted(SCALARS)))
    value = data.draw(SCALARS[name][0])
    codec = parse_encoding(name)
    assert same(codec.decode(codec.encode(value)), value)


@given(st.integers(-(2**70), 2**70) | st.floats(), st.sampled_from(sorted(SCALARS)))
def test_any_number_comes_back_equal_or_is_refused(value, name):
    codec = parse_encoding(name)
    try:
        stored = codec.encode(value)
    except SchemaError:
        return
    back = codec.decode(stored)
    assert same(float(back), value) if isinstance(value, float) else int(back) == value


def test_int_decodes_to_a_python_int_and_sized_scalars_to_numpy_ones():
    assert type(parse_encoding("int").decode(struct.pack("<q", -5))) is int
    assert type(parse_encoding("uint8").decode(b"\x05")) is np.uint8


def test_signed_bytes_and_shorts_keep_their_sign():
    for name, values in (("int8", range(-128, 128)), ("int16", range(-(2**15), 2**15))):
        codec = parse_encoding(name)
        assert [int(codec.decode(codec.encode(value))) for value in values] == list(values)


def test_only_numbers_are_cast():
    with pytest.raises(SchemaError, match="expected numbers for int8, found str"):
        cast_exact(np.array(["1"]), "int8")
