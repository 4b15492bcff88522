"""Decoding many values at once gives the values decoded one by one, and errors have the row of the damaged one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from smalti.errors import FormatError
from smalti.format import parse_encoding
from smalti.format.encodings.encoding import split
from smalti.format.encodings.numbers import DTYPE_CODES
from tests.format.columns import COLUMNS, NAMES, same

SHAPES = npst.array_shapes(min_dims=1, max_dims=3, max_side=4)


def joined(values):
    """Return the arguments of `decode_many` for these stored values."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return np.frombuffer(bytearray(b"".join(values)), np.uint8), offsets


@given(st.data())
def test_values_are_those_decoded_one_by_one(data):
    name = data.draw(st.sampled_from([name for name in NAMES if name not in {"jpeg", "png"}]))
    codec = parse_encoding(name)
    stored = [codec.encode(value) for value in data.draw(st.lists(COLUMNS[name][0], max_size=6))]
    found = codec.decode_many(*joined(stored))
    assert len(found) == len(stored)
    assert all(same(a, codec.decode(b)) for a, b in zip(found, stored, strict=True))


@given(st.lists(npst.arrays(st.sampled_from(["uint8", "int16", "float32", "uint64"]), SHAPES), max_size=8))
def test_arrays_of_any_types_and_shapes_come_back(arrays):
    assert_arrays("ndarray", arrays)


@given(st.data(), st.sampled_from(sorted(DTYPE_CODES)))
def test_arrays_of_one_type_and_any_shapes_come_back(data, dtype):
    arrays = data.draw(st.lists(npst.arrays(dtype, SHAPES), max_size=8))
    assert_arrays("ndarray", arrays)
    assert_arrays(f"ndarray:{dtype}", arrays)


@given(st.data(), SHAPES)
def test_arrays_of_one_type_and_shape_come_back(data, shape):
    arrays = data.draw(st.lists(npst.arrays("int16", shape), max_size=8))
    for name in ("ndarray", "ndarray:int16", f"ndarray:int16:{','.join(map(str, shape))}"):
        assert_arrays(name, arrays)


def assert_arrays(name, arrays):
    codec = parse_encoding(name)
    found = codec.decode_many(*joined([codec.encode(array) for array in arrays]))
    assert len(found) == len(arrays)
    for back, array in zip(found, arrays, strict=True):
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert back.flags.writeable
        assert back.flags.aligned


def test_lengths_on_both_sides_of_255_and_of_65535_come_back():
    arrays = [np.arange(n, dtype=np.int32) for n in (1, 255, 256, 65_535, 65_536, 3)]
    assert_arrays("ndarray:int32", arrays)
    assert_arrays("ndarray", arrays)
    assert_arrays("ndarray:int32", [arrays[2]] * 3)


def test_fixed_shape_gives_one_array():
    codec = parse_encoding("ndarray:int16:2,2")
    found = codec.decode_many(*joined([codec.encode(np.full((2, 2), i, np.int16)) for i in range(3)]))
    assert found.shape == (3, 2, 2)
    assert found.tolist() == [[[i, i], [i, i]] for i in range(3)]
    assert codec.decode_many(*joined([])).shape == (0, 2, 2)


def test_numbers_give_one_array_of_their_type():
    found = parse_encoding("int").decode_many(*joined([b"\xff" * 8, b"\x05" + bytes(7)]))
    assert (found.dtype, found.tolist()) == (np.int64, [-1, 5])
    found = parse_encoding("float16").decode_many(*joined([b"\x00\x3e"]))
    assert (found.dtype, found.tolist()) == (np.float16, [1.5])


def test_block_is_returned_only_if_all_headers_are_equal():
    codec = parse_encoding("ndarray:int16")
    one, two = (codec.encode(np.arange(n, dtype=np.int16)) for n in (3, 4))
    turned = codec.encode(np.arange(4, dtype=np.int16).reshape(2, 2))
    same_length = codec.encode(np.arange(1, 4, dtype=np.int16))
    assert codec.decode_block(*joined([one, same_length])).tolist() == [[0, 1, 2], [1, 2, 3]]
    assert codec.decode_block(*joined([one, two])) is None
    assert codec.decode_block(*joined([])) is None
    # Equally long, of another shape: the header of 2 x 2 is a byte longer, its values a byte shorter.
    assert codec.decode_block(*joined([two, turned])) is None


@pytest.mark.parametrize(
    ("name", "stored", "row"),
    [
        ("str", [b"a", "é".encode(), b"\xff", b"b"], 2),
        ("json", [b"1", b"{"], 1),
        ("json", [b"1", b"2", b"[" * 600 + b"]" * 600], 2),
        ("str_int", [b"12", b"1x"], 1),
        ("str_decimal", [b"x", b"1"], 0),
        ("ndarray", [b"\x08\x04\x01\x00", b"\x08\x04\x02\x00"], 1),
        ("ndarray", [b"\x08\x04\x01\x00", b""], 1),
        ("ndarray", [b"\x07\x04\x01\x00", b"\x08\x04\x01\x00"], 0),
        ("ndarray:uint8", [b"\x04\x01\x00", b"\x04\x02\x00"], 1),
        ("ndarray:uint8", [b"\x04\x01\x00", b"\x04\x01"], 1),
        ("ndarray:uint8", [b"\x04\x01\x00", b"\x00\x01\x00"], 1),
        ("ndarray:uint8", [b"\x04\x00\x00"] * 2, 0),
        ("ndarray:uint8", [b"\x04\x01\x00", b"\x0b" + b"\xff" * 16 + b"\x01"], 1),
        # 2^33 x 2^31 elements are 2^64: in 64 bits, none
        ("ndarray:uint8", [b"\x04\x01\x00", b"\x0b" + bytes.fromhex("0000000002000000 0000008000000000") + b"\x01"], 1),
        ("ndarray:int16", [b"\x04\x01\x00\x00", b"\x04\x01\x00\x00\x00\x00"], 1),
        ("ndarray:int16:2", [b"\x01\x00\x02\x00", b"\x01\x00\x02"], 1),
        ("int32", [b"\x01\x00\x00\x00", b"\x01\x00\x00"], 1),
        ("pil", [bytes.fromhex("0100000001000000010000004c07"), b"\x01"], 1),
    ],
)
def test_error_has_the_row_of_the_damaged_value(name, stored, row):
    with pytest.raises(FormatError) as caught:
        parse_encoding(name).decode_many(*joined(stored))
    assert caught.value.row == row


@given(st.lists(st.binary(max_size=6), max_size=6))
def test_split_cuts_bytes_at_the_offsets(values):
    assert split(*joined(values)) == values


def test_split_of_equal_and_of_long_values():
    for values in ([b"ab\0", b"\0\0\0"], [b"x" * 5000, b"", b"y" * 9000], [b"", b""]):
        assert split(*joined(values)) == values


@given(st.sampled_from(["ndarray", "ndarray:int16", "ndarray:int16:2"]), st.lists(st.binary(max_size=12), max_size=5))
def test_any_bytes_give_arrays_or_a_typed_error(name, stored):
    codec = parse_encoding(name)
    try:
        expected = [codec.decode(value) for value in stored]
    except FormatError:
        with pytest.raises(FormatError):
            codec.decode_many(*joined(stored))
        return
    found = codec.decode_many(*joined(stored))
    assert [(a.dtype, a.shape, a.tobytes()) for a in found] == [(a.dtype, a.shape, a.tobytes()) for a in expected]
