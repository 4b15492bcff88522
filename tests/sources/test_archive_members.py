"""The reader of tar and zip archives: nothing is lost in silence, and what precedes a content is limited."""

import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
import zipfile

import pyarrow as pa
import pytest

from smalti.errors import FormatError
from smalti.sources.archive_members import is_system_file, read_members
from tests.sources.archives import member, tar_bytes, zip_bytes

BLOCK = tarfile.BLOCKSIZE
FOUR = {f"{number}.txt": b"x" * 700 for number in range(4)}
"""Each takes a block of header and two of content; then come two blocks of zeros, and those that fill the record."""


def read_all(data, *, is_zip=False):
    """Return name and content of the members; None in place of the content of links and devices."""
    return {
        found.name: None if found.content is None else b"".join(found.content)
        for found in read_members("the archive", io.BytesIO(data), is_zip=is_zip)
    }


def zeroed(data, first, number):
    """Return the tar with some blocks of zeros."""
    return data[: first * BLOCK] + bytes(number * BLOCK) + data[(first + number) * BLOCK :]


TAR = tar_bytes(FOUR, "w")
INCOMPLETE = {
    "a header of zeros": (zeroed(TAR, 3, 1), r"one block of zeros.*after the member '0\.txt'"),
    "a member of zeros": (zeroed(TAR, 3, 3), r"something follows its end at byte 1,536 after the member '0\.txt'"),
    "the second half never reached the disk": (
        zeroed(tar_bytes({f"{n}.txt": b"x" * 700 for n in range(40)}, "w"), 60, 80),
        r"more than 10,752 bytes of zeros follow its end at byte 30,720 after the member '19\.txt'",
    ),
    "two archives joined": (TAR + TAR, r"something follows its end at byte 6,144 after the member '3\.txt'"),
    "two archives joined, then packed": (gzip.compress(TAR + TAR), "something follows its end"),
    "text after the end": (TAR + b"more", "something follows its end"),
    "no second block of zeros": (TAR[: 13 * BLOCK], r"one block of zeros.*after the member '3\.txt'"),
    "no end": (TAR[: 12 * BLOCK], r"ends without the two blocks of zeros.*after the member '3\.txt'"),
    "half of a content": (TAR[: 5 * BLOCK], r"member '1\.txt' is damaged \(its content has 512 bytes of 700"),
    "a changed header": (
        TAR[: 3 * BLOCK] + b"7" + TAR[3 * BLOCK + 1 :],
        r"a header is wrong.*after the member '0\.txt'",
    ),
}


@pytest.mark.parametrize("damage", INCOMPLETE)
def test_a_tar_whose_members_are_not_all_read_is_an_error_that_names_the_place(damage):
    data, message = INCOMPLETE[damage]
    with pytest.raises(FormatError, match=f"(?s)the archive.*{message}"):
        read_all(data)


def packed_by(codec):
    """Return a function that compresses."""
    if codec == "xz":
        return lzma.compress

    def pack(data):
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, codec) as stream:
            stream.write(data)
        return out.getvalue().to_pybytes()

    return pack


@pytest.mark.parametrize("codec", ["gzip", "bz2", "xz", "zstd", "lz4"])
def test_compressed_streams_that_follow_one_another_are_one_and_anything_else_after_them_is_an_error(codec):
    pack = packed_by(codec)
    assert read_all(pack(TAR[:3000]) + pack(TAR[3000:])) == FOUR
    for data in (pack(TAR)[:-1], pack(TAR) + b"garbage", pack(TAR) + pack(TAR)):
        with pytest.raises(FormatError):
            read_all(data)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_frames_that_decompressors_skip_may_be_anywhere_as_pzstd_writes_them(codec):
    pack = packed_by(codec)
    skipped = b"\x50\x2a\x4d\x18\4\0\0\0size" + b"\x5f\x2a\x4d\x18\0\0\0\0"
    assert read_all(skipped + pack(TAR[:3000]) + skipped + pack(TAR[3000:]) + skipped) == FOUR
    for data in (skipped, skipped[:-1] + pack(TAR), skipped * 10_000 + pack(TAR)):
        with pytest.raises(FormatError):
            read_all(data)


def extended(records, kind=tarfile.XHDTYPE):
    """Return an extended header with these bytes."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, len(records)
    return info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % BLOCK)


def record(key, value):
    """Return one record of an extended header."""
    body = b" %s=%s\n" % (key, value)
    length = len(body) + 1
    while len(b"%d" % length) + len(body) != length:
        length += 1
    return b"%d" % length + body


LONG_NAME = tarfile.GNUTYPE_LONGNAME
REFUSED = {
    "headers without end": (extended(record(b"comment", b"v" * 1000)) * 40, "more than 16 headers"),
    "two headers of 700 kB": (extended(record(b"comment", b"v" * 700_000)) * 2, "headers of a member take more than"),
    "a long name of 2 MB": (extended(b"x" * 2_000_000, LONG_NAME), "headers of a member take more than"),
    "a name of 1 GB that is not there": (
        member("x", LONG_NAME).tobuf()[:124] + b"10000000000\0" + member("x", LONG_NAME).tobuf()[136:], "damaged"
    ),
    "many records": (extended(record(b"k", b"v") * 5000), "damaged, or too long"),
    "a record of no length": (extended(b"0 path=x\n"), "an extended header is damaged"),
    "a record longer than all": (extended(b"99 path=x\n"), "an extended header is damaged"),
    "a record without an end": (extended(b"9 path=xy"), "an extended header is damaged"),
    "a size of letters": (extended(record(b"size", b"12a")), "size = b'12a'"),
    "a negative size": (extended(record(b"size", b"-512")), "size = b'-512'"),
    "a size beyond all disks": (extended(record(b"size", b"9" * 30)), "size = b'9999"),
    "a size for all members": (extended(record(b"size", b"1"), tarfile.XGLTYPE), "all members after it"),
    "a map that goes back": (
        extended(record(b"GNU.sparse.map", b"9,9,0,9") + record(b"GNU.sparse.size", b"600")), "map of a sparse member"
    ),
    "a map that does not fit": (
        extended(record(b"GNU.sparse.map", b"0,9000") + record(b"GNU.sparse.size", b"9000")), "map of a sparse member"
    ),
}  # fmt: skip


@pytest.mark.parametrize("header", REFUSED)
def test_headers_of_a_member_are_limited_and_their_damage_is_not_ignored(header):
    data, message = REFUSED[header]
    with pytest.raises(FormatError, match=message):
        read_all(data + TAR)


def test_what_extended_headers_say_is_read_however_long_it_is():
    name = b"9" * 100_000  # some releases of `tarfile` take time with the square of a run of digits
    headers = extended(record(b"comment", b"all"), tarfile.XGLTYPE) + extended(
        record(b"SCHILY.xattr.user.x", b"1" * 500_000) + record(b"path", name) + record(b"size", b"700")
    )
    short = tarfile.TarInfo("short").tobuf()  # of size 0
    assert list(read_all(headers + short + TAR[BLOCK:])) == [name.decode(), "1.txt", "2.txt", "3.txt"]


def test_holes_of_sparse_members_are_zeros_in_each_form():
    content = b"head" + bytes(996) + b"tail" + bytes(20)
    stored = b"headtail"
    numbers = record(b"GNU.sparse.size", b"1024") + record(b"GNU.sparse.numblocks", b"2")
    pairs = b"".join(
        record(b"GNU.sparse.offset", b"%d" % offset) + record(b"GNU.sparse.numbytes", b"4") for offset in (0, 1000)
    )
    by_map = record(b"GNU.sparse.map", b"0,4,1000,4") + record(b"GNU.sparse.name", b"s.bin")
    in_content = b"".join(
        record(b"GNU.sparse." + key, value)
        for key, value in ((b"major", b"1"), (b"minor", b"0"), (b"name", b"s.bin"), (b"realsize", b"1024"))
    )
    listed = b"2\n0\n4\n1000\n4\n"
    for records, data in (
        (numbers + pairs, stored),
        (numbers + by_map, stored),
        (in_content, listed + bytes(BLOCK - len(listed)) + stored),
    ):
        info = tarfile.TarInfo("s.bin")
        info.size = len(data)
        packed = extended(records) + info.tobuf() + data + bytes(-len(data) % BLOCK) + TAR
        assert read_all(packed) == {"s.bin": content, **FOUR}


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_sparse_files_packed_by_gnu_tar_are_read(tmp_path, form):
    content = bytes(1 << 20) + b"middle" + bytes(1 << 20)
    with (tmp_path / "holes.bin").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"middle")
        file.truncate(len(content))
    command = ["tar", "--sparse", f"--format={form}", "-cf", "holes.tar", "holes.bin"]
    if subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode:
        pytest.skip("needs GNU tar")
    assert read_all((tmp_path / "holes.tar").read_bytes()) == {"holes.bin": content}


def test_a_zip_with_an_overlap_a_gap_or_other_sizes_than_in_its_list_is_an_error():
    whole = zip_bytes(FOUR, zipfile.ZIP_STORED)
    assert read_all(whole, is_zip=True) == FOUR
    listed = whole.index(b"PK\1\2")
    second = whole.index(b"PK\1\2", listed + 1)
    changes = {
        "two members overlap": (second + 42, bytes(4)),  # the place of the second member is that of the first
        "belong to none": (second + 20, (0).to_bytes(4, "little")),  # its size in the archive
        "in the list": (second + 16, bytes(4)),  # its checksum
    }
    for message, (at, value) in changes.items():
        with pytest.raises(FormatError, match=message + "|in the list"):
            read_all(whole[:at] + value + whole[at + 4 :], is_zip=True)
    end = whole.index(b"PK\5\6")
    with pytest.raises(FormatError, match="bytes precede"):
        read_all(whole[: end + 8] + bytes(14), is_zip=True)  # a list of nothing


def test_symbolic_links_in_a_zip_have_no_content():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as out:
        link = zipfile.ZipInfo("b/1.jpg")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        out.writestr(link, "../a/1.jpg")
    assert read_all(packed.getvalue(), is_zip=True) == {"b/1.jpg": None}


def test_files_of_systems_are_recognised_by_their_names():
    for name in ("._1.jpg", "a/._1.jpg", "__MACOSX/a/._1.jpg", "__MACOSX", "a/.DS_Store", "Thumbs.db", "a/desktop.ini"):
        assert is_system_file(name), name
    for name in ("1.jpg", "a/__MACOSX__/1.jpg", "_.jpg", "a._b", "Thumbs.db.jpg", "x.DS_Store"):
        assert not is_system_file(name), name
