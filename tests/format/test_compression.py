"""Compression: levels, and decompression that stops where the index says."""

from io import BytesIO

import pytest
import zstandard

from smalti.errors import FormatError, SchemaError
from smalti.format import parse_compression

DATA = bytes(range(256)) * 500


@pytest.mark.parametrize(("text", "level"), [("zstd", 3), ("zstd:1", 1), ("zstd:22", 22)])
def test_levels(text, level):
    found = parse_compression(text)
    assert found is not None
    assert (found.text, found.level, found.extension) == (text, level, "zstd")


def test_nothing_means_no_compression():
    assert parse_compression(None) is None
    assert parse_compression("") is None


@pytest.mark.parametrize("text", ["zstd:0", "zstd:23", "zstd:", "br", "gz:9", "snappy", "lz4", "ZSTD", "zstd:-1"])
def test_unknown_compression_is_refused(text):
    with pytest.raises(SchemaError):
        parse_compression(text)


def decompress(tmp_path, data, limit):
    path, out = tmp_path / "f.zstd", BytesIO()
    path.write_bytes(data)
    compression = parse_compression("zstd")
    assert compression is not None
    try:
        return compression.decompress_file(path, out, limit), out.getvalue()
    except FormatError:
        assert len(out.getvalue()) <= limit
        raise


def test_content_comes_back(tmp_path):
    compression = parse_compression("zstd:7")
    assert compression is not None
    assert decompress(tmp_path, compression.compress(DATA), len(DATA)) == (len(DATA), DATA)
    assert decompress(tmp_path, compression.compress(b""), 0) == (0, b"")


def test_frame_declares_its_size_and_has_no_checksum():
    compression = parse_compression("zstd")
    assert compression is not None
    frame = zstandard.get_frame_parameters(compression.compress(DATA))
    assert (frame.content_size, frame.has_checksum) == (len(DATA), False)


def test_bomb_stops_at_the_limit_whether_it_declares_its_size_or_not(tmp_path):
    zeros = bytes(50_000_000)
    for declares in (True, False):
        bomb = zstandard.ZstdCompressor(write_content_size=declares).compress(zeros)
        with pytest.raises(FormatError, match="longer than"):
            decompress(tmp_path, bomb, 1000)


def test_every_truncation_of_a_file_with_declared_size_is_refused(tmp_path):
    compression = parse_compression("zstd")
    assert compression is not None
    data = compression.compress(DATA[:3000])
    for length in range(len(data)):
        with pytest.raises(FormatError):
            decompress(tmp_path, data[:length], 3000)


def test_garbage_is_refused(tmp_path):
    for data in (b"", b"garbage", b"\x28\xb5\x2f\xfd" + b"\xff" * 40):
        with pytest.raises(FormatError):
            decompress(tmp_path, data, 1000)
