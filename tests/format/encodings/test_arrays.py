"""Arrays: the three forms of `ndarray`, byte for byte, and values that are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from smalti.errors import FormatError, SchemaError
from smalti.format import parse_encoding
from smalti.format.encodings.numbers import DTYPE_CODES

SQUARE = np.array([[1, 2], [3, 4]], np.int16)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("ndarray", "11 08 02 02 01 00 02 00 03 00 04 00"),
        ("ndarray:int16", "08 02 02 01 00 02 00 03 00 04 00"),
        ("ndarray:int16:2,2", "01 00 02 00 03 00 04 00"),
    ],
)
@pytest.mark.parametrize(
    "array", [SQUARE, np.asfortranarray(SQUARE), SQUARE.astype(">i2"), np.repeat(SQUARE, 2, axis=1)[:, ::2]]
)
def test_array_is_stored_in_c_order_and_little_endian(name, stored, array):
    assert parse_encoding(name).encode(array) == bytes.fromhex(stored)


def test_strided_array_is_stored_as_its_elements():
    assert parse_encoding("ndarray:uint8").encode(np.arange(6, dtype=np.uint8)[::2]).hex() == "0403000204"


def test_shape_takes_the_smallest_width_for_its_largest_size():
    assert parse_encoding("ndarray").encode(np.arange(300).astype(np.uint8))[:4].hex() == "08052c01"
    assert parse_encoding("ndarray:uint8").encode(np.zeros(255, np.uint8))[:2].hex() == "04ff"
    assert parse_encoding("ndarray:uint8").encode(np.zeros((1, 70_000), np.uint8))[:9].hex() == "0a0100000070110100"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ndarray", np.array(3)),
        ("ndarray", np.broadcast_to(np.zeros((1, 0)), (2**32, 0))),
        ("ndarray", np.array([True])),
        ("ndarray", np.array(["a"])),
        ("ndarray", np.array([1j])),
        ("ndarray", np.array([None])),
        ("ndarray", [1, 2]),
        ("ndarray", None),
        ("ndarray", b"\x11\x08"),
        ("ndarray:int32", np.array([1], np.int64)),
        ("ndarray:int32", [2**31]),
        ("ndarray:int32", [1.5]),
        ("ndarray:int32", [[1], [2, 3]]),
        ("ndarray:int32", ["1"]),
        ("ndarray:int32:2", np.zeros(0, np.int32)),
        ("ndarray:float64", [2**53 + 1, 0.5]),
        ("ndarray:float32", [0.1]),
        ("ndarray:int32:2", np.array([1, 2, 3], np.int32)),
        ("ndarray:int32:2", np.array([[1, 2]], np.int32)),
        ("ndarray:int32", np.ma.masked_array(np.array([1, 2], np.int32), [True, False])),
    ],
)
def test_array_that_would_change_is_refused(name, value):
    with pytest.raises(SchemaError):
        parse_encoding(name).encode(value)


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("ndarray", np.zeros(0, np.int16), "11 04 00"),
        ("ndarray:int16", np.zeros(0, np.int16), "04 00"),
        ("ndarray:int16", [], "04 00"),
        ("ndarray:int16", np.zeros((2, 0), np.int16), "08 02 00"),
        ("ndarray:int16", np.zeros((300, 0), np.int16), "09 2c 01 00 00"),
    ],
)
def test_an_array_of_no_elements_is_its_shape(name, value, stored):
    codec, shape = parse_encoding(name), np.shape(value)
    assert codec.encode(value) == bytes.fromhex(stored)
    assert codec.decode(bytes.fromhex(stored)).shape == shape
    assert codec.decode(bytes.fromhex(stored)).dtype == np.int16
    twice = np.frombuffer(bytes.fromhex(stored) * 2, np.uint8)
    ends = np.arange(3) * len(bytes.fromhex(stored))
    assert [each.shape for each in codec.decode_many(twice.copy(), ends)] == [shape, shape]


def test_empty_arrays_come_back_among_others():
    codec = parse_encoding("ndarray:int32")
    values = [np.array([1, 2], np.int32), np.zeros(0, np.int32), np.array([3], np.int32), np.zeros((0, 4), np.int32)]
    stored = [codec.encode(value) for value in values]
    found = codec.decode_many(np.frombuffer(b"".join(stored), np.uint8), np.cumsum([0, *map(len, stored)]))
    assert [each.tolist() for each in found] == [[1, 2], [], [3], []]
    assert [each.shape for each in found] == [(2,), (0,), (1,), (0, 4)]


@given(npst.arrays(st.sampled_from(sorted(DTYPE_CODES)), npst.array_shapes(max_dims=4, min_side=0, max_side=5)))
def test_every_array_comes_back(array):
    for name in ("ndarray", f"ndarray:{array.dtype.name}"):
        codec = parse_encoding(name)
        back = codec.decode(codec.encode(array))
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert back.tobytes() == array.tobytes()
        assert back.flags.writeable


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x11",
        b"\x07\x04\x01\x00",  # no such element type
        b"\x11\x00\x01\x00",  # no axes
        b"\x11\x04\x00\x00",  # a byte in an array of none
        b"\x11\x0b" + (1 << 32).to_bytes(8, "little") + b"\0" * 8,  # no elements, and 2^32 rows of none
        b"\x11\x04\x02\x01\x00",  # two elements declared, one there
        b"\x11\x04\x01\x01\x00\x00",  # a byte too many
        b"\x11\x0b" + b"\xff" * 16,  # 2^128 elements
        b"\x11\x0f\x01",  # the shape is cut off
    ],
)
def test_damaged_array_is_refused(stored):
    with pytest.raises(FormatError):
        parse_encoding("ndarray").decode(stored)
