"""Small files that expand to fill the memory: each ends in a typed error, or is read, within a memory limit."""

import bz2
import gzip
import subprocess
import sys

import brotli
import cramjam
import pytest
import zstandard

pytestmark = pytest.mark.process

MANY = 160 << 20
# The child may take 128 MiB beyond what it has after its imports, and must not take `MANY` bytes.
CHILD = """
import resource, sys
from pathlib import Path
from smalti.errors import FormatError
from smalti.format import parse_compression, parse_encoding

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

what, path, limit = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
codec = None if what in {"pil", "jpeg", "png", "list[pil]", "list[png]", "jpeg_array", "json", "ndarray"} else what
run = parse_compression(codec).decompress_file if codec else parse_encoding(what).decode
if sys.platform == "linux":
    most = status("VmSize") + (128 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
with open("/dev/null", "wb") as null:
    try:
        print(run(path, null, limit) if codec else run(path.read_bytes()))
    except FormatError as error:
        print(type(error).__name__)
"""


def outcome(tmp_path, what, data, limit=0):
    path = tmp_path / "bomb"
    path.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, what, path, str(limit)], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def bomb(text):
    if text == "br":
        return brotli.compress(bytes(MANY), quality=1)
    if text == "bz2":
        return bz2.compress(bytes(MANY // 8)) * 8
    if text == "gz":
        return gzip.compress(bytes(MANY // 8)) * 8
    if text == "zstd":
        return zstandard.compress(bytes(MANY))
    if text == "zstd without size":
        return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(MANY))
    return bytes(cramjam.snappy.compress_raw(bytes(MANY)))


@pytest.mark.parametrize("text", ["br", "bz2", "gz", "zstd", "zstd without size", "snappy"])
def test_content_beyond_the_declared_size_is_refused_in_little_memory(text, tmp_path):
    data = bomb(text)
    assert len(data) < MANY // 20
    assert outcome(tmp_path, text.split()[0], data, 1000) == "FormatError"


@pytest.mark.parametrize("text", ["br", "bz2", "gz", "zstd", "zstd without size"])
@pytest.mark.slow
def test_content_of_the_declared_size_streams_through_in_little_memory(text, tmp_path):
    assert outcome(tmp_path, text.split()[0], bomb(text), MANY) == str(MANY)


def test_block_that_declares_more_than_it_can_hold_is_refused_in_little_memory(tmp_path):
    assert outcome(tmp_path, "snappy", b"\xff\xff\xff\xff\x0f" + bytes(1000), (1 << 32) - 1) == "FormatError"
