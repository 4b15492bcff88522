"""smalti.compat.streaming's encodings: bytes by hand, exceptions, and the table that code writes its own into."""

import io
import pickle
import re
from decimal import Decimal, InvalidOperation

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError
from torch.utils.data import DataLoader

from smalti import StreamingDataset
from smalti.compat.streaming import MDSWriter
from smalti.compat.streaming.base.format.json import encodings as json_encodings
from smalti.compat.streaming.base.format.json.encodings import is_json_encoded, is_json_encoding
from smalti.compat.streaming.base.format.mds import encodings, writing_codec
from smalti.compat.streaming.base.format.mds.encodings import (
    Encoding,
    NDArray,
    get_mds_encoded_size,
    get_mds_encodings,
    is_mds_encoding,
    is_mds_encoding_safe,
    mds_decode,
    mds_encode,
)
from smalti.compat.streaming.base.format.xsv import encodings as xsv_encodings
from smalti.compat.streaming.base.format.xsv.encodings import is_xsv_encoding, xsv_decode, xsv_encode
from smalti.errors import BadImageError, SchemaError
from smalti.format import Schema, parse_encoding
from smalti.format.writing.rows import make_fast_encoder

_encodings = encodings._encodings
NAN = float("nan")

STORED = [
    ("bytes", b"\x00a", b"\x00a"),
    ("str", "é", b"\xc3\xa9"),
    ("int", -2, b"\xfe" + b"\xff" * 7),
    ("int", True, b"\x01" + bytes(7)),
    ("uint8", 255, b"\xff"),
    ("int16", 3.9, b"\x03\x00"),
    ("int32", np.int64(7), b"\x07\x00\x00\x00"),
    ("float16", 1 / 3, b"\x55\x35"),
    ("float32", 0.1, b"\xcd\xcc\xcc\x3d"),
    ("float64", 1, b"\x00\x00\x00\x00\x00\x00\xf0\x3f"),
    ("str_int", 10**20, b"100000000000000000000"),
    ("str_float", 0.1, b"0.1"),
    ("str_decimal", Decimal("1.50"), b"1.50"),
    ("json", {"a": [1, None]}, b'{"a": [1, null]}'),
    ("json", np.array([1, 2]), b"[1, 2]"),
    ("json", NAN, b"NaN"),
    ("ndarray", np.array([[1, 2], [3, 4]], "int16"), bytes.fromhex("110802020100020003000400")),
    ("ndarray:int16", np.array([[1, 2], [3, 4]], "int16"), bytes.fromhex("0802020100020003000400")),
    ("ndarray:int16:2,2", np.array([[1, 2], [3, 4]], "int16"), bytes.fromhex("0100020003000400")),
    ("pil", Image.new("RGB", (2, 1), (1, 2, 3)), bytes.fromhex("020000000100000003000000") + b"RGB\1\2\3\1\2\3"),
    ("list[pil]", [], bytes(8)),
    ("jpeg_array", [b"ab", bytearray(b"c")], bytes.fromhex("020000000200000001000000") + b"abc"),
]


@pytest.mark.parametrize(
    ("name", "value", "data"), STORED, ids=[f"{name} {i}" for i, (name, _, _) in enumerate(STORED)]
)
def test_a_value_is_stored_as(name, value, data):
    assert mds_encode(name, value) == data


@pytest.mark.parametrize("name", sorted(get_mds_encodings()))
def test_bytes_are_taken_for_stored_ones(name):
    assert mds_encode(name, b"whatever") == b"whatever"


@pytest.mark.parametrize("name", ["bytes", "str", "int", "str_int", "str_float", "str_decimal", "pil", "jpeg", "png"])
def test_a_value_of_another_type_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match="data should be of type"):
        mds_encode(name, [1])


@pytest.mark.parametrize("value", [np.zeros(0, "int16"), np.zeros((2, 0), "int16"), np.int16(3), np.zeros(2, "int32")])
def test_an_array_that_does_not_fit_is_a_value_error(value):
    with pytest.raises(ValueError, match=r"0 elements|scalar|int16"):
        mds_encode("ndarray:int16", value)
    fast = writing_codec("ndarray:int16")
    with pytest.raises(SchemaError):
        fast.encode(value)


def test_an_array_of_a_type_without_code_is_a_value_error():
    with pytest.raises(ValueError, match="bool"):
        mds_encode("ndarray", np.zeros(2, bool))


def test_an_array_whose_shape_alone_is_fixed_has_its_type_in_front():
    coder = NDArray(shape=(2,))
    data = coder.encode(np.array([1, 2], "uint8"))
    assert data == bytes([8, 1, 2])
    assert coder.decode(data).tolist() == [1, 2]
    with pytest.raises(ValueError, match="shape"):
        coder.encode(np.zeros(3, "uint8"))


def test_a_number_that_the_type_cannot_hold_is_numpys_error():
    with pytest.raises(OverflowError):
        mds_encode("uint8", 256)
    with pytest.raises(OverflowError):
        mds_encode("int", 1 << 63)


def pixels(image):
    return image.mode, image.size, image.tobytes()


def test_images_come_back():
    image = Image.new("RGB", (4, 2), (9, 8, 7))
    for name in ("pil", "png"):
        assert pixels(mds_decode(name, mds_encode(name, image))) == pixels(image)
    assert mds_decode("jpeg", mds_encode("jpeg", image)).size == (4, 2)
    assert list(map(pixels, mds_decode("list[png]", mds_encode("list[png]", [image, image])))) == [pixels(image)] * 2
    with pytest.raises(OSError, match="RGBA"):  # PIL's own error
        mds_encode("jpeg", image.convert("RGBA"))


def test_an_image_that_was_opened_from_a_file_is_stored_as_that_file(tmp_path):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (4, 2), (9, 8, 7)).save(path, quality=31)
    with Image.open(path) as image:
        assert mds_encode("jpeg", image) == path.read_bytes()


@pytest.mark.parametrize("data", [b"", bytes(7), bytes.fromhex("00000000020000000100000001000000") + b"a"])
def test_a_damaged_list_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"list|images"):
        mds_decode("list[png]", data)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ndarray", np.zeros(2, "complex64"), "Unsupported dtype: complex64."),
        ("ndarray:float32", np.zeros(2, "int32"), "Wrong dtype: expected float32, got int32."),
        ("ndarray:int8:3", np.zeros(4, "int8"), "Wrong shape: expected (3,), got (4,)."),
        ("ndarray:int8:3", np.int8(1), "Wrong shape: expected (3,), got ()."),
    ],
)
def test_messages_about_arrays_begin_as_mosaicmls(name, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        mds_encode(name, value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\1", "Input data is too short to contain valid jpeg arrays"),
        (bytes(4), "Negative number of images decoded"),
        (b"\2" + bytes(7), "Data is too short w.r.t the number of images decoded"),
    ],
)
def test_messages_about_jpeg_arrays_begin_as_mosaicmls(data, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        encodings.JPEGArray().decode(data)


def test_damaged_numbers_are_the_errors_of_numpy_and_decimal():
    with pytest.raises(ValueError, match="smaller"):
        encodings.Int().decode(b"\x01")
    for error in (InvalidOperation, ValueError):
        with pytest.raises(error):
            encodings.StrDecimal().decode(b"x")


def test_an_array_without_axes_is_refused():
    with pytest.raises(ValueError, match="Please use a scalar encoding"):
        NDArray().encode(np.array(3))


@pytest.mark.parametrize("kind", ["WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("name", ["jpeg", "png", "list[jpeg]"])
def test_other_image_files_that_mosaicmls_writer_stored_are_read(name, kind):
    out = io.BytesIO()
    Image.new("L", (4, 2), 200).save(out, kind)
    data = out.getvalue()
    if name == "list[jpeg]":
        (image,) = mds_decode(name, bytes(4) + encodings._join([data]))
    else:
        image = mds_decode(name, data)
    assert (image.format, image.size) == (kind, (4, 2))
    assert image.convert("L").getpixel((1, 1)) == 200


@pytest.mark.parametrize("error", [OSError, UnidentifiedImageError, BadImageError, ValueError])
def test_an_image_that_cannot_be_decoded_is_pillows_error_and_ours(tmp_path, error):
    with MDSWriter(columns={"image": "jpeg"}, out=str(tmp_path)) as writer:
        writer.write({"image": b"II*\0, no image"})
    with pytest.raises(error, match="not a readable JPEG") as caught:
        StreamingDataset(remote=tmp_path, batch_size=1)[0]
    assert "not a readable JPEG" in str(pickle.loads(pickle.dumps(caught.value)))


def test_a_list_of_no_jpeg_files_cannot_be_read():
    with pytest.raises(ValueError, match="0 images"):
        mds_decode("jpeg_array", mds_encode("jpeg_array", []))


def test_names_and_sizes():
    assert get_mds_encoded_size("int") == 8
    assert get_mds_encoded_size("ndarray:float32:3,2") == 24
    assert get_mds_encoded_size("ndarray:float32") is None
    assert is_mds_encoding("list[jpeg]")
    assert not is_mds_encoding("integer")
    assert is_mds_encoding_safe("json")
    assert not is_mds_encoding_safe("pkl")
    for call in (
        lambda: mds_encode("integer", 1),
        lambda: mds_decode("integer", b""),
        lambda: get_mds_encoded_size("x"),
    ):
        with pytest.raises(ValueError, match="Unsupported encoding"):
            call()
    for error in (KeyError, ValueError):
        with pytest.raises(error, match="foo:bar"):
            is_mds_encoding("foo:bar")
    with pytest.raises(AttributeError, match="parameters"):
        mds_encode("int:3", 1)
    for name in ("ndarray:bool", "ndarray:int8:0", "ndarray:int8:a", "int:3"):
        with pytest.raises(ValueError, match=r"array|parameters"):
            is_mds_encoding(name)


class Backwards(Encoding):
    """Text backwards."""

    def encode(self, obj):
        return obj[::-1].encode()

    def decode(self, data):
        return data.decode()[::-1]


class Byte(Encoding):
    """Whole numbers of one byte."""

    size = 1

    def encode(self, obj):
        self._validate(obj, int)
        return bytes([obj])

    def decode(self, data):
        return data[0]


class Doubled(NDArray):
    """Arrays that are read doubled."""

    def decode(self, data):
        return 2 * super().decode(data)


@pytest.fixture
def table():
    """Return the table of encodings, which is as it was afterwards."""
    yield _encodings
    for name in {*_encodings, *encodings._BUILT_IN}:
        if name not in encodings._BUILT_IN:
            del _encodings[name]
        elif _encodings.get(name) is not encodings._BUILT_IN[name]:
            _encodings[name] = encodings._BUILT_IN[name]
    assert parse_encoding("int").size == 8


def test_columns_of_a_class_in_the_table_are_written_and_read_by_it_here_and_in_workers(table, tmp_path):
    table["str"] = table["Backwards"] = Backwards
    table["int"] = Byte
    table["ndarray"] = Doubled
    columns = {"id": "int", "text": "str", "more": "Backwards", "array": "ndarray:int8:2"}
    with MDSWriter(columns=columns, out=str(tmp_path)) as writer:
        for i in range(8):
            writer.write({"id": i, "text": f"text {i}", "more": "more", "array": np.full(2, i, "int8")})
        with pytest.raises(AttributeError):
            writer.write({"id": "9", "text": "", "more": "", "array": np.zeros(2, "int8")})
    assert b"3 txet" in (tmp_path / writer.shards[0]["raw_data"]["basename"]).read_bytes()
    dataset = StreamingDataset(remote=tmp_path, batch_size=4)
    sample = dataset[3]
    assert (sample["id"], sample["text"], sample["more"], sample["array"].tolist()) == (3, "text 3", "more", [6, 6])
    texts = [text for batch in DataLoader(dataset, batch_size=4, num_workers=1) for text in batch["text"]]
    assert texts == [f"text {i}" for i in range(8)]


def test_a_class_taken_out_gives_its_name_back_to_mds(table):
    table["int"] = Byte
    assert mds_encode("int", 5) == b"\x05"
    assert parse_encoding("int").encode(5) == b"\x05"
    table["int"] = encodings.Int
    assert mds_encode("int", 5) == parse_encoding("int").encode(5) == b"\x05" + bytes(7)


def test_every_way_to_change_the_table_reaches_the_engine(table):
    table.update(byte=Byte)
    table |= {"byte2": Byte}
    assert table.setdefault("byte3", Byte) is table.setdefault("byte3", Backwards) is Byte
    assert [parse_encoding(name).size for name in ("byte", "byte2", "byte3")] == [1, 1, 1]
    assert table.pop("byte") is Byte
    del table["byte2"]
    assert table.popitem() == ("byte3", Byte) or table.pop("byte3")
    for name in ("byte", "byte2", "byte3"):
        with pytest.raises(SchemaError, match="unknown encoding"):
            parse_encoding(name)
    before = dict(table)
    table.clear()
    assert get_mds_encodings() == set()
    table.update(before)
    assert table == before


def test_a_name_with_a_colon_cannot_be_registered(table):
    with pytest.raises(SchemaError, match="colon"):
        table["a:b"] = Byte
    assert "a:b" not in table


def test_types_of_json_and_of_lines():
    assert is_json_encoding("float")
    assert not is_json_encoding("bytes")
    assert is_json_encoded("int", 3)
    with pytest.raises(AttributeError, match="data should be of type"):
        is_json_encoded("str", 3)
    assert is_xsv_encoding("str")
    assert not is_xsv_encoding("json")
    for name, value, text in (("int", -3, "-3"), ("float", 0.1, "0.1"), ("str", "a b", "a b")):
        assert xsv_encode(name, value) == text
        assert xsv_decode(name, text) == value
    with pytest.raises(AttributeError, match="data should be of type"):
        xsv_encode("float", 1)


def test_a_type_that_is_added_to_json_is_none_of_lines(monkeypatch):
    added = type("Bool", (json_encodings.Encoding,), {"_type": bool})
    monkeypatch.setitem(json_encodings._encodings, "bool", added)
    assert is_json_encoding("bool")
    assert is_json_encoded("bool", True)
    assert not is_xsv_encoding("bool")
    monkeypatch.setitem(xsv_encodings._encodings, "word", added)
    assert is_xsv_encoding("word")
    assert not is_json_encoding("word")


def test_the_fast_path_gives_the_bytes_of_the_classes():
    out = io.BytesIO()
    Image.new("RGB", (2, 2)).save(out, "JPEG")
    values = {
        "float32": [0.1, np.float32(0.1), 1e300, NAN, 3], "float16": [1 / 3, -0.0, 1e6], "int": [3, True],
        "int8": [-1, True], "str": ["é", b"a"], "jpeg": [out.getvalue(), b"any"], "float64": [0.1, 1, np.float32(0.1)],
    }  # fmt: skip
    for name, some in values.items():
        for value in some:
            with np.errstate(all="ignore"):
                expected = mds_encode(name, value)
                found = encoded_alone(name, value)
            assert found == expected, (name, value)


def encoded_alone(name, value):
    """Return the bytes of the value in a sample of one column, without those of its length."""
    codec = writing_codec(name)

    def slowly(sample):
        data = mds_encode(name, sample["x"])
        return data if codec.size is not None else len(data).to_bytes(4, "little") + data

    encode = make_fast_encoder(Schema(("x",), (name,), (codec.size,)), (codec,), slowly)
    return encode({"x": value})[0 if codec.size is not None else 4 :]
