"""Damaged shards: never a wrong value with a checksum; without one, values or typed errors and nothing else."""

import os
import warnings
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from PIL import Image

from smalti.errors import ChecksumMismatch, FormatError
from smalti.format import FileInfo, Shard, verify_file
from smalti.format.hashing import digest_bytes
from smalti.format.reading import files
from tests.format.columns import image_bytes
from tests.format.shards import build

COLUMNS = {
    "a": "int",
    "b": "bytes",
    "c": "str",
    "d": "json",
    "e": "ndarray",
    "f": "ndarray:int16",
    "g": "ndarray:float32:2",
    "h": "str_int",
    "i": "str_float",
    "j": "str_decimal",
    "k": "png",
    "l": "pil",
    "m": "jpeg",
}
NUM_FLIPS = 1000


@pytest.fixture(scope="module")
def shard():
    samples = [
        {
            "a": i,
            "b": bytes(range(i, i + 9)),
            "c": "héllo" * i,
            "d": {"k": [i, None, "é"]},
            "e": np.arange(i + 1, dtype=np.float64),
            "f": np.ones((2, i + 1), np.int16),
            "g": np.array([i, 0.5], np.float32),
            "h": 10**i,
            "i": i / 3,
            "j": Decimal(i) / 8,
            "k": image_bytes("PNG"),
            "l": Image.new("L", (2, 2), i),
            "m": image_bytes("JPEG")[:],
        }
        for i in range(2)
    ]
    (built,) = build(COLUMNS, samples, hashes=("xxh3_64", "sha1"))
    return built


def read_everything(path, info):
    """Read every value by sample and by batch, and return the errors that may be raised."""
    try:
        opened = Shard.open(path, info)
    except FormatError:
        return
    for i in range(len(opened)):
        with suppress(FormatError):
            opened[i]
    with suppress(FormatError):
        opened.batch(np.arange(len(opened)))


def test_every_truncation_is_refused_at_verification_and_at_open(shard, tmp_path):
    path = tmp_path / "s"
    data = bytes(shard.payloads[0])
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ChecksumMismatch):
            verify_file(path, shard.info.raw, what="s")
        with pytest.raises(FormatError):
            Shard.open(path, shard.info)
        # The same length in the index: the header and the offsets have to show it.
        if length:
            lying = replace(shard.info, raw=replace(shard.info.raw, num_bytes=length))
            with pytest.raises(FormatError):
                Shard.open(path, lying)


@pytest.mark.slow
def test_bit_flips_are_refused_at_verification_and_otherwise_end_in_values_or_typed_errors(shard, tmp_path):
    path = tmp_path / "s"
    data = bytes(shard.payloads[0])
    rng = np.random.default_rng(20240607)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd images before it refuses them
        for place in rng.integers(0, 8 * len(data), NUM_FLIPS):
            flipped = bytearray(data)
            flipped[place // 8] ^= 1 << (place % 8)
            path.write_bytes(flipped)
            with pytest.raises(ChecksumMismatch):
                verify_file(path, shard.info.raw, what="s")
            read_everything(path, shard.info)


@pytest.fixture
def large(tmp_path):
    """Return a file of three pieces, one of them short, with its entry in an index."""
    data = np.random.default_rng(1).bytes((33 << 20) + 5)
    path = tmp_path / "large"
    path.write_bytes(data)
    return path, FileInfo("large", len(data), digest_bytes(data, ("xxh3_64", "sha1")))


def test_a_flipped_bit_in_any_piece_of_a_mapped_file_is_refused(large):
    path, info = large
    verify_file(path, info, what="s", by_map=True)
    with path.open("r+b") as file:
        for place in (0, (16 << 20) - 1, 16 << 20, 32 << 20, (33 << 20) + 4):
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1]))
            file.flush()
            with pytest.raises(ChecksumMismatch):
                verify_file(path, info, what="s", by_map=True)
            file.seek(place)
            file.write(bytes([byte]))
            file.flush()
    verify_file(path, info, what="s", by_map=True)


@pytest.mark.parametrize("loads", [None, lambda *_: -1], ids=["no such call", "a page that cannot be read"])
def test_a_file_whose_pages_cannot_be_loaded_is_read_instead(large, monkeypatch, loads):
    monkeypatch.setattr(files, "_madvise", lambda: loads)
    path, info = large
    verify_file(path, info, what="s", by_map=True)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ChecksumMismatch):
        verify_file(path, info, what="s", by_map=True)


@pytest.mark.parametrize("kept", [0, 5, 16 << 20])
def test_a_file_that_is_cut_short_before_a_piece_is_mapped_is_refused(large, monkeypatch, kept):
    path, info = large
    make = files.mmap.mmap

    def cut_and_map(*arguments, **options):
        os.truncate(path, kept)
        return make(*arguments, **options)

    monkeypatch.setattr(files.mmap, "mmap", cut_and_map)
    with pytest.raises(ChecksumMismatch):
        verify_file(path, info, what="s", by_map=True)


def test_unchanged_shard_verifies(shard, tmp_path):
    path = tmp_path / "s"
    path.write_bytes(shard.payloads[0])
    verify_file(path, shard.info.raw, what="s")
    assert len(Shard.open(path, shard.info)) == 2


@pytest.mark.parametrize("table", [(0, 16, 24), (20, 16, 24), (16, 25, 24), (16, 20, 23), (17, 20, 24), (15, 20, 24)])
def test_offsets_must_rise_and_cover_the_file(tmp_path, table):
    # 2 samples, no config: samples begin at 16 and end at 24.
    data = b"".join(n.to_bytes(4, "little") for n in (2, *table)) + bytes(8)
    (small,) = build({"x": "int32"}, [{"x": 0}, {"x": 0}])
    path = tmp_path / "s"
    path.write_bytes(data)
    info = replace(small.info, raw=replace(small.info.raw, num_bytes=24))
    if table == (17, 20, 24):  # a config of one byte; then the first sample is one byte short
        opened = Shard.open(path, info)
        with pytest.raises(FormatError):
            opened[0]
        with pytest.raises(FormatError):
            opened.batch(np.array([1, 0]))
    else:
        with pytest.raises(FormatError):
            Shard.open(path, info)


def test_lengths_that_would_wrap_around_are_refused(tmp_path):
    (small,) = build({"x": "bytes", "y": "bytes"}, [{"x": b"abc", "y": b"de"}])
    data = bytearray(small.payloads[0])
    data[-13:-5] = (2**32 - 1).to_bytes(4, "little") + (6).to_bytes(4, "little")
    path = tmp_path / "s"
    path.write_bytes(data)
    opened = Shard.open(path, small.info)
    with pytest.raises(FormatError):
        opened[0]
    with pytest.raises(FormatError):
        opened.batch(np.array([0]))


def test_deeply_nested_json_is_a_typed_error(tmp_path):
    (small,) = build({"x": "bytes"}, [{"x": b"[" * 100_000}])
    path = tmp_path / "s"
    path.write_bytes(small.payloads[0])
    schema = replace(small.info.schema, encodings=("json",))
    with pytest.raises(FormatError):
        Shard.open(path, replace(small.info, schema=schema))[0]
