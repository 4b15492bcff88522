"""The check of image files agrees with the decoders, which are Pillow and libjpeg-turbo.

Exceptions, on purpose: a file that is cut within its last bytes, behind the pixels, and a GIF file whose screen has no
size or is smaller than its first frame are refused, although Pillow takes them; damage in the pixels, and in tables
before them, shows only when they are decoded.
"""

import io
import random
import zlib

import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngInfo

from smalti import MDSWriter, convert
from smalti.errors import BadImageError, SchemaError, SmaltiError
from smalti.format.encodings.images import END_MARK, HEAD_BYTES, Png, check_image_file, check_jpeg, has_good_head
from smalti.images.header import probe_image
from smalti.images.pixels import decode_rgb
from tests.seeds import seed_of


def saved(form, mode="RGB", **options):
    file = io.BytesIO()
    Image.effect_noise((40, 30), 50).convert(mode).save(file, form, **options)
    return file.getvalue()


VARIANTS = {
    "jpeg": saved("JPEG"),
    "grey": saved("JPEG", "L"),
    "cmyk": saved("JPEG", "CMYK"),
    "progressive": saved("JPEG", progressive=True),
    "comment": saved("JPEG", comment=b"x" * 50, dpi=(72, 72)),
    "png": saved("PNG"),
    "palette": saved("PNG", "P"),
    "alpha": saved("PNG", "LA"),
    "gif": saved("GIF", "P"),
    "bmp": saved("BMP"),
    "bits": saved("BMP", "1"),
    "webp": saved("WEBP"),
    "lossless": saved("WEBP", lossless=True),
    "extended": saved("WEBP", "RGBA", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"),
}
EXPECTED_FAULTS = ("impossible size", "limit of", "larger than its screen")
HEADER_BYTES = {"JPEG": 600, "PNG": 33, "GIF": 13, "BMP": 54, "WEBP": 30}


def fault_of(data):
    """Return why the check refuses a file; None if it accepts it."""
    try:
        return check_image_file(probe_image(data).format, data)
    except BadImageError as error:
        return str(error)


def loads(data):
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception:
        return False
    return True


@pytest.mark.parametrize("name", VARIANTS)
def test_a_file_that_is_cut_anywhere_is_refused_unless_it_can_be_decoded(name):
    whole = VARIANTS[name]
    assert fault_of(whole) is None
    for end in {*range(min(len(whole), 150)), *range(0, len(whole), 97), *range(len(whole) - 20, len(whole))}:
        data = whole[:end]
        fault = fault_of(data)
        if end >= len(whole) - 20:
            assert fault is not None or loads(data), end
        else:
            assert (fault is None) == loads(data), (end, fault)


@pytest.mark.search
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("name", VARIANTS)
def test_whatever_its_header_a_file_is_accepted_only_if_it_opens_and_refused_only_if_it_does_not_decode(name, number):
    draw = random.Random(seed_of(number))
    for _ in range(60):
        data, head = bytearray(VARIANTS[name]), HEADER_BYTES[probe_image(VARIANTS[name]).format]
        place = draw.randrange(min(head, len(data)))
        kind = draw.randrange(3)
        if kind == 0:
            data[place] = draw.choice([0, 1, 255, 0xD8, 0xD9, draw.randrange(256)])
        elif kind == 1:
            data[place:place] = bytes(draw.choice([0, 255, draw.randrange(256)]) for _ in range(draw.randint(1, 4)))
        else:
            del data[place : place + draw.randint(1, 3)]
        fault = fault_of(bytes(data))
        if fault is None:
            Png("png").decode(bytes(data))
        else:
            assert any(text in fault for text in EXPECTED_FAULTS) or not loads(bytes(data)), fault


def changed(data, old, new):
    assert data.count(old) == 1
    return data.replace(old, new)


def with_text(text):
    info = PngInfo()
    info.add_text("about", text, zip=True)
    return saved("PNG", pnginfo=info)


UNREADABLE = {
    "a colour profile of 2 MiB": (saved("PNG", icc_profile=bytes(2 << 20)), "Decompressed data too large"),
    "a text of 2 MiB": (with_text("x" * (2 << 20)), "Decompressed data too large"),
    "12 bits a colour": (changed(VARIANTS["jpeg"], b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), "12-bit layers"),
    "12 bits, mixed": (changed(VARIANTS["grey"], b"\xff\xc0\0\x0b\x08", b"\xff\xc0\0\x0b\x0c"), "12-bit layers"),
    "a frame outside": (changed(VARIANTS["gif"], b"GIF87a(", b"GIF87a&"), "larger than its screen"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_no_dataset_could_decode_is_refused_by_its_name_when_it_is_converted(tmp_path, name):
    data, reason = UNREADABLE[name]
    folder = tmp_path / "photos" / "rose"
    folder.mkdir(parents=True)
    (folder / "broken").with_suffix(f".{probe_image(data).format.lower()}").write_bytes(data)
    if "mixed" in name:
        (folder / "other.png").write_bytes(VARIANTS["png"])
    with pytest.raises(SmaltiError, match=f"rose/broken.*{reason}"):
        convert(tmp_path / "photos", tmp_path / "set", processes=1)
    if probe_image(data).format != "GIF":
        encoding = probe_image(data).format.lower()
        with (
            MDSWriter(out=tmp_path / "rows", columns={"image": encoding}) as writer,
            pytest.raises(SchemaError, match=reason),
        ):
            writer.write({"image": data})


def with_chunk(kind, payload, checksum=None):
    """Return a PNG file with a further chunk before the pixels."""
    body = kind + payload
    checksum = zlib.crc32(body) if checksum is None else checksum
    return (
        VARIANTS["png"][:33]
        + len(payload).to_bytes(4, "big")
        + body
        + checksum.to_bytes(4, "big")
        + VARIANTS["png"][33:]
    )


def with_header(place, value):
    """Return a PNG file with another byte in its header, and the checksum of that."""
    head = bytearray(VARIANTS["png"][12:29])
    head[place] = value
    return VARIANTS["png"][:12] + head + zlib.crc32(head).to_bytes(4, "big") + VARIANTS["png"][33:]


def with_frame(place, value):
    """Return a JPEG file with another byte in the segment of its size."""
    data = bytearray(VARIANTS["jpeg"])
    data[data.index(b"\xff\xc0") + 4 + place] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (with_header(8 + 4, 9), "the decoder refuses it"),  # 9 bits for each value
        (with_header(8 + 7, 1), "unknown filter category"),
        (with_chunk(b"tEXt", b"a\0b", 7), "bad header checksum in b'tEXt'"),
        (with_chunk(b"\1\2\3\4", b""), "broken PNG file"),
        (with_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2 << 20))), "Decompressed data too large"),
        (with_chunk(b"iCCP", b"a\0\1"), "Unknown compression method 1 in iCCP chunk"),
        (with_frame(0, 12), "cannot handle 12-bit layers"),
        (with_frame(5, 2), "cannot handle 2-layer images"),
    ],
)
def test_a_file_that_readers_do_not_open_is_refused(data, reason):
    assert not loads(data)
    assert reason in fault_of(data)


SEGMENTS = (
    b"JFIF\0\1", b"Exif\0\0II*\0\x08\0\0\0", b"http://ns.adobe.com/xap/1.0/\0<x/>", b"ICC_PROFILE\0\1\1abc", b"FPXR\0",
    b"MPF\0MM", b"Photoshop 3.0\0" + b"8BIM\3\xed\0\0\0\0\0\4abcd", b"Adobe\0d\0\0\0\0\1", b"any comment",
)  # fmt: skip


@pytest.mark.parametrize("marker", [0xC4, *range(0xDB, 0xDE), *range(0xE0, 0xF0), 0xFE])
def test_a_segment_before_the_pixels_is_judged_as_pillow_judges_it_whatever_its_length(marker):
    whole = VARIANTS["jpeg"]
    for content in SEGMENTS:
        for end in range(len(content) + 1):
            segment = bytes([0xFF, marker]) + (end + 2).to_bytes(2, "big") + content[:end]
            data = whole[:2] + segment + whole[2:]
            assert (check_jpeg(data) is None) == opens(data), content[:end]


def opens(data):
    """Return whether Pillow's class accepts the header of a JPEG file."""
    try:
        JpegImageFile(io.BytesIO(data))
    except Exception:
        return False
    return True


def test_a_scan_header_that_ends_behind_the_file_is_refused():
    data = bytearray(VARIANTS["grey"])
    data[data.index(b"\xff\xda") + 2] = 0xF0  # the high byte of its length
    assert not opens(bytes(data))
    assert check_jpeg(bytes(data)) is not None
    assert not has_good_head(bytes(data[:HEAD_BYTES]))


@pytest.mark.parametrize("name", ["jpeg", "grey", "cmyk"])
def test_the_beginning_of_a_file_that_can_be_read_is_known_from_then_on(name):
    assert VARIANTS[name].endswith(END_MARK)
    assert has_good_head(VARIANTS[name][:HEAD_BYTES])
    assert not has_good_head(with_frame(0, 12)[:HEAD_BYTES])


@pytest.mark.parametrize("name", ["jpeg", "grey", "progressive", "comment"])
@pytest.mark.parametrize(
    ("extra", "is_good"),
    [
        (b"\0\0\0\0", True),
        (b"text", True),
        (b"\xff\xff\xff", True),
        (b"\xff\x00\xff\x00", True),
        (b"\xff\xd0", True),
        (b"\xff\xfe\x00\x02", True),
        (b"\xff\x01", False),
        (b"\xff\x02\x00\x02", False),
        (b"\xff\xd8", False),
        (b"\xff\xd9", False),
        (b"\xff\xf0\x00\x04ab", False),
    ],
)
def test_bytes_between_the_segments_of_a_jpeg_file_are_skipped_as_decoders_skip_them(name, extra, is_good):
    data = VARIANTS[name]
    end = 4 + data[4] * 256 + data[5]  # of the first segment
    changed = data[:end] + extra + data[end:]
    assert (fault_of(changed) is None, loads(changed)) == (is_good, is_good)
    if is_good:
        assert decode_rgb(changed).shape == (30, 40, 3)


def test_many_fill_bytes_take_linear_time():
    data = VARIANTS["jpeg"]
    for extra in (b"\xff" * (1 << 20), b"\xff\0" * (1 << 19), bytes(1 << 20), b"\xff\xd0" * (1 << 19)):
        assert fault_of(data[:20] + extra + data[20:]) is None
    assert fault_of(data[:20] + b"\xff\xfe\0\2" * (1 << 18) + data[20:]) == "it ends before any pixels"


def test_the_bytes_of_a_file_that_is_no_image_are_not_shown():
    with pytest.raises(BadImageError) as caught:
        probe_image(b"hunter2:x:0:0:root")
    assert "hunter2" not in f"{caught.value} {caught.value.facts}"
