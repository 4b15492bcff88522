"""Compression: names and levels, and decompression that returns the original, or ends in a typed error."""

import bz2
import gzip
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from random import Random

import brotli
import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import FormatError, SchemaError
from smalti.format import parse_compression
from smalti.format.compression import COMPRESSION_NAMES

DATA = bytes(range(256)) * 500 + b"the end"
FAMILIES = ("br", "bz2", "gz", "snappy", "zstd")


def compression(text):
    found = parse_compression(text)
    assert found is not None
    return found


def decompress(folder, text, data, limit):
    path, out = folder / f"f.{text}", BytesIO()
    path.write_bytes(data)
    try:
        return compression(text).decompress_file(path, out, limit), out.getvalue()
    finally:
        assert len(out.getvalue()) <= limit


@pytest.mark.parametrize(
    ("text", "level", "extension"),
    [
        ("br", 11, "br"),
        ("br:0", 0, "br"),
        ("br:11", 11, "br"),
        ("bz2", 9, "bz2"),
        ("bz2:1", 1, "bz2"),
        ("gz", 9, "gz"),
        ("gz:0", 0, "gz"),
        ("snappy", 0, "snappy"),
        ("zstd", 3, "zstd"),
        ("zstd:1", 1, "zstd"),
        ("zstd:22", 22, "zstd"),
    ],
)
def test_levels(text, level, extension):
    found = compression(text)
    assert (found.text, found.level, found.extension) == (text, level, extension)


def test_there_are_as_many_compression_names_as_in_mosaicml():
    # 5 without a level, and 12 of br, 9 of bz2, 10 of gz, 22 of zstd with one
    assert len(COMPRESSION_NAMES) == 5 + 12 + 9 + 10 + 22


def test_none_and_empty_text_mean_no_compression():
    assert parse_compression(None) is None
    assert parse_compression("") is None


@pytest.mark.parametrize(
    "text",
    ["zstd:0", "zstd:23", "zstd:", "zstd:03", "zstd:-1", "br:12", "bz2:0", "gz:10", "snappy:1", "lz4", "ZSTD", "gzip"],
)
def test_unknown_compression_is_refused_with_the_list_of_known_ones(text):
    with pytest.raises(SchemaError) as caught:
        parse_compression(text)
    for name in ("br", "bz2", "gz", "snappy", "zstd"):
        assert f'"{name}"' in str(caught.value)


@pytest.mark.parametrize("text", sorted(COMPRESSION_NAMES))
def test_content_comes_back(text, tmp_path):
    for data in (b"", b"a", DATA[:5000]):
        packed = compression(text).compress(memoryview(bytearray(data)))
        assert type(packed) is bytes
        assert decompress(tmp_path, text, packed, len(data)) == (len(data), data)


@pytest.mark.parametrize("text", FAMILIES)
@given(data=st.binary(max_size=300) | st.binary(max_size=20).map(lambda piece: piece * 100), room=st.integers(0, 50))
def test_any_content_comes_back(text, data, room, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    assert decompress(folder, text, compression(text).compress(data), len(data) + room) == (len(data), data)


@pytest.mark.parametrize(
    ("text", "unpack"),
    [
        ("br", brotli.decompress),
        ("bz2", bz2.decompress),
        ("gz", gzip.decompress),
        ("snappy", lambda data: bytes(cramjam.snappy.decompress_raw(data))),
        ("zstd", zstandard.decompress),
    ],
)
def test_the_algorithms_own_tools_read_what_is_written(text, unpack):
    assert unpack(compression(text).compress(DATA)) == DATA


@pytest.mark.parametrize("text", FAMILIES)
@pytest.mark.slow
def test_large_content_comes_back_from_several_pieces(text, tmp_path):
    # 3 MB that hardly compress: many pieces in, many pieces out
    data = Random(1).randbytes(3_000_000)
    fast = {"br": "br:1", "zstd": "zstd:1", "gz": "gz:1"}.get(text, text)
    packed = compression(fast).compress(data)
    assert decompress(tmp_path, fast, packed, len(data)) == (len(data), data)
    with pytest.raises(FormatError, match="longer than the 2999999 bytes"):
        decompress(tmp_path, fast, packed, len(data) - 1)


def test_bytes_are_the_same_from_any_thread_and_at_any_time():
    for text in FAMILIES:
        packed = compression(text).compress(DATA)
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(compression(text).compress, [DATA] * 8)) == {packed}


def test_gzip_header_has_no_time_and_no_system():
    assert compression("gz").compress(b"")[:10].hex() == "1f8b08000000000002ff"
    assert compression("gz:6").compress(b"")[:10].hex() == "1f8b08000000000000ff"
    assert compression("gz:1").compress(b"")[:10].hex() == "1f8b08000000000004ff"


def test_zstd_frame_declares_its_size_and_has_no_checksum():
    frame = zstandard.get_frame_parameters(compression("zstd").compress(DATA))
    assert (frame.content_size, frame.has_checksum) == (len(DATA), False)


def test_zstd_frames_of_other_writers_are_read(tmp_path):
    for options in (
        {"write_content_size": False},
        {"write_checksum": True},
        {"write_content_size": False, "level": 19},
    ):
        frame = zstandard.ZstdCompressor(**options).compress(DATA)
        assert decompress(tmp_path, "zstd", frame, len(DATA)) == (len(DATA), DATA)
        for length in (0, 3, 7, 20, len(frame) - 1):
            with pytest.raises(FormatError):
                decompress(tmp_path, "zstd", frame[:length], len(DATA))


def test_files_of_several_members_are_read(tmp_path):
    for text, pack in (("gz", gzip.compress), ("bz2", bz2.compress)):
        data = pack(b"one, ") + pack(b"") + pack(b"two, ") + pack(DATA) + pack(b"")
        assert decompress(tmp_path, text, data, 200_000) == (len(DATA) + 10, b"one, two, " + DATA)
        with pytest.raises(FormatError, match="longer than"):
            decompress(tmp_path, text, data, len(DATA) + 9)


def test_files_of_many_empty_parts_are_refused(tmp_path):
    """Each takes time and yields nothing: a file of them would take minutes."""
    for text, pack in (("gz", gzip.compress), ("bz2", bz2.compress)):
        assert decompress(tmp_path, text, pack(b"") * 1024, 0) == (0, b"")
        with pytest.raises(FormatError, match="something follows"):
            decompress(tmp_path, text, pack(b"") * 1025, 0)
        assert decompress(tmp_path, text, pack(b"") * 1025, 512) == (0, b"")
    # A frame header with one byte for a content of 1, an empty block for each three zeros, a last block of one byte.
    head, last = bytes.fromhex("28b52ffd2001"), bytes.fromhex("09000061")
    assert decompress(tmp_path, "zstd", head + bytes(3 * 1023) + last, 1) == (1, b"a")
    with pytest.raises(FormatError, match="more blocks"):
        decompress(tmp_path, "zstd", head + bytes(3 * 1024) + last, 1)


def test_zstd_frame_whose_content_is_not_as_long_as_it_declares_is_refused(tmp_path):
    head, last = bytes.fromhex("28b52ffd20"), bytes.fromhex("11000061") + b"b"
    assert decompress(tmp_path, "zstd", head + b"\x02" + last, 100) == (2, b"ab")
    for declared in (b"\x01", b"\x03"):
        with pytest.raises(FormatError):
            decompress(tmp_path, "zstd", head + declared + last, 100)


def test_zstd_block_of_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(FormatError):
        decompress(tmp_path, "zstd", bytes.fromhex("28b52ffd2001") + bytes.fromhex("0f000061"), 100)


@pytest.mark.parametrize("text", FAMILIES)
def test_every_truncation_is_refused(text, tmp_path):
    packed = compression(text).compress(DATA[:700])
    for length in range(len(packed)):
        with pytest.raises(FormatError):
            decompress(tmp_path, text, packed[:length], 700)


@pytest.mark.parametrize("text", FAMILIES)
@pytest.mark.parametrize("more", [b"\0", b"garbage", b"\0" * 100_000])
def test_data_after_the_end_is_refused(text, more, tmp_path):
    for data in (DATA[:3000], b""):
        with pytest.raises(FormatError):
            decompress(tmp_path, text, compression(text).compress(data) + more, 3000)


def test_data_after_the_end_is_refused_at_the_end_of_a_piece(tmp_path):
    data = Random(0).randbytes(65_532)  # Brotli adds four bytes to what it cannot compress, and 65536 are one piece
    packed = compression("br:1").compress(data)
    assert len(packed) == 65_536
    assert decompress(tmp_path, "br", packed, 65_536)[1] == data
    with pytest.raises(FormatError, match="something follows its end"):
        decompress(tmp_path, "br", packed + b"x", 65_536)


@pytest.mark.parametrize("text", FAMILIES)
def test_garbage_is_refused(text, tmp_path):
    magic = compression(text).compress(DATA)[:4]
    for data in (b"", b"garbage", b"\xff" * 40, magic + b"\xff" * 40, magic):
        with pytest.raises(FormatError):
            decompress(tmp_path, text, data, 1000)


@pytest.mark.parametrize("text", FAMILIES)
def test_every_flipped_bit_is_an_error_or_harmless_within_the_limit(text, tmp_path):
    packed = compression(text).compress(DATA[:60])
    for bit in range(8 * len(packed)):
        data = bytearray(packed)
        data[bit // 8] ^= 1 << bit % 8
        try:
            count, content = decompress(tmp_path, text, bytes(data), 60)
        except FormatError:
            continue
        assert count == len(content) <= 60  # the index's hash is what finds these


def test_snappy_length_is_compared_before_anything_is_allocated(tmp_path):
    four_gib = b"\xff\xff\xff\xff\x0f"
    with pytest.raises(FormatError, match="longer than"):
        decompress(tmp_path, "snappy", four_gib + b"\x00a", 1000)
    with pytest.raises(FormatError, match="cannot hold"):
        decompress(tmp_path, "snappy", four_gib + b"\x00a", (1 << 32) - 1)
    with pytest.raises(FormatError, match="cannot hold"):
        decompress(tmp_path, "snappy", b"\x01\x00a" + bytes(100), 1000)
    for head in (b"\xff\xff\xff\xff\x1f", b"\xff\xff\xff\xff\xff", b"\x80"):
        with pytest.raises(FormatError, match="does not start with a length"):
            decompress(tmp_path, "snappy", head, 1 << 40)


def test_a_missing_file_is_no_format_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        compression("bz2").decompress_file(tmp_path / "none", BytesIO(), 10)


def test_a_full_disk_is_no_format_error(tmp_path):
    class Full(BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    for text in FAMILIES:
        path = tmp_path / text
        path.write_bytes(compression(text).compress(DATA))
        with pytest.raises(OSError, match="No space"):
            compression(text).decompress_file(path, Full(), len(DATA))


@pytest.mark.parametrize("text", ["br:1", "bz2", "gz", "snappy", "zstd"])
def test_bytes_in_memory_come_back_up_to_the_limit(text):
    data = b"abc" * 1000
    packed = compression(text).compress(data)
    assert compression(text).decompress(packed, 3000) == data
    with pytest.raises(FormatError, match="longer than the 2999 bytes"):
        compression(text).decompress(packed, 2999)
    with pytest.raises(FormatError, match=f"{len(packed) - 1} bytes of"):
        compression(text).decompress(packed[:-1], 3000)
