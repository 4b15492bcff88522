"""Damaged archives: every change or truncation is detected, or does not change what is unpacked."""

import gzip
import io
import random
import struct
import tarfile
import zipfile

import pytest

from smalti.errors import FormatError
from smalti.sources.archive import fetch_archive
from smalti.sources.archive_members import read_members
from tests.sources.archives import assert_clean, tar_bytes, zip_bytes

NOISE = random.Random(7)
SMALL = {
    "p/a/1.jpg": NOISE.randbytes(40),
    "p/a/2.jpg": NOISE.randbytes(41),
    "p/b/caf\N{LATIN SMALL LETTER E WITH ACUTE}.jpg": b"x" * 30,
    "p/b/foo": b"y" * 30,  # one bit from "p/b/fo/", a folder
}
BLOCK = tarfile.BLOCKSIZE


def unpacked(data, *, is_zip=False):
    """Return the files that the archive unpacks to; None if it is refused."""
    found = {}
    try:
        for member in read_members("the archive", io.BytesIO(data), is_zip=is_zip):
            assert member.content is not None
            found[member.name] = b"".join(member.content)
    except FormatError:
        return None
    return found


PACKED = {
    "tar.gz": (lambda: tar_bytes(SMALL, "w:gz"), False),
    "tar.bz2": (lambda: tar_bytes(SMALL, "w:bz2"), False),
    "tar.xz": (lambda: tar_bytes(SMALL, "w:xz"), False),
    "two members of gzip": (lambda: in_two_members(tar_bytes(SMALL, "w")), False),
    "zip": (lambda: zip_bytes(SMALL), True),
    "zip, stored": (lambda: zip_bytes(SMALL, zipfile.ZIP_STORED), True),
}


def in_two_members(data):
    half = len(data) // 2
    return gzip.compress(data[:half], mtime=0) + gzip.compress(data[half:], mtime=0)


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", PACKED)
def test_no_flipped_bit_unpacks_other_bytes_names_or_files(kind, step):
    """One bit of nearly each byte, all bits in the nightly run: `tarfile` alone accepts nearly all of a .tgz."""
    make, is_zip = PACKED[kind]
    whole = make()
    assert unpacked(whole, is_zip=is_zip) == SMALL
    wrong = []
    for bit in range(0, 8 * len(whole), step):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        if unpacked(data, is_zip=is_zip) not in (None, SMALL):
            wrong.append(divmod(bit, 8))
    assert wrong == []


@pytest.mark.parametrize("kind", PACKED)
def test_no_truncated_archive_loses_files(kind):
    """Truncated at every byte, as by a transfer without a length."""
    make, is_zip = PACKED[kind]
    whole = make()
    assert [end for end in range(len(whole)) if unpacked(whole[:end], is_zip=is_zip) not in (None, SMALL)] == []


def test_a_tar_truncated_between_two_members_is_refused():
    """Each member is a header and a block of content: the cut leaves none to three complete members."""
    files = {f"p/a/{number}.jpg": b"x" for number in range(3)}
    whole = tar_bytes(files, "w")
    assert [unpacked(whole[: 2 * BLOCK * number]) for number in range(4)] == [None] * 4
    assert unpacked(whole[: 7 * BLOCK]) is None, "one block of zeros is not the end"
    assert unpacked(whole[: 8 * BLOCK]) == files, "two are"


def test_a_header_with_a_wrong_checksum_is_not_taken_for_the_end_of_a_tar():
    whole = bytearray(tar_bytes(SMALL, "w"))
    whole[2 * BLOCK] ^= 1  # the second member's name
    assert unpacked(whole) is None


def test_data_after_the_end_is_refused():
    first, second = tar_bytes({"p/a/1.jpg": b"1"}, "w"), tar_bytes({"p/b/2.jpg": b"2"}, "w")
    assert unpacked(first + second) is None, "the second tar would be lost"
    assert unpacked(gzip.compress(first) + gzip.compress(second)) is None
    assert unpacked(gzip.compress(first) + b"garbage") is None
    assert unpacked(gzip.compress(first) + bytes(512)) == {"p/a/1.jpg": b"1"}, "zeros that fill a tape's block"
    assert unpacked(zip_bytes({"a": b"1"}) + zip_bytes({"b": b"2"}), is_zip=True) is None
    assert unpacked(zip_bytes({"a": b"1"}) + b"garbage", is_zip=True) is None


def as_zip64(data, number):
    """Return the zip with its number of members in the zip64 records, for more than 65,535 members."""
    end = data.index(b"PK\5\6")
    size, offset = struct.unpack("<II", data[end + 12 : end + 20])
    large = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, number, number, size, offset)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
    return data[:end] + large + locator + data[end : end + 8] + b"\xff\xff\xff\xff" + data[end + 12 :]


def test_the_members_of_a_large_zip_are_counted_by_its_zip64_records():
    assert unpacked(as_zip64(zip_bytes(SMALL), 4), is_zip=True) == SMALL
    assert unpacked(as_zip64(zip_bytes(SMALL), 5), is_zip=True) is None


def test_names_in_a_zip_are_read_as_utf8_with_and_without_the_flag():
    """Linux's `zip` and macOS omit the flag."""
    data = bytearray(zip_bytes(SMALL))
    for signature, offset in ((b"PK\3\4", 7), (b"PK\1\2", 9)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            data[at + offset] &= ~0x08
    assert unpacked(data, is_zip=True) == SMALL


@pytest.mark.parametrize("suffix", ["tgz", "zip"])
def test_the_error_for_a_damaged_archive_names_it_and_no_files_remain(tmp_path, suffix):
    data = bytearray(tar_bytes(SMALL) if suffix == "tgz" else zip_bytes(SMALL))
    data[100 if suffix == "tgz" else data.index(b"PK\1\2") - 5] ^= 4  # of contents
    path, into = tmp_path / f"bad.{suffix}", tmp_path / "into"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"bad\.\w+.* is damaged.* \(.+\); fetch it again"):
        fetch_archive(str(path), into)
    assert_clean(into)
