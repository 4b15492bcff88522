"""smalti.compat.streaming's compression and hashes by name."""

import hashlib
import zlib

import pytest
import xxhash

from smalti.compat.streaming.base.compression import (
    Brotli,
    Bzip2,
    Compression,
    Gzip,
    LevelledCompression,
    Snappy,
    Zstandard,
    compress,
    decompress,
    get_compression_extension,
    get_compressions,
    is_compression,
)
from smalti.compat.streaming.base.format.index import get_index_basename
from smalti.compat.streaming.base.hashing import get_hash, get_hashes, is_hash

DATA = b"a text that is repeated, " * 100
FAMILIES = (Brotli, Bzip2, Gzip, Snappy, Zstandard)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_level_of_a_family_has_a_name_and_returns_what_it_took(family):
    names = set()
    for name, algorithm in family.each():
        names.add(name)
        packed = algorithm.compress(DATA)
        assert len(packed) < len(DATA) or name == "gz:0"
        assert algorithm.decompress(packed) == decompress(name, packed) == DATA
        assert compress(name, DATA) == packed
        assert get_compression_extension(name) == family.extension
    assert names == {name for name in get_compressions() if name.split(":")[0] == family.extension}


def test_names_of_all_families_are_all_names():
    assert get_compressions() == {name for family in FAMILIES for name, _ in family.each()}
    assert len(get_compressions()) == 5 + 12 + 9 + 10 + 22


def test_no_compression_is_the_data_itself():
    assert compress(None, DATA) is decompress(None, DATA) is DATA
    assert not is_compression(None)


@pytest.mark.parametrize("name", ["", "zip", "zstd:23", "snappy:1"])
def test_an_unknown_name_is_a_value_error(name):
    assert not is_compression(name)
    for call in (compress, decompress):
        with pytest.raises(ValueError, match="not a supported compression algorithm"):
            call(name, DATA)
    with pytest.raises(ValueError, match="not a supported compression algorithm"):
        get_compression_extension(name)


def test_an_unknown_level_is_an_assertion_error():
    for family in (Brotli, Bzip2, Gzip, Zstandard):
        with pytest.raises(AssertionError, match="levels"):
            family(99)
    with pytest.raises(NotImplementedError):
        LevelledCompression.__init__(Brotli(), 3)
    with pytest.raises(TypeError, match="abstract"):
        Compression()


@pytest.mark.parametrize("family", FAMILIES)
def test_damaged_bytes_are_a_value_error(family):
    with pytest.raises(ValueError, match=r"bytes of|damaged"):
        family().decompress(family().compress(DATA)[:-3])


def test_gzip_files_are_readable_by_others():
    assert zlib.decompress(compress("gz:5", DATA), wbits=31) == DATA


def test_hashes_are_those_of_their_libraries():
    assert get_hash("sha1", DATA) == hashlib.sha1(DATA).hexdigest()
    assert get_hash("xxh3_64", DATA) == xxhash.xxh3_64_hexdigest(DATA)
    assert {"md5", "sha256", "blake2b", "xxh32", "xxh64", "xxh128", "xxh3_128"} <= get_hashes()
    assert is_hash("sha256")
    assert not is_hash("crc32")
    with pytest.raises(ValueError, match="not a supported hash"):
        get_hash("crc32", DATA)


def test_the_index_is_called_index_json():
    assert get_index_basename() == "index.json"
