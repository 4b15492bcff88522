"""Lists of images in one value: byte for byte, and what is refused."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from smalti.errors import BadImageError, SchemaError
from smalti.format import Encoding, Schema, ShardBuilder, ShardOptions, parse_encoding
from smalti.format.encodings.images import ImageList
from tests.format.columns import image_bytes

JPEG, PNG = image_bytes("JPEG", (5, 4)), image_bytes("PNG", (5, 4))
RAW = bytes.fromhex("02000000 01000000 03000000 524742 010203010203")
DOT = Image.new("RGB", (2, 1), (1, 2, 3))
LISTS = {"list[pil]": RAW, "list[jpeg]": JPEG, "list[png]": PNG}
ARRAYS = ("jpeg_array", "jpegarray")


def u32(*numbers):
    return struct.pack(f"<{len(numbers)}I", *numbers)


@pytest.mark.parametrize("name", LISTS)
def test_list_is_stored_with_a_reserved_number_a_count_and_the_sizes(name):
    image = LISTS[name]
    codec = parse_encoding(name)
    stored = u32(0, 2, len(image), len(image)) + image + image
    assert codec.encode([image, bytearray(image)]) == stored
    assert codec.encode((image, image)) == stored
    assert codec.encode(stored) == stored
    assert [found.size for found in codec.decode(stored)] == [(2, 1) if name == "list[pil]" else (5, 4)] * 2


@pytest.mark.parametrize("name", ARRAYS)
def test_jpeg_array_is_stored_with_a_count_and_the_sizes(name):
    codec = parse_encoding(name)
    stored = u32(2, len(JPEG), len(JPEG)) + JPEG + JPEG
    assert codec.name == name
    assert codec.encode([JPEG, np.frombuffer(JPEG, np.uint8)]) == stored
    assert codec.encode((memoryview(JPEG), JPEG)) == stored
    assert codec.encode(stored) == stored


@pytest.mark.parametrize("name", [*LISTS, *ARRAYS])
def test_pil_images_come_back(name):
    codec = parse_encoding(name)
    images = [Image.new("L", (8, 8), 9), Image.new("L", (3, 2), 200)]
    found = codec.decode(codec.encode(images))
    assert [(image.mode, image.size, image.getpixel((0, 0))) for image in found] == [
        ("L", (8, 8), 9),
        ("L", (3, 2), 200),
    ]


def test_empty_list_comes_back_and_empty_array_is_refused():
    for name in LISTS:
        codec = parse_encoding(name)
        assert codec.encode([]) == u32(0, 0)
        assert codec.decode(u32(0, 0)) == []
    for name in ARRAYS:
        with pytest.raises(SchemaError, match="at least one"):
            parse_encoding(name).encode([])
        with pytest.raises(BadImageError):
            parse_encoding(name).decode(u32(0))


@pytest.mark.parametrize("name", [*LISTS, *ARRAYS])
def test_foreign_values_are_refused(name):
    image = LISTS.get(name, JPEG)
    codec = parse_encoding(name)
    for value in (None, "text", image, DOT, 3, {"a": image}, np.zeros((2, 2, 3), np.uint8)):
        with pytest.raises(SchemaError):
            codec.encode(value)
    for item in (None, image[:-1], b"", "text", np.zeros((2, 2), np.uint8), np.zeros(4, np.int16), [image]):
        with pytest.raises(SchemaError, match="image 1 of a list"):
            codec.encode([image, item])


def test_image_of_another_format_is_refused_in_a_list():
    for name, image in (("list[jpeg]", PNG), ("list[png]", JPEG), ("list[pil]", PNG), ("jpeg_array", PNG)):
        with pytest.raises(SchemaError, match="image 0 of a list"):
            parse_encoding(name).encode([image])
        head = u32(1, len(image)) if name == "jpeg_array" else u32(0, 1, len(image))
        with pytest.raises(SchemaError, match="image 0 of a list"):
            parse_encoding(name).encode(head + image)


@pytest.mark.parametrize("name", [*LISTS, *ARRAYS])
def test_damaged_lists_are_refused(name):
    image = LISTS.get(name, JPEG)
    codec = parse_encoding(name)
    head = b"" if name in ARRAYS else u32(0)
    good = head + u32(1, len(image)) + image
    assert len(codec.decode(good)) == 1
    damaged = [
        b"",
        head,
        head + u32(1),
        head + u32(1 << 30) + image,  # 2^30 sizes are 2^32 bytes: in 32 bits, none
        head + u32((1 << 32) - 1) + image,
        head + u32(2, len(image)) + image,
        head + u32(1, len(image) + 1) + image,
        head + u32(1, len(image) - 1) + image,
        head + u32(2, len(image), (1 << 32) - len(image)) + image,  # together 2^32: in 32 bits, nothing
        good + b"\0",
        good[:-1],
    ]
    if head:
        damaged.append(u32(1, 1, len(image)) + image)  # a later version of the format
    for data in damaged:
        with pytest.raises(BadImageError):
            codec.decode(data)
        with pytest.raises(SchemaError):
            codec.encode(data)


def test_list_of_millions_of_empty_images_is_refused_at_the_first():
    data = u32(0, 1_000_000) + bytes(4_000_000)
    for name in LISTS:
        with pytest.raises(BadImageError):
            parse_encoding(name).decode(data)


def test_headers_are_checked_before_pixels_are_allocated():
    huge = u32(1 << 20, 1 << 20, 1) + b"L"
    with pytest.raises(BadImageError, match="pixels are more than"):
        parse_encoding("list[pil]").decode(u32(0, 1, len(huge)) + huge)
    wide = bytearray(PNG)
    wide[16:24] = struct.pack(">II", 1 << 20, 1 << 20)
    with pytest.raises(BadImageError):
        parse_encoding("list[png]").decode(u32(0, 1, len(wide)) + bytes(wide))
    tall = JPEG.replace(b"\x00\x04\x00\x05", b"\xff\xff\xff\xff")
    assert tall != JPEG
    for name, head in (("list[jpeg]", u32(0, 1, len(tall))), ("jpeg_array", u32(1, len(tall)))):
        with pytest.raises(BadImageError):
            parse_encoding(name).decode(head + tall)


@pytest.mark.parametrize("name", ["list[jpeg]", "list[png]", "list[pil]", "jpeg_array"])
def test_arrow_lists_of_files_give_the_bytes_of_samples(name):
    image = LISTS.get(name, JPEG)
    rows = [[image], [image, image]]
    schema, options = Schema.from_columns({"x": name}), ShardOptions(hashes=())
    by_sample, by_batch = ShardBuilder(schema, options), ShardBuilder(schema, options)
    for row in rows:
        by_sample.add({"x": row})
    by_batch.add_batch(pa.record_batch({"x": pa.array(rows, pa.list_(pa.binary()))}))
    (one,), (other,) = by_sample.finish(), by_batch.finish()
    assert bytes(one.seal().payloads[0]) == bytes(other.seal().payloads[0])
    with pytest.raises(SchemaError, match="image 1 of a list") as caught:
        by_batch.add_batch(pa.record_batch({"x": pa.array([*rows, [image, b"damaged"]], pa.list_(pa.binary()))}))
    assert caught.value.column == "x"


def test_image_of_four_gib_is_refused():
    class Endless(bytes):
        def __len__(self):
            return 1 << 32

    class Fake(Encoding):
        def encode(self, value):
            return Endless(value)

        def decode(self, data):
            return data

    with pytest.raises(SchemaError, match="4 GiB"):
        ImageList("list[fake]", Fake("fake")).encode([b"a"])
