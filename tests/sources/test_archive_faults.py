"""Faults of downloads and archives: each is one of Smalti's errors that names the archive and the fault."""

import errno
import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from smalti.errors import FormatError, SmaltiError, StoreAuthError, StoreError, StoreNotFound, StoreTimeout
from smalti.sources.archive import ArchiveLimits, fetch_archive
from tests.sources.archives import RawServer, assert_clean, member, redirect, reply, tar_bytes, whole, zip_bytes
from tests.storage.servers.certificates import make_certificate

TGZ = tar_bytes()


@pytest.fixture
def into(tmp_path):
    return tmp_path / "unpacked"


# ---------------------------------------------------------------- responses

LATE = "|not complete within"
"""The end of a download that is asked for again until it succeeds: also its time limit, which no other one meets."""
BROKEN = {
    "no status line": (b"what is this\r\n\r\n", StoreError, "what is this"),
    "nothing": (b"", StoreError, "disconnected" + LATE),
    "a length that is no number": (reply(TGZ, "Content-Length: many"), StoreError, "Content-Length: many"),
    "a negative length": (reply(TGZ, "Content-Length: -1"), StoreError, "Content-Length: -1"),
    "fewer bytes than declared": (
        reply(TGZ, "Content-Length: 100000"), StoreError, "broke at byte|Not enough data" + LATE
    ),
    "chunks that break off": (
        reply(b"5\r\nabcde\r\n3", "Transfer-Encoding: chunked"), StoreError, "Not enough|broke" + LATE
    ),
    "chunks of no size": (reply(b"zz\r\n", "Transfer-Encoding: chunked"), StoreError, "chunk size"),
    "headers without end": (reply(b"", *[f"X-{n}: 1" for n in range(200)]), StoreError, "Too many headers"),
    "a part of it": (reply(b"1", "Content-Length: 1", status="206 Partial"), StoreError, "status 200, found 206"),
    "no such file": (reply(b"", "Content-Length: 0", status="410 Gone"), StoreNotFound, "no such file"),
    "a refusal": (reply(b"", "Content-Length: 0", status="403 Forbidden"), StoreAuthError, "sign it again"),
    "a failure": (reply(b"", "Content-Length: 0", status="503 Busy"), StoreError, "503.*check the address" + LATE),
    "a page": (whole(b"<html>log in</html>"), FormatError, "not an archive"),
    "half of it, without a length": (reply(TGZ[:-30]), FormatError, "damaged"),
    "a redirect with a body beyond all memory": (
        reply(b"", "Location: /y.tgz", "Content-Length: " + "9" * 18, status="302 Found"), StoreNotFound, "no such file"
    ),
    "a redirect to itself": (redirect("/x.tgz"), StoreError, "perhaps in a loop"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_every_broken_response_is_a_typed_error_that_names_the_archive(into, fault):
    answer, kind, text = BROKEN[fault]
    limits = ArchiveLimits(download_timeout=1 if LATE in text else 120)
    with RawServer({"/x.tgz": answer}) as server:
        with pytest.raises(kind, match=text) as caught:
            fetch_archive(f"{server.url}/x.tgz", into, limits=limits)
        assert f"{server.url}/x.tgz" in str(caught.value)
    assert_clean(into)


@pytest.mark.parametrize(
    "answer", [reply(TGZ), reply(b"%x\r\n%b\r\n0\r\n\r\n" % (len(TGZ), TGZ), "Transfer-Encoding: chunked")]
)
def test_an_archive_without_a_length_is_accepted_if_it_is_complete(into, answer):
    with RawServer({"/x.tgz": answer}) as server:
        assert (fetch_archive(f"{server.url}/x.tgz", into) / "daisy" / "1.jpg").read_bytes() == b"one"


@pytest.mark.parametrize(
    "address", ["http://a..b/x.tgz", "http://host:port/x.tgz", "http:///x.tgz", "http://[::1/x.tgz"]
)
def test_an_address_without_a_server_is_a_typed_error(into, address):
    with pytest.raises(StoreError, match=r"x\.tgz cannot be fetched \(.+\); check the address"):
        fetch_archive(address, into)


HALF = len(TGZ) // 2
REST = f"Content-Range: bytes {HALF}-{len(TGZ) - 1}/{len(TGZ)}"


@pytest.mark.parametrize(
    ("second", "is_whole"),
    [
        (
            reply(TGZ[HALF:], REST, f"Content-Length: {len(TGZ) - HALF}", 'ETag: "1"', status="206 Partial Content"),
            True,
        ),
        (reply(TGZ, f"Content-Length: {len(TGZ)}", 'ETag: "1"'), True),
        (reply(TGZ, f"Content-Length: {len(TGZ)}", 'ETag: "2"'), False),
    ],
    ids=["the rest", "all of it again", "another file"],
)
def test_a_download_that_breaks_off_continues_if_the_file_is_the_same(into, second, is_whole):
    answers = [reply(TGZ[:HALF], f"Content-Length: {len(TGZ)}", 'ETag: "1"'), second]

    def answer(write):
        write(answers.pop(0))
        time.sleep(0.1 if answers else 0)  # so that the first half has arrived when the connection ends

    with RawServer({"/x.tgz": answer}) as server:
        if is_whole:
            assert (fetch_archive(f"{server.url}/x.tgz", into) / "daisy" / "1.jpg").read_bytes() == b"one"
        else:
            with pytest.raises(StoreError, match=rf"changed while it was read, at byte {HALF}"):
                fetch_archive(f"{server.url}/x.tgz", into)


def test_non_ascii_addresses_are_encoded_as_browsers_do(into):
    with RawServer({"/caf%C3%A9%20x.tgz": whole(TGZ)}) as server:
        assert fetch_archive(f"{server.url}/caf\N{LATIN SMALL LETTER E WITH ACUTE} x.tgz", into).name == "photos"
        assert fetch_archive(f"{server.url}/caf%C3%A9%20x.tgz", into).name == "photos"


# ---------------------------------------------------------------- redirects


@pytest.mark.parametrize("target", ["ftp://127.0.0.1:9/x.tgz", "file:///etc/passwd", "data:,x", "gopher://host/x.tgz"])
def test_a_redirect_to_another_protocol_is_not_followed(into, target):
    message = r"x\.tgz cannot be fetched \(.* which is not followed"
    with RawServer({"/x.tgz": redirect(target)}) as server, pytest.raises(StoreError, match=message):
        fetch_archive(f"{server.url}/x.tgz", into)
    assert_clean(into)


def test_a_redirect_to_a_file_of_this_server_is_followed(into):
    with RawServer({"/x.tgz": redirect("/y.tgz"), "/y.tgz": whole(TGZ)}) as server:
        assert fetch_archive(f"{server.url}/x.tgz", into).name == "photos"
        assert server.seen == ["/x.tgz", "/y.tgz"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("certificates"))


@pytest.mark.process
def test_https_is_verified_and_never_redirected_to_http(into, certificate):
    program = """if True:
        import pathlib, sys
        from smalti.sources.archive import fetch_archive
        from smalti.errors import StoreError
        print(fetch_archive(sys.argv[1] + "/x.tgz", pathlib.Path(sys.argv[2])).name)
        try:
            fetch_archive(sys.argv[1] + "/y.tgz", pathlib.Path(sys.argv[2]))
        except StoreError as error:
            print(error.message)
    """
    with RawServer({"/x.tgz": whole(TGZ), "/y.tgz": redirect("http://127.0.0.1:9/x.tgz")}, certificate) as server:
        with pytest.raises(StoreError, match=r"x\.tgz cannot be fetched \(.*CERTIFICATE_VERIFY_FAILED"):
            fetch_archive(f"{server.url}/x.tgz", into)
        done = subprocess.run(
            [sys.executable, "-c", program, server.url, str(into)],
            env={**os.environ, "SSL_CERT_FILE": str(certificate.authority)},
            capture_output=True, text=True, timeout=500, check=True,
        )  # fmt: skip
    name, message = done.stdout.splitlines()[:2]
    assert name == "photos"
    assert "from https:// to http://127.0.0.1:9/x.tgz, which is not followed" in message


# ---------------------------------------------------------------- deadlines


@pytest.mark.parametrize("part", ["headers", "content", "nothing"])
def test_a_server_that_trickles_or_is_silent_times_out(into, part):
    def trickle(write):
        write(b"HTTP/1.1 200 OK\r\n" if part == "headers" else reply(b"", "Content-Length: 99999"))
        for _ in range(100):
            time.sleep(0.03)
            if part != "nothing":
                write(b"x")

    with RawServer({"/x.tgz": trickle}) as server, pytest.raises(StoreTimeout, match=r"x\.tgz: .*download_timeout"):
        fetch_archive(f"{server.url}/x.tgz", into, limits=ArchiveLimits(download_timeout=0.3))
    assert_clean(into)


@pytest.mark.parametrize(
    ("begin", "line"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (reply(b"0\r\n", "Transfer-Encoding: chunked"), b"X: y\r\n"),
    ],
    ids=["before the answer", "after the content"],
)
def test_endless_headers_time_out_at_any_speed(into, begin, line):
    """Headers do not count toward the limit on the size of the archive."""

    def flood(write):
        write(begin)
        for _ in range(200):
            write(line * 20_000)
            time.sleep(0.01)

    with RawServer({"/x.tgz": flood}) as server, pytest.raises(StoreError) as caught:
        fetch_archive(f"{server.url}/x.tgz", into, limits=ArchiveLimits(download_timeout=0.3))
    if "Too many headers" not in str(caught.value):
        assert isinstance(caught.value, StoreTimeout)
        assert re.search(r"x\.tgz: .*download_timeout", str(caught.value))
    assert_clean(into)


def test_limits_hold_for_archives_on_a_store_too(into, tmp_path):
    import fsspec

    with fsspec.open("memory://archives/x.tgz", "wb") as file:
        file.write(TGZ)
    for limits, kind in (
        (ArchiveLimits(max_bytes=100), FormatError),
        (ArchiveLimits(download_timeout=0), StoreTimeout),
    ):
        with pytest.raises(kind, match=r"memory://archives/x\.tgz"):
            fetch_archive("memory://archives/x.tgz", into, limits=limits)
    assert fetch_archive("memory://archives/x.tgz", into).name == "photos"


def test_an_archive_that_is_too_large_is_not_transferred_to_its_end(into):
    with (
        RawServer({"/x.tgz": whole(bytes(5_000_000))}) as server,
        pytest.raises(FormatError, match="larger than the limit of 1,000,000 bytes"),
    ):
        fetch_archive(f"{server.url}/x.tgz", into, limits=ArchiveLimits(max_bytes=1_000_000))


# ---------------------------------------------------------------- hostile archives


def encrypted_zip():
    data = bytearray(zip_bytes({"p/a/1.jpg": b"1"}))
    data[6] |= 1  # the flag of the local header, and of the list at the end
    data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


def with_method(number):
    data = bytearray(zip_bytes({"p/a/1.jpg": b"1"}))
    data[8] = number
    data[data.index(b"PK\1\2") + 10] = number
    return bytes(data)


def not_utf8_zip():
    data = zip_bytes({"p/a/\N{LATIN SMALL LETTER E WITH ACUTE}.jpg": b"1"})
    return data.replace("\N{LATIN SMALL LETTER E WITH ACUTE}".encode(), b"\xff\xff")


def latin1_tar():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as out:
        out.addfile(tarfile.TarInfo("p/a/\N{LATIN SMALL LETTER E WITH ACUTE}.jpg"))
    return packed.getvalue()


def bad_pax_tar(**headers):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as out:
        info = tarfile.TarInfo("p/a/1.jpg")
        info.pax_headers = headers
        out.addfile(info)
    return packed.getvalue()


def only(kind, linked=""):
    return tar_bytes({}, "w", [member("p/x/1.jpg", kind, linked)])


HOSTILE = {
    "an encrypted zip": ("zip", encrypted_zip(), "is encrypted .*password"),
    "a zip of a method that Python does not have": ("zip", with_method(99), "method .*pack it again"),
    "a zip whose names are not UTF-8": ("zip", not_utf8_zip(), "damaged"),
    "a tar whose names are not UTF-8": ("tar", latin1_tar(), r"not UTF-8; rename it"),
    "a name of 300 letters": ("tar", tar_bytes({f"p/{'x' * 300}.jpg": b"1"}, "w"), "does not allow"),
    "one file twice": ("zip", zip_bytes({"p/a": b"1", "p/a/1.jpg": b"1"}), "same file twice"),
    "a link alone": ("tar", only(tarfile.SYMTYPE, "/etc/passwd"), "holds no file"),
    "a device": ("tar", only(tarfile.BLKTYPE), "holds no file"),
    "a hard link that leaves": ("tar", only(tarfile.LNKTYPE, "../x"), "outside the folder"),
    "a hard link to nothing": ("tar", only(tarfile.LNKTYPE, "p/x"), "not before it"),
    "a sparse map of no numbers": ("tar", bad_pax_tar(**{"GNU.sparse.map": "a,b"}), "damaged"),
    "a negative size": ("tar", bad_pax_tar(size="-512"), "damaged|holds no file"),
    "a size beyond all disks": ("tar", bad_pax_tar(size="9" * 30), "damaged|larger than the limit"),
    "a name of 2 MiB": ("tar", tar_bytes({"p/" + "x" * 2**21: b"1"}, "w"), "damaged"),
    "nothing at all": ("zip", zip_bytes({}), "holds no file"),
    "a tar of nothing": ("tar", tar_bytes({}, "w"), "holds no file"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_or_unusual_archive_is_a_format_error_that_names_it(tmp_path, into, what):
    suffix, data, text = HOSTILE[what]
    path = tmp_path / f"strange.{suffix}"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=rf"(?s)strange\.{suffix}.*({text})"):
        fetch_archive(str(path), into)
    assert_clean(into)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, into.name])


@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_an_archive_bomb_is_refused_before_any_byte_is_written(tmp_path, into, kind):
    files = {"p/a/1.jpg": bytes(50_000_000)}
    path = tmp_path / f"bomb.{kind}"
    path.write_bytes(zip_bytes(files) if kind == "zip" else tar_bytes(files))
    assert path.stat().st_size < 100_000
    with pytest.raises(FormatError, match=r"bomb\.\w+ unpacked is larger than the limit of 1,000,000 bytes"):
        fetch_archive(str(path), into, limits=ArchiveLimits(max_bytes=1_000_000))
    assert_clean(into)


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_negative_size_of_a_member_does_not_raise_the_limit(tmp_path, into, kind):
    links = member("p/a/0.jpg", kind, "p/a/1.jpg")
    links.size = -(1 << 50)
    path = tmp_path / "bomb.tgz"
    path.write_bytes(gzip.compress(links.tobuf(tarfile.GNU_FORMAT) + tar_bytes({"p/a/1.jpg": bytes(50_000_000)}, "w")))
    with pytest.raises(FormatError, match=r"bomb\.tgz is damaged .*a header has the size -1125899906842624"):
        fetch_archive(str(path), into, limits=ArchiveLimits(max_bytes=1_000_000))
    assert_clean(into)


def test_the_declared_size_of_a_folder_does_not_count_toward_the_limit(tmp_path, into):
    folder = member("p/a", tarfile.DIRTYPE)
    folder.size = 1 << 40  # in POSIX the capacity of the folder
    path = tmp_path / "x.tar"
    path.write_bytes(folder.tobuf(tarfile.GNU_FORMAT) + tar_bytes({"p/a/1.jpg": b"1"}, "w"))
    assert (fetch_archive(str(path), into, limits=ArchiveLimits(max_bytes=20_000)) / "a" / "1.jpg").read_bytes() == b"1"


def test_hard_links_are_unpacked_and_other_links_are_logged(tmp_path, into, caplog):
    """`tar` packs the second name of a file as a link: skipped, the file would be lost."""
    links = [member("p/b/2.jpg", tarfile.LNKTYPE, "p/a/1.jpg"), member("p/b/3.jpg", tarfile.SYMTYPE, "2.jpg")]
    path = tmp_path / "links.tgz"
    path.write_bytes(tar_bytes({"p/a/1.jpg": b"one"}, members=links))
    folder = fetch_archive(str(path), into)
    assert {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.jpg")} == {
        "a/1.jpg": b"one",
        "b/2.jpg": b"one",
    }
    assert "links.tgz: 1 members are links or devices, and were not unpacked" in caplog.text


# ---------------------------------------------------------------- this machine


def test_a_folder_that_cannot_be_written_is_a_typed_error(tmp_path):
    path = tmp_path / "x.tgz"
    path.write_bytes(TGZ)
    (tmp_path / "file").write_bytes(b"")
    for into in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"x\.tgz cannot be unpacked below .*; check the folder"):
            fetch_archive(str(path), into)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_a_full_disk_is_named_in_the_error(tmp_path, into, monkeypatch):
    def write_all(source, members, folder, limits):
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"1")

    monkeypatch.setattr("smalti.sources.archive._unpack", write_all)
    (tmp_path / "x.tgz").write_bytes(b"1")
    with pytest.raises(StoreError, match="the disk is full; free space") as caught:
        fetch_archive(str(tmp_path / "x.tgz"), into)
    assert caught.value.__cause__.errno == errno.ENOSPC


def test_a_folder_with_the_name_of_an_archive_is_refused(tmp_path, into):
    (tmp_path / "x.tgz").mkdir()
    for source in (f"{tmp_path}/x.tgz", f"file://{tmp_path}/x.tgz", "dbfs:/Volumes/c/x.tgz"):
        with pytest.raises(SmaltiError, match=r"x\.tgz|catalog"):
            fetch_archive(source, into)


def test_a_file_url_opens_the_file(tmp_path, into):
    (tmp_path / "x.zip").write_bytes(zip_bytes(method=zipfile.ZIP_STORED))
    assert fetch_archive(f"file://{tmp_path}/x.zip", into) == fetch_archive(f"{tmp_path}/x.zip", into)
