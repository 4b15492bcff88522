"""Checksums of bytes and files."""

import pytest

from smalti.errors import ChecksumMismatch, SchemaError
from smalti.format import FileInfo, new_hash, verify_file
from smalti.format.hashing import HASH_NAMES, check_hash_names, digest_bytes

ABC = {
    "md5": "900150983cd24fb0d6963f7d28e17f72",
    "sha1": "a9993e364706816aba3e25717850c26c9cd0d89d",
    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "xxh32": "32d153ff",
    "xxh64": "44bc2cf5ad770999",
    "xxh3_64": "78af5f94892f3950",
}


def test_known_checksums_of_abc():
    assert digest_bytes(b"abc", ABC) == ABC


def test_every_hash_name_of_mds_is_known():
    expected = "blake2b blake2s md5 sha1 sha224 sha256 sha384 sha512 sha3_224 sha3_256 sha3_384 sha3_512"
    assert {*expected.split(), "xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"} == HASH_NAMES


def test_names_come_back_sorted():
    assert check_hash_names(["xxh64", "sha1"]) == ("sha1", "xxh64")
    assert check_hash_names(None) == ()


@pytest.mark.parametrize("names", [["crc32"], ["sha1", "sha1"], ["shake_128"], ["SHA1"]])
def test_unknown_and_repeated_names_are_refused(names):
    with pytest.raises(SchemaError):
        check_hash_names(names)


def test_hash_of_pieces_equals_hash_of_the_whole():
    hasher = new_hash("sha1")
    hasher.update(b"a")
    hasher.update(memoryview(b"bc"))
    assert hasher.hexdigest() == ABC["sha1"]


def test_verify_passes_for_the_right_file_and_fails_for_size_and_for_every_hash(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    verify_file(path, FileInfo("f", 3, ABC), what="f")
    with pytest.raises(ChecksumMismatch) as caught:
        verify_file(path, FileInfo("f", 4, ABC), what="f")
    assert (caught.value.expected, caught.value.found, caught.value.hash) == (4, 3, "size")
    path.write_bytes(b"abd")
    for name, digest in ABC.items():
        with pytest.raises(ChecksumMismatch) as caught:
            verify_file(path, FileInfo("f", 3, {name: digest}), what="f")
        assert caught.value.hash == name
